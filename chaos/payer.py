"""A worker process whose activities call a partner behind a breaker and a limit: `python -m chaos.payer TASK`, as JSON.

It ends when all runs have."""

from __future__ import annotations

import asyncio
import sys

import msgspec
from msgspec import Struct

from batuta import Batuta, Retry, activity, connect, workflow
from batuta.errors import OutcomeUnknown
from batuta.resilience import breaker, partner_limit

A_SECOND = 40
RUNS = 150
PARTNER = breaker("partner", failures=4, open_for=0.4, growth=1.5, longest_open=1.5, probes=2, probe_lease=2, slow=2)
LIMIT = partner_limit("partner", rate=f"{A_SECOND}/s", longest_hold=1)


class Task(Struct):
    """What a process is to do."""

    url: str
    namespace: str
    port: int


class Refused(Exception):
    """The partner answered with an error."""

    def __init__(self, status: int, retry_after: str) -> None:
        super().__init__(f"{status}")
        self.status_code, self.headers = status, {"Retry-After": retry_after} if retry_after else {}


task: Task


@activity(gates=[PARTNER, LIMIT], timeout=1, retry=Retry(attempts=1_000, first=0.05, longest=0.3))
async def pay(order: str) -> str:
    """One line there, one line back: OK, or a status and a Retry-After."""
    reader, writer = await asyncio.open_connection("127.0.0.1", task.port)
    try:
        writer.write(f"{order}\n".encode())
        await writer.drain()
        status, _, wait = (await reader.readline()).decode().strip().partition(" ")
    finally:
        writer.close()
    if status == "OK":
        return order
    if not status:
        raise ConnectionResetError("the partner hung up")
    raise Refused(int(status), wait)


@workflow
async def pays(order: str) -> str:
    return await pay(order)


async def started(client: Batuta, id: str) -> None:
    while True:
        try:
            handle = await client.start(pays, id, id=id)
            break
        except OutcomeUnknown:
            continue
    await handle.result()


async def main() -> None:
    async with connect(task.url, namespace=task.namespace, migrate=False) as client:
        async with client.worker(workflows=[pays], activities=[pay], keep_in_memory=0.5):
            await asyncio.gather(*(started(client, f"order {number}") for number in range(RUNS)))


if __name__ == "__main__":
    task = msgspec.json.decode(sys.argv[1], type=Task)
    asyncio.run(main())
