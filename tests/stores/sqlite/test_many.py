"""What is done to many runs at once leaves the writer, and the event loop, to others."""

from __future__ import annotations

import threading

import pytest

from batuta.errors import StoreFull, UnknownRun
from batuta.journal.audit import Act, Verb, first_break
from batuta.journal.retention import Retention
from batuta.stores.sqlite.retention import MOST_ENTRIES
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import Pen, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.operators.dead_letters import give_up
from batuta.testing.conformance.operators.deleting import DELETE, DONE, there
from batuta.verify import verify


class Steps:
    """Takes down where each transaction works."""

    def __init__(self) -> None:
        self.threads: list[threading.Thread] = []

    def __call__(self, step: str) -> None:
        if step == "work":
            self.threads.append(threading.current_thread())


async def test_long_journals_are_deleted_in_several_transactions(store: SqliteStore) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(6)]
    for pen in pens:
        await pen.write(store, worker, MOST_ENTRIES // 2, move=DONE)
    store.faults = steps = Steps()
    asked = [pen.run_id for pen in pens]
    assert await store.delete_runs([*asked, *asked], DELETE) == asked
    assert len(steps.threads) >= 3
    assert await there(store) == set()
    rows = await store.audit()
    assert len(rows) == 6
    assert first_break(store.namespace, (0, ""), rows) is None


class Sizes:
    """Takes down how many rows each transaction changes."""

    def __init__(self, store: SqliteStore) -> None:
        assert store._writer._connection is not None
        self._connection = store._writer._connection
        self._before = 0
        self.changes: list[int] = []

    def __call__(self, step: str) -> None:
        if step == "work":
            self._before = self._connection.total_changes
        elif step == "commit":
            self.changes.append(self._connection.total_changes - self._before)


async def long_family(store: SqliteStore, entries: int) -> list[Pen]:
    """A parent and a child, each with so many entries, and a neighbour that is as long."""
    worker = await live_worker(store)
    parent, other = await start_owned(store, worker), await start_owned(store, worker)
    child = await start_owned(store, worker, parent_run_id=parent.run_id, parent_seq=1)
    for number in range(100):
        await store.send(parent.run_id, signal(f"s{number}"))
    consumed = [f"s{number}" for number in range(100)]
    for pen in (parent, other, child):
        await pen.write(store, worker, entries, move=DONE, consumed=consumed if pen is parent else [])
    return [parent, child, other]


@pytest.mark.parametrize("prunes", [False, True])
async def test_a_family_with_a_huge_journal_is_deleted_in_slices(store: SqliteStore, prunes: bool) -> None:
    parent, child, other = await long_family(store, 3 * MOST_ENTRIES)
    store.faults = sizes = Sizes(store)
    if prunes:
        await store.set_retention(Retention(60))
        store.shift_clock(61)
        while (await store.prune(10)).last is not None or len(await there(store)) > 0:
            pass
    else:
        assert set(await store.delete_runs([parent.run_id], DELETE)) == {parent.run_id, child.run_id}
        assert await there(store) == {other.run_id}
        assert len(await store.journal(other.run_id)) == 3 * MOST_ENTRIES + 1
    store.faults = None
    assert max(sizes.changes) <= MOST_ENTRIES + 20
    assert len(sizes.changes) >= 6
    assert await rows_of(store, parent, child) == 0


async def test_a_bulk_commit_that_is_killed_half_way_leaves_nothing_behind(store: SqliteStore) -> None:
    parent, child, other = await long_family(store, 2 * MOST_ENTRIES)

    def killed(step: str) -> None:
        if step == "commit":
            commits.append(step)
            if len(commits) == 3:
                raise StoreFull("killed")

    commits: list[str] = []
    store.faults = killed
    with pytest.raises(StoreFull):
        await store.delete_runs([parent.run_id], DELETE)
    store.faults = None
    assert await rows_of(store, parent, child) > 0
    assert await there(store) == {other.run_id}
    for pen in (parent, child):
        with pytest.raises(UnknownRun):
            await store.get_run(pen.run_id)
        with pytest.raises(UnknownRun):
            await store.load(pen.run_id)
    found = {violation.run_id for violation in (await verify(store)).violations}
    assert found <= {other.run_id}  # whose journal is made up
    assert len(await store.audit()) == 2
    await store.prune(10)
    assert await rows_of(store, parent, child) == 0
    assert await there(store) == {other.run_id}


async def rows_of(store: SqliteStore, *pens: Pen) -> int:
    """Entries and messages that lie there."""
    keys = [pen.run_id.bytes for pen in pens]
    asked = ["SELECT count(*) FROM journal WHERE run_id = ?", "SELECT count(*) FROM inbox WHERE chain_id = ?"]
    found: list[int] = store._readers.read(
        lambda connection: [connection.execute(query, (key,)).fetchone()[0] for query in asked for key in keys]
    )
    return sum(found)


@pytest.mark.parametrize(("count", "aside"), [(1, False), (100, True)])
async def test_many_are_changed_beside_the_event_loop(store: SqliteStore, count: int, aside: bool) -> None:
    runs = [(await store.start(new_run()))[0].run_id for _ in range(count)]
    worker = await live_worker(store)
    store.faults = steps = Steps()
    assert await store.pause_runs(runs, Act(actor="ann", verb=Verb.PAUSE)) == runs
    assert await store.resume_runs(runs, Act(actor="ann", verb=Verb.RESUME)) == runs
    assert await store.cancel_runs(runs, "over", Act(actor="ann", verb=Verb.CANCEL)) == runs
    assert await store.terminate_runs(runs, "over", Act(actor="ann", verb=Verb.TERMINATE)) == runs
    store.faults = None
    letters = [await give_up(store, worker) for _ in range(count)]
    store.faults = steps
    assert await store.discard_letters(letters, Act(actor="ann", verb=Verb.DISCARD)) == letters
    assert {thread is not threading.main_thread() for thread in steps.threads} == {aside}
    assert len(steps.threads) == 5
