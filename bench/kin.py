"""W12 and W13: a parent with very many children, and pairs of runs that send each other signals."""

import asyncio
import itertools
import time
from typing import Any

from batuta import Signal, connect, run_child, send, workflow
from bench.asleep import peak
from bench.batuta_run import WARM_UP_RUNS, step, steps
from bench.child import Figures, Task

ball = Signal("ball", tuple[int, int])
ids = (f"kin-{time.time_ns()}-{number}" for number in itertools.count())


@workflow
async def parent(children: int, activities: int) -> int:
    return len(await asyncio.gather(*(run_child(steps, activities) for _ in range(children))))


@workflow
async def player(opponent: str, balls: int, begins: bool) -> list[int]:
    """Sends so many and receives so many; gives what it received, in order."""
    received: list[int] = []
    for number in range(balls):
        if begins:
            await send(opponent, ball, (number, balls))
        got, _ = await ball.wait()
        received.append(got)
        if not begins:
            await send(opponent, ball, (number, balls))
    return received


async def family(task: Task) -> Figures:
    """W12: from the parent's start to its end, and the memory that parent and children took at most."""
    async with connect(task.url) as batuta, batuta.worker(workflows=[parent, steps], activities=[step]):
        await (await batuta.start(parent, WARM_UP_RUNS, task.steps, id=next(ids))).result()
        before, begun = peak(), time.perf_counter()
        await (await batuta.start(parent, task.runs, task.steps, id=next(ids))).result()
        took = time.perf_counter() - begun
    return {"children_per_s": task.runs / took, "growth_mb": (peak() - before) / 1024}


async def pairs(task: Task) -> Figures:
    """W13: messages a second, from the first start to the last end; each was received once, in order."""
    async with connect(task.url) as batuta, batuta.worker(workflows=[player]):
        begun = time.perf_counter()
        handles: list[Any] = []
        for _ in range(task.runs // 2):
            one, other = next(ids), next(ids)
            handles.append(await batuta.start(player, one, task.steps, False, id=other))
            handles.append(await batuta.start(player, other, task.steps, True, id=one))
        results = await asyncio.gather(*(handle.result() for handle in handles))
        took = time.perf_counter() - begun
    wrong = sum(received != list(range(task.steps)) for received in results)
    return {"messages_per_s": task.runs * task.steps / took, "not_once_in_order": wrong}
