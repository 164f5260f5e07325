"""Ends that come before all was read."""

from __future__ import annotations

import pytest

from batuta.journal.records import Effects, Message, MessageKind, Move, RunFilter, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import live_worker, new_run, signal, start_owned
from batuta.testing.conformance.outputs import output

ALL = RunFilter()


def of_kind(kind: str, message_id: str) -> Message:
    return Message(message_id=message_id, kind=MessageKind(kind))


class UnreadConformance:
    """A run does not come to its end before it has read what was accepted for it."""

    @pytest.mark.parametrize("kind", ["signal", "update"])
    @pytest.mark.parametrize("state", [RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED])
    async def test_an_end_that_finds_unread_messages_is_not_written(
        self, store: Store, state: RunState, kind: str
    ) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("read"))
        await store.send(pen.run_id, of_kind(kind, "m"))
        before = await store.load(pen.run_id)
        effects = Effects(outputs=[output("a", "1")], children=[new_run("child", parent_run_id=pen.run_id)])
        assert await pen.write(store, worker, consumed=["read"], move=Move(state), effects=effects) is Verdict.UNREAD
        assert await store.load(pen.run_id) == before
        assert await store.outputs(pen.run_id) == []
        assert await store.count_runs(ALL) == 1
        assert await pen.write(store, worker, consumed=["read", "m"], move=Move(state)) is None

    @pytest.mark.parametrize("kind", ["start", "cancel", "terminate", "child", "activity"])
    async def test_other_messages_do_not_hold_an_end_up(self, store: Store, kind: str) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, of_kind(kind, "m"))
        assert await pen.write(store, worker, move=Move(RunState.COMPLETED)) is None

    @pytest.mark.parametrize("state", [RunState.TERMINATED, RunState.TIMED_OUT, RunState.CONTINUED])
    async def test_other_ends_do_not_wait(self, store: Store, state: RunState) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        assert await pen.write(store, worker, move=Move(state)) is None

    async def test_it_holds_up_no_other_change_of_the_batch(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker) for _ in range(3)]
        await store.send(pens[1].run_id, signal("m"))
        changes = [pen.change(1, move=Move(RunState.COMPLETED)) for pen in pens]
        assert await store.commit(worker.worker_id, changes) == {1: Verdict.UNREAD}
        states = [(await store.get_run(pen.run_id)).state for pen in pens]
        assert states == [RunState.COMPLETED, RunState.RUNNING, RunState.COMPLETED]

    async def test_an_end_written_before_stays_written(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        change = pen.change(1, move=Move(RunState.COMPLETED))
        assert await store.commit(worker.worker_id, [change]) == {}
        assert await store.commit(worker.worker_id, [change]) == {}

    async def test_messages_of_another_chain_do_not_count(self, store: Store) -> None:
        worker = await live_worker(store)
        pen, other = await start_owned(store, worker), await start_owned(store, worker)
        await store.send(other.run_id, signal("m"))
        assert await pen.write(store, worker, move=Move(RunState.COMPLETED)) is None
