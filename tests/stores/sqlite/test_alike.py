"""Rows of a batch that have most of their values in common."""

from __future__ import annotations

import sqlite3
from collections import Counter

import pytest

from batuta.errors import BadData
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.records import NewRun, Verdict, WorkerInfo
from batuta.stores.sqlite.database import schema
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.fast.multi_row import _SIZES, _shared, _widened
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import Pen, live_worker, new_run
from batuta.testing.conformance.operators.deleting import DONE

KEY = "SEARCH runs USING INDEX sqlite_autoindex_runs_1 (namespace=? AND run_id=?)"


UPDATES = ("advance", "finish", "close")
WIDENED = [_widened(Q[name], size) for name in (*UPDATES, "evict", "hand_back") for size in _SIZES]
ALIKE = [_shared(Q[name], size, 1) for name in UPDATES for size in _SIZES]


@pytest.mark.parametrize("counted", [None, 700, 1_000, 5_000, 1_000_000])
def test_each_of_many_is_found_by_its_key_also_where_somebody_has_analysed(counted: int | None) -> None:
    file = sqlite3.connect(":memory:")
    schema.migrate(file.cursor(), 0)
    if counted is not None:
        file.execute("ANALYZE")
        row = ("runs", "sqlite_autoindex_runs_1", f"{counted} {counted} 1")
        file.execute("INSERT INTO sqlite_stat1 VALUES (?, ?, ?)", row)
        file.execute("ANALYZE sqlite_schema")
    for statement in WIDENED + ALIKE:
        steps = [row[3] for row in file.execute(f"EXPLAIN QUERY PLAN {statement}", [None] * statement.count("?"))]
        assert [step for step in steps if " runs" in step] == [KEY]


async def begun(store: SqliteStore, worker: WorkerInfo, runs: list[NewRun]) -> list[Pen]:
    """Runs that were all started by one commit."""
    pens = [Pen(run.run_id, epoch=1) for run in runs]
    changes = [pen.change(start=run) for pen, run in zip(pens, runs, strict=True)]
    assert await store.commit(worker.worker_id, changes) == {}
    for pen, change in zip(pens, changes, strict=True):
        pen.wrote(change)
    return pens


async def written(store: SqliteStore, worker: WorkerInfo, pens: list[Pen], **parts: object) -> None:
    changes = [pen.change(1 + number % 5 % 3, **parts) for number, pen in enumerate(pens)]  # type: ignore[arg-type]
    assert await store.commit(worker.worker_id, changes) == {}
    for pen, change in zip(pens, changes, strict=True):
        pen.wrote(change)


@pytest.mark.parametrize("count", [2, 5, 63, 64, 300])
async def test_runs_at_many_places_are_written_together_as_each_alone(store: SqliteStore, count: int) -> None:
    worker = await live_worker(store)
    runs = [new_run(priority=number % 7 % 4, tags=f'{{"n":"{number % 3}"}}') for number in range(count)]
    pens = await begun(store, worker, runs)
    for _ in range(3):
        await written(store, worker, pens)
    await written(store, worker, pens, move=DONE)
    for pen, run in zip(pens, runs, strict=True):
        found = await store.get_run(pen.run_id)
        assert (found.id, found.priority, found.tags, found.head) == (run.id, run.priority, run.tags, pen.head)
        assert found.chain_id == run.run_id
        entries = await store.journal(pen.run_id)
        assert [entry.ord for entry in entries] == list(range(pen.head + 1))
        assert entries[-1] == pen.last


async def test_of_many_each_has_its_own_fence(store: SqliteStore) -> None:
    worker = await live_worker(store)
    pens = await begun(store, worker, [new_run() for _ in range(150)])
    await written(store, worker, pens)
    changes = [pen.change() for pen in pens]
    changes[17].head += 1
    changes[80].epoch += 1
    changes[149].epoch -= 1
    answers = await store.commit(worker.worker_id, changes)
    assert answers == {17: Verdict.REFUSED, 80: Verdict.REFUSED, 149: Verdict.REFUSED}
    for number, pen in enumerate(pens):
        entries = await store.journal(pen.run_id)
        assert len(entries) == pen.head + (1 if number in answers else 2)
        assert (await store.get_run(pen.run_id)).head == len(entries) - 1


async def test_a_batch_that_fails_half_way_leaves_nothing_behind(store: SqliteStore) -> None:
    worker = await live_worker(store)
    pens = await begun(store, worker, [new_run() for _ in range(150)])
    bad: list[Entry] = [
        Entry(1, EntryKind.ACTIVITY_DONE, 5, 5, None),  # type: ignore[arg-type]  # what must never come
        Entry(0, EntryKind.ACTIVITY_DONE, 5, 5, "an ord that is taken"),
    ]
    for entry in bad:
        changes = [pen.change() for pen in pens]
        changes[100].entries = [entry]
        with pytest.raises(BadData):
            await store.commit(worker.worker_id, changes)
        lengths = Counter([len(await store.journal(pen.run_id)) for pen in pens])
        assert lengths == {1: 150}
    await written(store, worker, pens)


async def test_runs_that_are_enqueued_together_are_due_in_their_order(store: SqliteStore) -> None:
    runs = [new_run(memo=str(number % 3)) for number in range(40)]
    await store.start_many(runs)
    worker = await live_worker(store)
    claim = await store.claim(worker, 100, None)
    assert [stored.run.run_id for stored in claim.stored_runs] == [run.run_id for run in runs]
