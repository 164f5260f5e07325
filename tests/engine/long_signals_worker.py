"""A worker in a process of its own whose run is sent long signals:
`python -m tests.engine.long_signals_worker URL NAME`.

It prints the run's result, and how much the memory of the process grew at most, in megabytes."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from batuta import Signal, connect, workflow

long = Signal("long", str)


@workflow
async def counts(count: int) -> int:
    size = 0
    for _ in range(count):
        size += len(await long.wait())
    return size


@workflow
async def leaves_them(count: int) -> int:
    """Ends with as many unread signals as there are."""
    return count


@workflow
async def idle() -> None:
    return None


def peak() -> float:
    """Megabytes that this process has had in memory at most."""
    [line] = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
    return int(line.split()[1]) / 1024


async def main(url: str, name: str) -> None:
    flow = {flow.name: flow for flow in (counts, leaves_them)}[name]
    async with connect(url) as client:
        async with client.worker(workflows=[idle]):
            await (await client.start(idle)).result(60)
        before = peak()
        async with client.worker(workflows=[flow]):
            result = await (await client.get("long", flow)).result(600)
        print(result, round(peak() - before, 1))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
