"""Transactions of activities: the change and what the activity wrote are there, or neither is."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from batuta.errors import UnknownRun
from batuta.journal.records import Change, Effects, Move, Refusal, Send, Verdict, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, live_worker, new_run, signal, start_owned

SECONDS = 2.0


def agreed(refusals: Sequence[Refusal]) -> None:
    """Whatever was refused may be."""


async def commit_within(store: Store, worker: WorkerInfo, change: Change) -> Verdict | list[Refusal]:
    transaction = store.transact(SECONDS)
    await transaction.begin()
    return await transaction.commit(worker.worker_id, change, agreed)


class TransactionsConformance:
    """`transact`."""

    async def test_a_change_is_durable_when_its_transaction_commits(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        written: list[str] = []
        for text in ("it's", 'a "$batuta$ \\', "ü"):
            change = pen.change(text=text)
            assert await commit_within(store, worker, change) == []
            pen.wrote(change)
            written.append(change.entries[0].body)
        assert [entry.body for entry in await store.journal(pen.run_id, 0)] == written
        assert (await store.get_run(pen.run_id)).head == 3

    async def test_nothing_is_left_of_one_that_is_rolled_back(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        transaction = store.transact(SECONDS)
        await transaction.begin()
        await transaction.rollback()
        await transaction.rollback()
        assert await pen.write(store, worker) is None
        assert (await store.get_run(pen.run_id)).head == 1

    async def test_another_epoch_or_head_refuses_it(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for epoch, head in ((7, 0), (1, 3), (1, -1)):
            other = Pen(pen.run_id, epoch, head)
            assert await commit_within(store, worker, other.change()) is Verdict.REFUSED
            closing = other.change(move=Move(RunState.COMPLETED))
            assert await commit_within(store, worker, closing) is Verdict.REFUSED
            sends = Send(seq=1, id="x", message=signal("m"))
            assert await commit_within(store, worker, other.change(effects=Effects(sends=[sends]))) is Verdict.REFUSED
        assert (await store.get_run(pen.run_id)).head == 0
        assert await pen.write(store, worker) is None

    async def test_it_closes_hands_back_and_consumes_as_any_change(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        change = pen.change(consumed=["m"])
        assert await commit_within(store, worker, change) == []
        pen.wrote(change)
        assert await commit_within(store, worker, pen.change(move=Move(RunState.COMPLETED))) == []
        assert (await store.get_run(pen.run_id)).state is RunState.COMPLETED
        other = await start_owned(store, worker)
        assert await commit_within(store, worker, other.change(move=Move(RunState.WAITING, wake_at=None))) == []
        assert (await store.get_run(other.run_id)).owner is None

    async def test_a_run_that_has_not_read_its_signals_does_not_close(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        assert await commit_within(store, worker, pen.change(move=Move(RunState.COMPLETED))) is Verdict.UNREAD
        assert (await store.get_run(pen.run_id)).head == 0

    async def test_runs_and_messages_leave_with_it(self, store: Store) -> None:
        worker = await live_worker(store)
        pen, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        effects = Effects(
            children=[new_run("child")],
            sends=[
                Send(seq=0, id="target", message=signal("m")),
                Send(seq=0, id="child", message=signal("n")),
            ],
        )
        assert await commit_within(store, worker, pen.change(effects=effects)) == []
        assert (await store.get("child")).state is RunState.PENDING
        assert [message.message_id for message in (await store.load(target.run_id)).messages] == ["m"]

    async def test_nothing_leaves_when_what_is_refused_may_not_be(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        sends = [Send(seq=0, id="nobody", message=signal("m"))]
        change = pen.change(effects=Effects(children=[new_run("child")], sends=sends))
        asked: list[Refusal] = []

        def refuse(refusals: Sequence[Refusal]) -> None:
            asked.extend(refusals)
            raise UnknownRun("nobody")

        transaction = store.transact(SECONDS)
        await transaction.begin()
        with pytest.raises(UnknownRun):
            await transaction.commit(worker.worker_id, change, refuse)
        await transaction.rollback()
        assert [(refusal.seq, refusal.id, refusal.error) for refusal in asked] == [(0, "nobody", "UnknownRun")]
        with pytest.raises(UnknownRun):
            await store.get("child")
        assert (await store.get_run(pen.run_id)).head == 0

    async def test_nothing_is_left_of_one_that_is_cancelled_while_it_is_rolled_back(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for _ in range(3):
            transaction = store.transact(SECONDS)
            await transaction.begin()
            rolling = asyncio.ensure_future(transaction.rollback())
            await asyncio.sleep(0)
            rolling.cancel()
            await asyncio.gather(rolling, return_exceptions=True)
            change = pen.change()
            assert await commit_within(store, worker, change) == []
            pen.wrote(change)
        assert (await store.get_run(pen.run_id)).head == 3

    async def test_one_that_is_cut_off_leaves_the_store_usable(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for _ in range(3):
            transaction = store.transact(SECONDS)
            await transaction.begin()
            await transaction.rollback()
        other = await make_store()
        assert await pen.write(other, worker) is None
