"""The workloads on batuta: `python -m bench.batuta_run TASK`."""

import asyncio
import importlib
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from batuta import Batuta, Workflow, activity, connect, workflow
from bench.child import Figures, Measure, Task, answer, repeat

WARM_UP_STEPS: Final = 200
WARM_UP_RUNS: Final = 200
R = TypeVar("R")
# For those that give ids. New ones in each process: one database may serve several, and a taken id gives its run.
ids = (f"bench-{time.time_ns()}-{number}" for number in itertools.count())


@activity
async def step(number: int) -> int:
    return number + 1


@workflow
async def steps(count: int) -> int:
    for number in range(count):
        await step(number)
    return count


@workflow
async def begin_and_end(count: int) -> tuple[float, float]:
    """The median seconds of an activity in the first and in the last quarter."""
    spent: list[float] = []
    for number in range(count):
        begun = time.perf_counter()
        await step(number)
        spent.append(time.perf_counter() - begun)
    return statistics.median(spent[: count // 4]), statistics.median(spent[-count // 4 :])


@workflow
async def sleeper(seconds: float) -> None:
    await asyncio.sleep(seconds)


@asynccontextmanager
async def engine(url: str) -> AsyncIterator[Batuta]:
    async with connect(url) as batuta:
        async with batuta.worker(workflows=[steps, begin_and_end, sleeper], activities=[step]):
            yield batuta


async def outcome(batuta: Batuta, what: Workflow[..., R], *arguments: object) -> R:
    """Start a run and wait for its result. Its id is made for it, as it is with the peers."""
    handle = await batuta.start(what, *arguments)
    return await handle.result()


async def throughput(task: Task) -> Figures:
    """W2: many workflows of a few activities, all started at once in one worker process."""
    async with engine(task.url) as batuta:

        async def burst(runs: int) -> None:
            await asyncio.gather(*(outcome(batuta, steps, task.steps) for _ in range(runs)))

        await burst(WARM_UP_RUNS)
        times, took = await repeat(task.seconds, lambda: burst(task.runs))
    return {"steps_per_s": times * task.runs * task.steps / took}


async def sleepers(task: Task) -> Figures:
    """W4: workflows that sleep 1 s, from the first start to the last end."""
    async with engine(task.url) as batuta:
        await outcome(batuta, sleeper, 0.001)
        begun = time.perf_counter()
        await asyncio.gather(*(outcome(batuta, sleeper, 1.0) for _ in range(task.runs)))
        took = time.perf_counter() - begun
    return {"wall_s": took}


async def long_run(task: Task) -> Figures:
    """One workflow of very many activities: what one costs in the last quarter over what it costs in the first."""
    async with engine(task.url) as batuta:
        await outcome(batuta, steps, WARM_UP_STEPS)
        begin, end = await outcome(batuta, begin_and_end, task.steps)
    return {"begin_ms_per_step": begin * 1000, "end_ms_per_step": end * 1000, "end_over_begin": end / begin}


async def fill(task: Task) -> Figures:
    """Just run them, each once."""
    async with engine(task.url) as batuta:
        for _ in range(task.runs):
            await outcome(batuta, steps, task.steps)
    return {}


ELSEWHERE: Final = {
    "beside": "bench.beside:beside",
    "W1-once": "bench.once:exactly_once",
    "W2-around": "bench.around:around",
    "W2-codec": "bench.codec:codec",
    "W2-served": "bench.served:served",
    "bridge": "bench.bridge:bridge",
    "bus": "bench.bus:bus",
    "cache": "bench.cache:cache",
    "keys": "bench.keys:keys",
    "idempotent": "bench.idempotent:idempotent",
    "W2-gates": "bench.gates:gates",
    "W5": "bench.asleep:asleep",
    "W8-1": "bench.several:shared",
    "W8-2": "bench.several:shared",
    "W8-4": "bench.several:shared",
    "W9": "bench.jobs:throughput",
    "W10": "bench.jobs:fairness",
    "W10-busy": "bench.jobs:fairness_when_busy",
    "W11": "bench.limited:limited",
    "W12": "bench.kin:family",
    "W13": "bench.kin:pairs",
    "W14": "bench.pruning:pruning",
    "health": "bench.health:health",
    "slots": "bench.slots:slots",
    "letters": "bench.letters:listed",
    "reprocess": "bench.letters:reprocessed",
    "K1": "bench.kit:demo_sweep",
    "K2": "bench.kit:claim_month",
    "K3": "bench.monitor:monitor_day",
}
"""Imported only where they are measured: all of them together take half a second, a hundred times."""


def elsewhere(where: str) -> Measure:
    """What is measured in another module."""

    async def measure(task: Task) -> Figures:
        module, _, name = where.partition(":")
        found: Measure = getattr(importlib.import_module(module), name)
        return await found(task)

    return measure


if __name__ == "__main__":
    here = {"W2": throughput, "W4": sleepers, "long": long_run, "fill": fill}
    answer({name: elsewhere(where) for name, where in ELSEWHERE.items()} | here)
