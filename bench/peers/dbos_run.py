# mypy: disable-error-code="import-not-found,untyped-decorator"
# DBOS is installed in the peer's environment only.
"""The workloads on DBOS: `python -m bench.peers.dbos_run TASK`, in the peer's environment."""

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from dbos import DBOS

from bench.child import Figures, Task, answer, latency, repeat, sample
from bench.peers.dbos_app import launch

AT_A_TIME: Final = 8
WARM_UP: Final = 40


@DBOS.step()
def step(number: int) -> int:
    return number + 1


@DBOS.workflow()
def steps(count: int) -> int:
    for number in range(count):
        step(number)
    return count


@DBOS.workflow()
def timed_steps(count: int) -> float:
    begun = time.perf_counter()
    for number in range(count):
        step(number)
    return time.perf_counter() - begun


@DBOS.workflow()
async def sleeper(seconds: float) -> None:
    await DBOS.sleep_async(seconds)


async def throughput(task: Task) -> Figures:
    """W2: many workflows of a few steps, as many at a time as is fastest."""
    launch(task.url)
    pool = ThreadPoolExecutor(AT_A_TIME)

    def all_of_them(runs: int) -> None:
        list(pool.map(steps, [task.steps] * runs))

    await asyncio.to_thread(all_of_them, WARM_UP)
    times, took = await repeat(task.seconds, lambda: asyncio.to_thread(all_of_them, task.runs))
    return {"steps_per_s": times * task.runs * task.steps / took}


async def one_by_one(task: Task) -> Figures:
    """W1: one workflow of many steps, timed inside the workflow. Then W3: one-step workflows one after the other, by
    direct call (the quickest way it offers)."""
    launch(task.url)
    await asyncio.to_thread(steps, WARM_UP)
    took = await asyncio.to_thread(timed_steps, task.steps)

    async def once() -> None:
        steps(1)

    await sample(0, WARM_UP, once)
    found = latency(await sample(0, task.runs, once))
    return {"W1/dbos/ms_per_step": took * 1000 / task.steps} | {f"W3/dbos/{name}": ms for name, ms in found.items()}


async def sleepers(task: Task) -> Figures:
    """W4: workflows that sleep 1 s, from the first start to the last end."""
    launch(task.url)
    await sleeper(0.001)

    async def one() -> None:
        handle = await DBOS.start_workflow_async(sleeper, 1.0)
        await handle.get_result()

    begun = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(task.runs)))
    return {"wall_s": time.perf_counter() - begun}


if __name__ == "__main__":
    answer({"one_by_one": one_by_one, "W2": throughput, "W4": sleepers})
