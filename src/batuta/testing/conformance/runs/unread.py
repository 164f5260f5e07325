"""Ends that come before all was read."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.clock import SECOND
from batuta.ids import new_run_id
from batuta.journal.audit import Act, Verb
from batuta.journal.records import Effects, Message, MessageKind, Move, RunFilter, Send, Successor, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import claimed, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.runs.chains import going_on
from batuta.testing.conformance.runs.outputs import output

ALL = RunFilter()


def of_kind(kind: str, message_id: str) -> Message:
    return Message(message_id=message_id, kind=MessageKind(kind))


class UnreadConformance:
    """A run does not come to its end before it has read what was accepted for it."""

    @pytest.mark.parametrize("kind", ["signal", "update", "cancel"])
    async def test_an_end_that_finds_unread_messages_is_not_written(self, store: Store, kind: str) -> None:
        worker = await live_worker(store)
        for number, state in enumerate((RunState.COMPLETED, RunState.FAILED, RunState.CANCELLED), 1):
            pen = await start_owned(store, worker)
            await store.send(pen.run_id, signal("read"))
            await store.send(pen.run_id, of_kind(kind, "m"))
            before = await store.load(pen.run_id)
            effects = Effects(outputs=[output("a", "1")], children=[new_run("child", parent_run_id=pen.run_id)])
            early = await pen.write(store, worker, consumed=["read"], move=Move(state), effects=effects)
            assert early is Verdict.UNREAD
            assert await store.load(pen.run_id) == before
            assert await store.outputs(pen.run_id) == []
            assert await store.count_runs(ALL) == number
            assert await pen.write(store, worker, consumed=["read", "m"], move=Move(state)) is None

    @pytest.mark.parametrize("kind", ["start", "terminate", "child", "activity"])
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

    @pytest.mark.parametrize("state", [RunState.TERMINATED, RunState.TIMED_OUT])
    async def test_an_end_from_outside_does_not_wait_for_a_cancel(self, store: Store, state: RunState) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, of_kind("cancel", "m"))
        assert await pen.write(store, worker, move=Move(state)) is None

    @pytest.mark.parametrize("by", ["send", "cancel_runs", "a send of another run", "the end of its parent"])
    async def test_a_run_does_not_continue_with_a_cancel_unread(self, store: Store, by: str) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        pen = await start_owned(store, worker, "long", parent_run_id=parent.run_id)
        await store.send(pen.run_id, signal("s"))
        if by == "send":
            await store.send(pen.run_id, of_kind("cancel", "m"))
        elif by == "cancel_runs":
            await store.cancel_runs([pen.run_id], "enough", Act(actor="ada", verb=Verb.CANCEL))
        elif by == "a send of another run":
            await parent.write(
                store, worker, effects=Effects(sends=[Send(seq=1, id="long", message=of_kind("cancel", "m"))])
            )
        else:
            await parent.write(store, worker, move=Move(RunState.COMPLETED, children=True))
        [cancel] = [one for one in (await store.load(pen.run_id)).messages if one.kind is MessageKind.CANCEL]
        continued: dict[str, Any] = {"move": Move(RunState.CONTINUED), "effects": going_on()}
        assert await pen.write(store, worker, **continued) is Verdict.UNREAD
        assert (await store.get("long")).run_id == pen.run_id
        assert await pen.write(store, worker, consumed=[cancel.message_id], **continued) is None
        follower = await store.get("long")
        assert [one.message_id for one in (await store.load(follower.run_id)).messages] == [
            "s",
            f"start:{follower.run_id}",
        ]

    @pytest.mark.parametrize("order", [1, -1])
    async def test_the_end_of_a_parent_reaches_a_child_that_continues_with_the_same_batch(
        self, store: Store, order: int
    ) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, "child", parent_run_id=parent.run_id)
        successor = Successor(run_id=new_run_id(), name="flow", delay=600 * SECOND)
        changes = [
            parent.change(1, move=Move(RunState.COMPLETED, children=True)),
            child.change(1, move=Move(RunState.CONTINUED), effects=Effects(successor=successor)),
        ]
        answers = await store.commit(worker.worker_id, changes[::order])
        current = await store.get("child")
        assert MessageKind.CANCEL in [one.kind for one in (await store.load(current.run_id)).messages]
        if answers:
            assert list(answers.values()) == [Verdict.UNREAD]
            assert current.run_id == child.run_id
        else:
            assert [stored.run.run_id for stored in await claimed(store, worker)] == [successor.run_id]

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
