"""A worker that writes down what it gets, and is killed at any moment: python -m tests.bus.killed_worker URL FILE."""

from __future__ import annotations

import asyncio
import os
import sys

from batuta import Retry, connect, job
from batuta.bus import Message, subscribe


async def main(url: str, file: str) -> None:
    out = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    @job(name="note", retry=Retry(attempts=5, first=0.01))
    async def note(message: Message[int]) -> None:
        os.write(out, f"{message.key} {message.payload} {message.id}\n".encode())
        await asyncio.sleep(0.002)

    async with connect(url) as client, client.worker(subscriptions=[subscribe("orders", note)]):
        os.write(out, b"ready\n")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2]))
