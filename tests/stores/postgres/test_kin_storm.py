"""Many processes whose runs send to each other, want the same ids and end each other, all at once."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest

from batuta.errors import RunClosed
from batuta.ids import new_message_id
from batuta.journal.records import Change, Effects, Move, NewRun, Send, Verdict, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import Answer, Pen, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.runs.children import OUTCOME, child_of
from batuta.testing.conformance.runs.close import last_word
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection

pytestmark = pytest.mark.usefixtures("new_postgres_url")

ROUNDS = 12
RUNS = 24
SAME_IDS = [f"same-{n}" for n in range(400)]


async def test_a_storm_of_runs_that_reach_for_each_other_never_deadlocks(
    store: PostgresStore, make_store: MakeStore, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The store would try again after a deadlock: here it must tell.
    monkeypatch.setattr("batuta.stores.postgres.database.connection.TRANSIENT", frozenset({"40001"}))
    stores = [store, await make_store(), await make_store()]
    workers = [await live_worker(each) for each in stores]
    pens = [
        [await start_owned(store, worker, f"{n}-{number}") for number in range(RUNS)]
        for n, worker in enumerate(workers)
    ]
    ids = [f"{n}-{number}" for n in range(len(stores)) for number in range(RUNS)]
    storms = [
        Storm(each, worker, own, ids, random.Random(n))
        for n, (each, worker, own) in enumerate(zip(stores, workers, pens, strict=True))
        if isinstance(each, PostgresStore)
    ]
    await asyncio.gather(*(storm.rage() for storm in storms), _terminate(store, pens[0][:6]), _signal(store, pens[1]))
    sent = {message for storm in storms for message in storm.accepted}
    async with connection(postgres_url) as raw:
        rows = await raw.fetch("SELECT message_id FROM batuta.inbox WHERE kind = 'signal'")
        assert sent <= {row["message_id"] for row in rows}
        lost = await raw.fetch("""
            SELECT r.id FROM batuta.runs r JOIN batuta.inbox i ON i.chain_id = r.chain_id AND i.consumed_at IS NULL
            WHERE r.state = 'waiting' AND coalesce(r.wake_at > batuta.batuta_now() + 3600000000, true)
               OR r.state IN ('completed', 'failed', 'cancelled') AND i.kind IN ('signal', 'update')
        """)
        assert lost == []  # nobody sleeps over a message, or ended without having read it
    for each in stores:
        await each.close()
    assert await _deadlocks(postgres_url) == 0


async def test_starts_and_children_that_want_the_same_ids_never_deadlock(
    store: PostgresStore, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What one process starts, the other has a child of, in opposite order."""
    monkeypatch.setattr("batuta.stores.postgres.database.connection.TRANSIENT", frozenset({"40001"}))
    other = await make_store()
    worker = await live_worker(store)
    for number in range(20):
        ids = [f"{number}-{n}" for n in range(40)]
        batches = [_families(ids), _families(ids[::-1])]
        first, second = await asyncio.gather(
            store.commit(worker.worker_id, batches[0]), other.commit(worker.worker_id, batches[1])
        )
        owners = {(await store.get(id)).run_id for id in ids}
        started = {
            change.run_id
            for answers, changes in ((first, batches[0]), (second, batches[1]))
            for index, change in enumerate(changes)
            if not isinstance(answers.get(index), Verdict)
        }
        assert len(owners) == len(ids)
        assert started <= owners


def _families(ids: Sequence[str]) -> list[Change]:
    """Parents with one half of the ids, and a child for each with the other."""
    half = len(ids) // 2
    changes = []
    for id, childs_id in zip(ids[:half], ids[half:], strict=True):
        new = new_run(id)
        pen = Pen(new.run_id, epoch=1)
        changes.append(pen.change(1, start=new, effects=Effects(children=[child_of(pen, childs_id)])))
    return changes


class Storm:
    """One process: in each round all of its runs do something that concerns others, in one batch."""

    def __init__(
        self, store: PostgresStore, worker: WorkerInfo, pens: list[Pen], ids: Sequence[str], dice: random.Random
    ) -> None:
        self.store = store
        self.worker = worker
        self.pens = pens
        self.ids = ids
        self.dice = dice
        self.accepted: list[str] = []

    async def rage(self) -> None:
        for _ in range(ROUNDS):
            changes = [self._next(pen) for pen in self.pens] + [self._start() for _ in range(3)]
            self.dice.shuffle(changes)
            answers = await self.store.commit(self.worker.worker_id, changes)
            by_run = {pen.run_id: pen for pen in self.pens}
            for index, change in enumerate(changes):
                self._note(by_run.get(change.run_id), change, answers.get(index))
            for stored in (await self.store.claim(self.worker, 10)).stored_runs:
                self.pens.append(Pen.of(stored))

    def _next(self, pen: Pen) -> Change:
        others = self.dice.sample(self.ids, 3)
        effects = Effects(
            sends=[Send(seq=n, id=id, message=signal(new_message_id())) for n, id in enumerate(others)],
            children=[self._child(pen) for _ in range(2)],
        )
        kind = self.dice.random()
        if kind < 0.1:
            return pen.change(1, effects=effects, move=Move(RunState.COMPLETED, outcome=OUTCOME, children=True))
        if kind < 0.3:
            later = Move(RunState.WAITING, wake_at=2**60)
            return pen.change(1, effects=effects, move=later)
        return pen.change(1, effects=effects)

    def _child(self, pen: Pen) -> NewRun:
        return child_of(pen, self.dice.choice(SAME_IDS))

    def _start(self) -> Change:
        """A start that wants an id which others want for a child, and the other way round."""
        new = new_run(self.dice.choice(SAME_IDS))
        pen = Pen(new.run_id, epoch=1)
        return pen.change(1, start=new, effects=Effects(children=[self._child(pen)]))

    def _note(self, pen: Pen | None, change: Change, answer: Answer | None) -> None:
        if not isinstance(answer, Verdict):
            refused = {refusal.seq for refusal in answer or () if refusal.error != "AlreadyStarted"}
            sends = change.effects.sends if change.effects else []
            self.accepted += [send.message.message_id for send in sends if send.seq not in refused]
        if pen is None:
            return
        if answer is Verdict.REFUSED or (change.move is not None and not isinstance(answer, Verdict)):
            self.pens.remove(pen)
        elif answer is not Verdict.UNREAD:
            pen.wrote(change)


async def _terminate(store: PostgresStore, pens: list[Pen]) -> None:
    for pen in pens:
        run, entry = await store.outcome(pen.run_id)
        at = Pen(pen.run_id, run.epoch, run.head, entry)
        await store.close_run(pen.run_id, run.head, last_word(at), RunState.TERMINATED, "enough")


async def _signal(store: PostgresStore, pens: list[Pen]) -> None:
    for pen in pens:
        try:
            await store.send(pen.run_id, signal(new_message_id()))
        except RunClosed:
            pass


async def _deadlocks(postgres_url: str) -> int:
    """Those that this database counted, once everybody has said goodbye and handed in their numbers."""
    async with connection(postgres_url) as raw, asyncio.timeout(DEADLINE_SECONDS):
        others = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
        while await raw.fetchval(others):
            await asyncio.sleep(0.01)
        count: int = await raw.fetchval("SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()")
        return count
