"""What is done to many runs at once leaves the writer, and the event loop, to others."""

from __future__ import annotations

import threading

import pytest

from batuta.journal.acts import Act, Verb, first_break
from batuta.stores.sqlite.retention import MOST_ENTRIES
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.deleting import DELETE, DONE, there
from batuta.testing.conformance.kit import live_worker, new_run, start_owned
from batuta.testing.conformance.letters import give_up


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
