"""W5 and W7: a hundred thousand runs asleep for an hour, what they cost, and what happens when all are due at once.

One process does both: making that many sleepers is what takes long. The hour is passed by moving the store's clock.
"""

import asyncio
import ctypes
import gc
import os
import resource
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final

from batuta import Batuta, now, workflow
from batuta.connect import store_for
from batuta.engine.backend.native import NativeBackend
from batuta.journal.records import Hint, RunFilter
from batuta.journal.states import RunState
from batuta.journal.store import Store
from bench.child import Figures, Task

FEW: Final = 5_000
ASLEEP_S: Final = 3_600
IDLE_S: Final = 6.0
AT_ONCE: Final = 2_000


@workflow
async def nap(seconds: float) -> bool:
    """Whether it woke up early."""
    due = now().timestamp() + seconds
    await asyncio.sleep(seconds)
    return now().timestamp() < due


class Counter:
    """Counts what a worker asks of its store: every verb is one transaction."""

    def __init__(self, store: Store) -> None:
        self.calls = 0
        for name in ("claim", "due_at", "unread", "load", "commit", "closed_among", "register", "now", "send", "start"):
            setattr(store, name, self._counted(getattr(store, name)))
        setattr(store, "heartbeat", self._counted_heart(store.heartbeat))  # noqa: B010 - a protocol's method is no attribute

    def _counted(self, verb: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return verb(*args, **kwargs)

        return call

    def _counted_heart(self, make: Callable[[str], AbstractAsyncContextManager[Any]]) -> Callable[[str], Any]:
        @asynccontextmanager
        async def opened(worker_id: str) -> Any:
            async with make(worker_id) as heartbeat:
                heartbeat.beat = self._counted(heartbeat.beat)
                yield heartbeat

        return opened


async def asleep(task: Task) -> Figures:
    """Memory by the slope between a few and `runs` sleepers; an idle worker's cost; then all timers at once."""
    store = store_for(task.url)
    counter = Counter(store)
    await store.migrate()
    async with Batuta(NativeBackend(store), store.open, store.close) as batuta, batuta.worker(workflows=[nap]):
        await put_to_sleep(batuta, store, 0, FEW)
        few = memory()
        await put_to_sleep(batuta, store, FEW, task.runs)
        figures = {"kb_per_run": (memory() - few) / (task.runs - FEW) / 1024}
        figures |= await idle(counter)
        figures |= await all_due(store, task.runs)
    return figures


async def put_to_sleep(batuta: Batuta, store: Store, first: int, last: int) -> None:
    for start in range(first, last, AT_ONCE):
        numbers = range(start, min(last, start + AT_ONCE))
        await asyncio.gather(*(batuta.start(nap, ASLEEP_S, id=f"nap-{number}") for number in numbers))
    await counted(store, last, RunState.WAITING)


async def counted(store: Store, runs: int, state: RunState) -> None:
    """Wait until so many runs are in that state."""
    while await store.count_runs(RunFilter(states=(state,))) < runs:
        await asyncio.sleep(0.05)


def memory() -> int:
    """Bytes in use, after giving back what is not."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def idle(counter: Counter) -> dict[str, float]:
    """What a worker with nothing to do costs."""
    await asyncio.sleep(1.0)
    asked, spent, begun = counter.calls, time.process_time(), time.monotonic()
    await asyncio.sleep(IDLE_S)
    took = time.monotonic() - begun
    return {
        "idle_core_percent": (time.process_time() - spent) / took * 100,
        "idle_statements_per_s": (counter.calls - asked) / took,
    }


class Ends:
    """Counts the ends of runs as the store tells of them: counting rows all the time would take a core."""

    def __init__(self, store: Store) -> None:
        self._seen, self._told = 0, asyncio.Event()
        store.listen(self._hear)

    def _hear(self, hint: Hint) -> None:
        self._seen += len(hint.closed or ())
        self._told.set()

    async def reached(self, runs: int) -> None:
        while self._seen < runs:
            self._told.clear()
            await self._told.wait()


async def all_due(store: Store, runs: int) -> dict[str, float]:
    """W7: from the first timer that fires to the end of the last run."""
    ends = Ends(store)
    store.shift_clock(ASLEEP_S + 1)
    await ends.reached(1)
    before = peak()
    begun = time.perf_counter()
    await ends.reached(runs)
    took = time.perf_counter() - begun
    await counted(store, runs, RunState.COMPLETED)
    early, twice = 0, 0
    for number in range(0, runs, max(1, runs // 2_000)):
        entries = await store.journal((await store.get(f"nap-{number}")).run_id)
        early += '"value":true' in entries[-1].body
        twice += sum(entry.kind.value == "timer_fired" for entry in entries) != 1
    return {
        "timers_per_s": runs / took,
        "growth_mb": (peak() - before) / 1024,
        "early": float(early),
        "not_once": float(twice),
    }


def peak() -> int:
    """The most memory that this process has had, in KB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
