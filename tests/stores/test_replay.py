"""Runs that live in a store are rebuilt from what it gives back, before every turn."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence

import pytest

from batuta.connect import store_for
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Change, Move
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import claimed, live_worker, new_run
from batuta.verify.code_replay import outside_task
from tests.replay.journals import Journal, load_all
from tests.replay.record import PYTHON, WORKFLOWS

JOURNALS = [journal for journal in load_all() if journal.python == PYTHON]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[Store]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")
    made = store_for(url)
    await made.migrate()
    await made.open()
    yield made
    await made.close()


def rebuilding(journal: Journal, run_id: RunId, entries: Sequence[Entry]) -> Callable[[], list[str]]:
    def rebuild() -> list[str]:
        machine = Machine(WORKFLOWS[journal.workflow], RunIdentity(run_id, "id", "default", "default"))
        replay = Replay(machine, entries)
        replay.run()
        machine.tear_down()
        return replay.warnings

    return rebuild


async def test_every_recorded_run_is_rebuilt_from_the_store_before_every_turn(store: Store) -> None:
    worker = await live_worker(store, code={journal.workflow: "today" for journal in JOURNALS})
    news = [new_run(journal.name, name=journal.workflow) for journal in JOURNALS]
    await store.start_many(news)
    known = {new.run_id: (journal, journal.journal_entries()) for new, journal in zip(news, JOURNALS, strict=True)}
    while stored_runs := await claimed(store, worker, 1_000):
        changes = []
        for tape in stored_runs:
            run_id, head = tape.run.run_id, tape.run.head
            journal, whole = known[run_id]
            assert tape.entries == whole[: head + 1]
            assert await outside_task(rebuilding(journal, run_id, tape.entries)) == []
            last = head + 2 == len(whole)
            move = Move(RunState(journal.state) if last else RunState.WAITING, None if last else tape.run.created_at)
            following = [whole[head + 1]]
            changes.append(Change(run_id=run_id, epoch=tape.run.epoch, head=head, entries=following, move=move))
        assert await store.commit(worker.worker_id, changes) == {}
    for run_id, (journal, whole) in known.items():
        run, end = await store.outcome(run_id)
        assert (run.state, run.head, end) == (journal.state, len(whole) - 1, whole[-1])
        assert await outside_task(rebuilding(journal, run_id, await store.journal(run_id))) == []
