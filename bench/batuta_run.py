"""The workloads on batuta: `python -m bench.batuta_run TASK`."""

import asyncio
import itertools
import statistics
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final, TypeVar

from batuta import Batuta, Workflow, activity, connect, workflow
from bench.child import Figures, Task, answer, latency, repeat, sample

WARM_UP_STEPS: Final = 200
WARM_UP_RUNS: Final = 200
R = TypeVar("R")
# New ones in each process: a database may serve several, and a taken id gives the run that has it.
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
async def timed_steps(count: int) -> float:
    """The seconds that its activities took. Reading a clock here is fine: nothing depends on it."""
    begun = time.perf_counter()
    for number in range(count):
        await step(number)
    return time.perf_counter() - begun


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
        async with batuta.worker(workflows=[steps, timed_steps, begin_and_end, sleeper], activities=[step]):
            yield batuta


async def outcome(batuta: Batuta, what: Workflow[..., R], *arguments: object) -> R:
    """Start a run and wait for its result."""
    handle = await batuta.start(what, *arguments, id=next(ids))
    return await handle.result()


async def sequential(task: Task) -> Figures:
    """W1: one workflow of many activities, timed inside the workflow; more of them until it lasted long enough."""
    async with engine(task.url) as batuta:
        await outcome(batuta, steps, WARM_UP_STEPS)
        spent: list[float] = []

        async def once() -> None:
            spent.append(await outcome(batuta, timed_steps, task.steps))

        times, _ = await repeat(task.seconds, once)
    return {"ms_per_step": sum(spent) * 1000 / (times * task.steps)}


async def throughput(task: Task) -> Figures:
    """W2: many workflows of a few activities, all started at once in one worker process."""
    async with engine(task.url) as batuta:

        async def burst(runs: int) -> None:
            await asyncio.gather(*(outcome(batuta, steps, task.steps) for _ in range(runs)))

        await burst(WARM_UP_RUNS)
        times, took = await repeat(task.seconds, lambda: burst(task.runs))
    return {"steps_per_s": times * task.runs * task.steps / took}


async def start_to_result(task: Task) -> Figures:
    """W3: one-activity workflows one after the other."""
    async with engine(task.url) as batuta:

        async def once() -> None:
            await outcome(batuta, steps, task.steps)

        await sample(0, WARM_UP_RUNS, once)
        samples = await sample(task.seconds, task.runs, once)
    return latency(samples)


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


if __name__ == "__main__":
    from bench.around import around
    from bench.asleep import asleep
    from bench.codec import codec
    from bench.health import health
    from bench.jobs import fairness, fairness_when_busy
    from bench.jobs import throughput as jobs
    from bench.kin import family, pairs
    from bench.kit import claim_month, demo_sweep
    from bench.letters import listed, reprocessed
    from bench.limited import limited
    from bench.once import exactly_once
    from bench.pruning import pruning
    from bench.several import shared
    from bench.slots import slots

    answer(
        {
            "W1": sequential,
            "W1-once": exactly_once,
            "W2": throughput,
            "W2-around": around,
            "W2-codec": codec,
            "W3": start_to_result,
            "W4": sleepers,
            "long": long_run,
            "fill": fill,
            "W5": asleep,
            "W9": jobs,
            "W10": fairness,
            "W10-busy": fairness_when_busy,
            "W11": limited,
            "health": health,
            "slots": slots,
            "letters": listed,
            "reprocess": reprocessed,
            "W12": family,
            "W13": pairs,
            "W14": pruning,
            "K1": demo_sweep,
            "K2": claim_month,
            "W8-1": shared,
            "W8-2": shared,
            "W8-4": shared,
        }
    )
