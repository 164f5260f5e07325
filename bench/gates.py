"""W2-gates: W2 with a breaker and a limit before each activity, against W2 without, in turns; and runs that wait for a
breaker."""

import asyncio
import gc
import resource
import statistics
import time
from bisect import bisect_left
from contextlib import AsyncExitStack
from typing import Final

from batuta import Batuta, Workflow, activity, connect, workflow
from batuta.resilience import breaker, partner_limit
from bench.batuta_run import WARM_UP_RUNS, outcome, step, steps
from bench.child import Figures, Task

BURST: Final = 200
HELD: Final = 5_000
PARTNER = breaker("partner")
LIMIT = partner_limit("partner", rate="1000000/s")
A_SECOND: Final = 1_000
HOLDING = breaker("holding")
FEW = partner_limit("few", rate=f"{A_SECOND}/s")
visited: list[float] = []


@activity(gates=[PARTNER, LIMIT])
async def gated_step(number: int) -> int:
    return number + 1


@workflow
async def gated_steps(count: int) -> int:
    for number in range(count):
        await gated_step(number)
    return count


@activity(gates=[HOLDING, FEW])
async def visit() -> None:
    visited.append(time.time())


@workflow
async def visits() -> None:
    await visit()


async def gates(task: Task) -> Figures:
    """Short bursts of each in turns, so that the noise of the machine hits both alike."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(task.url))
        await stack.enter_async_context(
            client.worker(workflows=[steps, gated_steps, visits], activities=[step, gated_step, visit])
        )
        for kind in (steps, gated_steps):
            await _burst(client, kind, WARM_UP_RUNS, task.steps)
        off: list[float] = []
        on: list[float] = []
        end = time.perf_counter() + task.seconds
        while time.perf_counter() < end or len(off) < 5:
            off.append(await _burst(client, steps, BURST, task.steps))
            on.append(await _burst(client, gated_steps, BURST, task.steps))
        figures = await _held(client)
    ratio = statistics.median(before / after for before, after in zip(off, on, strict=True))
    count = BURST * task.steps
    rates = {"off_steps_per_s": count / statistics.median(off), "on_steps_per_s": count / statistics.median(on)}
    return {**figures, **rates, "on_over_off": ratio}


async def _burst(client: Batuta, kind: Workflow[..., int], runs: int, count: int) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(outcome(client, kind, count) for _ in range(runs)))
    return time.perf_counter() - begun


async def _held(client: Batuta) -> Figures:
    """Runs behind an open breaker: what they cost in memory, and how long they take once it closes, over how long the
    partner's limit makes them take."""
    await outcome(client, visits)
    await client.breakers.open("holding", "benchmark")
    await asyncio.sleep(0.5)
    gc.collect()
    before = _resident()
    handles = [await client.start(visits) for _ in range(HELD)]
    await asyncio.sleep(0.5)
    gc.collect()
    grown = _resident() - before
    begun = time.perf_counter()
    await client.breakers.close("holding", "benchmark")
    await asyncio.gather(*(handle.result() for handle in handles))
    took = time.perf_counter() - begun
    times = sorted(visited)
    most = max(bisect_left(times, at + 1) - number for number, at in enumerate(times))
    return {
        "held_bytes": max(0, grown) / HELD,
        "released_over_limit": took / (HELD / A_SECOND),
        "over_the_limit": max(0, most - A_SECOND),
    }


def _resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize()
