"""W1 and W3 with the bare commit beside them: blocks of each in turns, so that a disk that changes from one second to
the next harms both alike. Neighbours tell what ours costs over a bare commit; the median of all pairs counts.

The bare commit is that of `limits`: the same statement, driver and event loop, on a connection and in a table (on
SQLite in a file) of its own. The worker has nothing to do while it has its turn. The first ones of a block are not
counted, on both sides: they pay for what the other left in the processor's caches."""

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from itertools import chain
from typing import Final

from batuta import activity, connect, workflow
from bench.batuta_run import WARM_UP_RUNS, WARM_UP_STEPS, outcome, step, steps
from bench.child import Figures, Task, latency, repeat, sample
from bench.limits import WARM_UP, Rows, Write, bare

COMMITS: Final = 50
STEPS: Final = 50
RUNS: Final = 20
LEAD: Final = 5
"""Not counted, before those of a block."""

Blocks = list[list[float]]
"""Milliseconds."""


class Bare:
    """The bare commits."""

    def __init__(self, write: Write) -> None:
        self._write, self._rows = write, Rows()
        self._blocks: Blocks = []

    async def warm_up(self) -> None:
        await sample(0, WARM_UP, self._commit)

    async def block(self) -> None:
        self._blocks.append((await sample(0, LEAD + COMMITS, self._commit))[LEAD:])

    @activity
    async def turn(self) -> None:
        """A block, to which a workflow gives its turn."""
        await self.block()

    def take(self) -> Blocks:
        """The blocks since it was asked for them before."""
        taken, self._blocks = self._blocks, []
        return taken

    async def _commit(self) -> None:
        await self._write(self._rows.take(1))


@workflow
async def in_blocks(count: int) -> list[float]:
    """The mean ms of an activity, block by block. Before each block it waits while the bare commit has its turn."""
    means: list[float] = []
    for _ in range(count // STEPS):
        await Bare.turn()
        for number in range(LEAD):
            await step(number)
        begun = time.perf_counter()
        for number in range(STEPS):
            await step(number)
        means.append((time.perf_counter() - begun) * 1000 / STEPS)
    return means


async def beside(task: Task) -> Figures:
    """W1, workflows of `steps` activities; then W3, at least `runs` of them. Each for `seconds`."""
    apart = f"{task.url}.bare" if task.url.startswith("sqlite") else task.url
    async with AsyncExitStack() as stack:
        commits = Bare(await stack.enter_async_context(bare(apart)))
        batuta = await stack.enter_async_context(connect(task.url))
        await stack.enter_async_context(batuta.worker(workflows=[in_blocks, steps], activities=[step, commits]))
        await commits.warm_up()
        await outcome(batuta, steps, WARM_UP_STEPS)
        means: list[float] = []

        async def one_after_another() -> None:
            found = await outcome(batuta, in_blocks, task.steps)
            means.extend(found)

        await repeat(task.seconds, one_after_another)
        figures = _named("W1", {"ms_per_step": statistics.fmean(means)}, [[mean] for mean in means], commits.take())

        async def start_to_result() -> None:
            await outcome(batuta, steps, 1)

        await sample(0, WARM_UP_RUNS, start_to_result)
        spent: Blocks = []
        end = time.perf_counter() + task.seconds
        while len(spent) * RUNS < task.runs or time.perf_counter() < end:
            await commits.block()
            spent.append((await sample(0, LEAD + RUNS, start_to_result))[LEAD:])
        return figures | _named("W3", latency(_all(spent)), spent, commits.take())


def _named(workload: str, ours: Figures, blocks: Blocks, commits: Blocks) -> dict[str, float]:
    """W1 is a mean and compared by means, W3 is a median and compared by medians."""
    middle: Callable[[Sequence[float]], float] = statistics.fmean if workload == "W1" else statistics.median
    ratios = (middle(block) / middle(commit) for block, commit in zip(blocks, commits, strict=True))
    bare_ = {"ms_per_step": statistics.fmean(_all(commits)), **latency(_all(commits))}
    ours = {**ours, "over_commit": statistics.median(ratios)}
    named = {f"{workload}/batuta/{name}": value for name, value in ours.items()}
    return named | {f"{workload}/limit/{name}": value for name, value in bare_.items()}


def _all(blocks: Blocks) -> list[float]:
    return list(chain.from_iterable(blocks))
