"""Dead letters: what a page of a hundred thousand costs, first and last, and reprocessing many at a rate."""

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from batuta import Batuta, Retry, connect, job
from batuta.connect import store_for
from batuta.ids import new_run_id, new_worker_id
from batuta.journal.dead_letters import LetterFilter
from batuta.journal.entries import Body, EntryKind, encode_entry
from batuta.journal.records import (
    Change,
    Effects,
    LetterReason,
    Move,
    NewLetter,
    NewRun,
    RunFilter,
    RunKind,
    WorkerInfo,
)
from batuta.journal.states import RunState
from batuta.journal.store import Store
from bench.child import Figures, Task, percentile

BATCH: Final = 500
LANES: Final = 2
"""Commits under way at once, where the store has them: on PostgreSQL they use both cores."""
PAGE: Final = 50
KINDS: Final = 5_000
"""Groups. One of them has half of all letters."""


async def listed(task: Task) -> Figures:
    """`runs` dead letters: all pages of the list, of the largest group and of the groups, from first to last."""
    store = store_for(task.url)
    await store.migrate()
    await store.open()
    try:
        begun = time.perf_counter()
        await fill(store, given_up, task.runs)
        took = time.perf_counter() - begun
        figures: dict[str, float] = {"made_per_s": task.runs / took}
        asked: dict[str, Callable[[str | None], Awaitable[Any]]] = {
            "list": lambda cursor: store.letters(LetterFilter(), cursor, PAGE),
            "alike": lambda cursor: store.letters(LetterFilter(fingerprint=kind_of(0)), cursor, PAGE),
            "groups": lambda cursor: store.letter_groups(LetterFilter(), cursor, PAGE),
            "named": lambda cursor: store.letter_groups(
                LetterFilter(name="flow", reason=LetterReason.EXHAUSTED), cursor, PAGE
            ),
        }
        for name, ask in asked.items():
            figures |= judged(name, await turn_pages(ask))
        return figures
    finally:
        await store.close()


def kind_of(number: int) -> str:
    return f"kind-{0 if number % 2 == 0 else number % KINDS:05}"


async def fill(store: Store, make: Callable[[int], Change], count: int) -> None:
    """Each begins and is given up in one change, as the worker of a run would have it."""
    worker = WorkerInfo(worker_id=new_worker_id(), queues=["default"], code={"flow": "1"}, lease=3_600_000_000)
    await store.register(worker)
    firsts = iter(range(0, count, BATCH))

    async def lane() -> None:
        for first in firsts:
            numbers = range(first, min(count, first + BATCH))
            await store.commit(worker.worker_id, [make(number) for number in numbers])

    await asyncio.gather(*(lane() for _ in range(LANES)))
    await store.retire(worker.worker_id)


def given_up(number: int) -> Change:
    new = NewRun(run_id=new_run_id(), id=f"run-{number}", name="flow", code="flow")
    letter = NewLetter(
        reason=LetterReason.EXHAUSTED,
        error="ConnectionError",
        message=f"no answer from {number}: " + "x" * 200,
        fingerprint=kind_of(number),
        activity="charge",
        seq=1,
        attempts=5,
        keep=0,
    )
    entry = encode_entry(0, EntryKind.STARTED, 1, Body(), 0)
    return Change(new.run_id, 1, -1, [entry], start=new, move=Move(RunState.FAILED), effects=Effects(letter=letter))


async def turn_pages(ask: Callable[[str | None], Awaitable[Any]]) -> Sequence[float]:
    """The milliseconds of each page."""
    cursor: str | None = None
    spent: list[float] = []
    while True:
        begun = time.perf_counter()
        page = await ask(cursor)
        spent.append((time.perf_counter() - begun) * 1000)
        cursor = page.cursor
        if cursor is None:
            return spent


def judged(name: str, spent: Sequence[float]) -> Figures:
    quarter = len(spent) // 4 + 1
    first, last = percentile(spent[1 : quarter + 1], 0.5), percentile(spent[-quarter:], 0.5)
    return {f"{name}_p99_ms": percentile(spent, 0.99), f"{name}_end_over_begin": last / first}


# -- reprocessing

RATE: Final = 500
KILLED_AFTER: Final = 0.4
"""Of the time that all of it takes."""


async def reprocessed(task: Task) -> Figures:
    """`runs` dead letters of jobs, reprocessed at a rate by a process that is killed on its way, and by another one:
    how well the rate was held, and how many were not begun anew once."""
    store = store_for(task.url)
    async with connect(task.url) as batuta:
        await store.open()
        await give_one_up(batuta)
        await fill(store, await copies(store), task.runs - 1)
        before = (await batuta.dead_letters.list(limit=1)).letters[0].at + timedelta(milliseconds=1)
        first = await asyncio.create_subprocess_exec(*command(task.url, before))
        await asyncio.sleep(KILLED_AFTER * task.runs / RATE)
        first.kill()
        await first.wait()
        left = await batuta.dead_letters.count(before=before)
        begun = time.perf_counter()
        done = await batuta.dead_letters.reprocess(before=before, rate=RATE)
        took = time.perf_counter() - begun
        wrong = await not_once(store, task.runs)
        await store.close()
    return {"left_by_the_killed": left, "rate_over_asked": done.reprocessed / took / RATE, "not_once": wrong}


def command(url: str, before: datetime) -> list[str]:
    words = ["dead-letters", "reprocess", "--url", url, "--until", before.isoformat(), "--rate", str(RATE), "--yes"]
    return [sys.executable, "-m", "batuta", *words]


@job(retry=Retry(attempts=1))
async def send(number: int) -> None:
    raise ConnectionError(f"no mail for {number}")


async def give_one_up(batuta: Batuta) -> None:
    async with batuta.worker(jobs=[send]):
        await batuta.enqueue(send, 1)
        while not await batuta.dead_letters.count():
            await asyncio.sleep(0.01)


async def copies(store: Store) -> Callable[[int], Change]:
    """What makes more of the one that is there, with its journal: executing each would only take longer."""
    (run,) = (await store.list_runs(RunFilter(kind=RunKind.JOB), None, 2)).runs
    (letter,) = (await store.letters(LetterFilter(), None, 2)).letters
    entries = await store.journal(run.run_id)
    about = NewLetter(**{name: getattr(letter, name) for name in NewLetter.__struct_fields__})

    def copy(number: int) -> Change:
        new = NewRun(run_id=new_run_id(), id=f"job-{number}", name=run.name, kind=run.kind, code=run.code)
        effects = Effects(letter=about)
        return Change(new.run_id, 1, -1, entries, start=new, move=Move(RunState.FAILED), effects=effects)

    return copy


async def not_once(store: Store, count: int) -> int:
    """Letters whose run has not exactly one that was forked from it."""
    sources: Counter[object] = Counter()
    cursor: str | None = None
    while True:
        page = await store.list_runs(RunFilter(kind=RunKind.JOB), cursor, 1_000)
        sources.update(run.forked_from for run in page.runs if run.forked_from is not None)
        cursor = page.cursor
        if cursor is None:
            return abs(count - len(sources)) + sum(times != 1 for times in sources.values())
