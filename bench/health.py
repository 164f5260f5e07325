"""Queue health: do claims stay fast while somebody holds a snapshot open, so that PostgreSQL can clean nothing up?"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Final

from batuta import Batuta, connect, job
from batuta.connect import store_for
from batuta.engine.backend.native import NativeBackend
from batuta.journal.store import Store
from bench.child import Countdown, Figures, Task, percentile

JOBS_PER_S: Final = 200
AT_ONCE: Final = 2_000
OPEN: Final = ("pending", "running", "waiting")
DEAD: Final = "SELECT coalesce(sum(n_dead_tup), 0) FROM pg_stat_user_tables WHERE schemaname = 'batuta'"

countdown = Countdown()


@job(result=False)
async def trivial(number: int) -> None:
    countdown.one()


class Watch:
    """Takes the time of every claim of a store."""

    def __init__(self, store: Store) -> None:
        self.took: list[float] = []
        self._claim: Callable[..., Any] = store.claim
        setattr(store, "claim", self._timed)  # noqa: B010 - a protocol's method is no attribute

    async def _timed(self, *args: Any, **kwargs: Any) -> Any:
        begun = time.perf_counter()
        try:
            return await self._claim(*args, **kwargs)
        finally:
            self.took.append((time.perf_counter() - begun) * 1000)


async def health(task: Task) -> Figures:
    """200 jobs a second for some seconds; then a snapshot is opened, `runs` jobs go through as fast as they can (what
    would come in minutes), and the same seconds again."""
    store = store_for(task.url)
    watch = Watch(store)
    await store.migrate()
    worker = Batuta(NativeBackend(store), store.open, store.close)
    async with worker, worker.worker(jobs=[trivial]), connect(task.url) as client:
        await pump(client, AT_ONCE)
        before = await flow(client, watch, task.seconds)
        async with snapshot(task.url) as database:
            await pump(client, task.runs)
            during = await flow(client, watch, task.seconds * task.steps)
            dead = float(await database.fetchval(DEAD))
    return {
        "before_p99_ms": percentile(before, 0.99),
        "during_p99_ms": percentile(during, 0.99),
        "during_over_before": percentile(during, 0.99) / percentile(before, 0.99),
        "claims": len(during),
        "dead_tuples": dead,
    }


async def pump(client: Batuta, jobs: int) -> None:
    for first in range(0, jobs, AT_ONCE):
        countdown.begin(AT_ONCE)
        await client.enqueue_many([trivial.call(number) for number in range(first, first + AT_ONCE)])
        await countdown.wait()
    while await client.count(kind="job", states=OPEN):
        await asyncio.sleep(0.01)


async def flow(client: Batuta, watch: Watch, seconds: float) -> list[float]:
    """Enqueue at a steady rate, from a client that is no worker; the ms of each claim meanwhile."""
    watch.took.clear()
    begun = time.perf_counter()
    enqueued: set[asyncio.Task[Any]] = set()
    for number in range(round(seconds * JOBS_PER_S)):
        await asyncio.sleep(begun + number / JOBS_PER_S - time.perf_counter())
        one = asyncio.create_task(client.enqueue(trivial, number))
        enqueued.add(one)
        one.add_done_callback(enqueued.discard)
    await asyncio.gather(*enqueued)
    return watch.took.copy()


@asynccontextmanager
async def snapshot(url: str) -> AsyncIterator[Any]:
    """A snapshot that sees everything as it is now, held open by one connection; gives another one to ask."""
    import asyncpg

    holder, other = await asyncpg.connect(url), await asyncpg.connect(url)
    try:
        async with holder.transaction(isolation="repeatable_read"):
            await holder.fetchval("SELECT count(*) FROM batuta.runs")
            yield other
    finally:
        await holder.close()
        await other.close()
