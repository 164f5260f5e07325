"""W14: finished runs are pruned while W2 runs, in the process that W2 runs in."""

import asyncio
import time
from typing import Final

from batuta import connect
from batuta.connect import store_for
from batuta.engine.worker.pruner import steps as prunings
from batuta.journal.records import RunFilter
from batuta.journal.retention import Retention
from batuta.journal.store import Store
from batuta.settings import Settings
from bench.batuta_run import WARM_UP_RUNS, outcome, step, steps
from bench.child import Figures, Task

KEEP_S: Final = 3_600
"""The finished runs are a day old, those of W2 some seconds."""
ALONE_S: Final = 1.0
BESIDE_S: Final = 2.0


class Pruning:
    """What a worker's pruner does, but for the pauses that one asks for."""

    def __init__(self, store: Store) -> None:
        self._store, self._may = store, asyncio.Event()
        self.deleted, self.longest = 0, 0.0
        self.task = asyncio.ensure_future(self._prune())

    async def _prune(self) -> None:
        await self._may.wait()
        async for done in prunings(self._store, Settings().prune_share):
            self.deleted, self.longest = self.deleted + done.deleted, max(self.longest, done.busy)
            await self._may.wait()

    def go_on(self) -> None:
        self._may.set()

    def rest(self) -> None:
        self._may.clear()


async def pruning(task: Task) -> Figures:
    """W2 alone and beside pruning, by turns: the machine changes meanwhile. For `seconds`, or (0) until all are gone.

    `kept_share` is what of its rate W2 keeps. `longest_ms`: of a step.
    """
    store = store_for(task.url)
    await store.open()
    await store.set_retention(Retention(KEEP_S))
    async with connect(task.url) as batuta:
        async with batuta.worker(workflows=[steps], activities=[step], prune_every=86_400.0):

            async def burst(runs: int) -> None:
                await asyncio.gather(*(outcome(batuta, steps, task.steps) for _ in range(runs)))

            async def bursts(seconds: float) -> tuple[int, float]:
                times, begun = 0, time.perf_counter()
                while (took := time.perf_counter() - begun) < seconds:
                    await burst(task.runs)
                    times += 1
                return times, took

            await burst(WARM_UP_RUNS)
            pruner = Pruning(store)
            alone, beside = [0, 0.0], [0, 0.0]
            while not pruner.task.done() and not 0 < task.seconds <= alone[1] + beside[1]:
                for rates, seconds, turn in ((alone, ALONE_S, pruner.rest), (beside, BESIDE_S, pruner.go_on)):
                    turn()
                    times, took = await bursts(seconds)
                    rates[0], rates[1] = rates[0] + times, rates[1] + took
            pruner.task.cancel()
    left = await store.count_runs(RunFilter(id_prefix="old-"))
    each = task.runs * task.steps
    return {
        "steps_per_s": beside[0] * each / beside[1],
        "alone_steps_per_s": alone[0] * each / alone[1],
        "kept_share": beside[0] / beside[1] / (alone[0] / alone[1]),
        "pruned_per_s": pruner.deleted / beside[1],
        "longest_ms": pruner.longest * 1_000,
        "left": float(left),
    }
