"""A process that carries out one request, for tests that kill it: `python holder.py URL KEY`."""

import asyncio
import sys

from batuta import connect, workflow
from batuta.resilience.idempotency import Idempotency


@workflow
async def order(number: int) -> int:
    return number


async def main(url: str, key: str) -> None:
    async with connect(url) as client:

        async def work() -> tuple[str, bool]:
            handle = await client.start(order, 1, id=key)
            return f'"{handle.run_id}"', True

        print(await Idempotency(client.namespace.requests, lock=1.0).once("POST /orders", key, b"1", work))


asyncio.run(main(*sys.argv[1:]))
