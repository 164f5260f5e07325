"""Runs that follow each other under one id."""

from __future__ import annotations

from typing import Any

import pytest

from batuta.clock import SECOND
from batuta.errors import RunClosed
from batuta.ids import new_run_id
from batuta.journal.audit import Act, Verb
from batuta.journal.records import PAUSES, Effects, MessageKind, Move, ParentPolicy, RunKind, Successor, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, claim_one, inbox, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.runs.children import OUTCOME, child_of, messages
from batuta.testing.conformance.runs.sends import sends

CONTINUED = Move(RunState.CONTINUED)


def successor(**options: Any) -> Successor:
    settings: dict[str, Any] = {"name": "flow", "start": '{"value":["next"]}'} | options
    return Successor(run_id=new_run_id(), **settings)


def going_on(**options: Any) -> Effects:
    return Effects(successor=successor(**options))


class ChainsConformance:
    """A run that continues is closed and followed in one step: the id always has one current run."""

    async def test_a_successor_is_current_and_owned_by_nobody(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        effects = going_on()
        assert await first.write(store, worker, move=CONTINUED, effects=effects) is None
        assert effects.successor is not None
        run = await (await make_store()).get("long")
        assert (run.run_id, run.chain_id, run.id) == (effects.successor.run_id, first.run_id, "long")
        assert (run.state, run.owner, run.epoch, run.head) == (RunState.PENDING, None, 0, -1)
        assert run.wake_at == run.created_at
        before = await store.get_run(first.run_id)
        assert (before.state, before.owner, before.wake_at) == (RunState.CONTINUED, None, None)
        stored = await claim_one(store, worker)
        assert stored.run.run_id == run.run_id
        assert [(m.kind, m.message_id, m.body) for m in stored.messages] == [
            (MessageKind.START, f"start:{run.run_id}", '{"value":["next"]}')
        ]

    async def test_a_successor_takes_over_what_belongs_to_the_chain(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        new = child_of(
            parent,
            "long",
            seq=5,
            kind=RunKind.JOB,
            priority=7,
            tags='{"a":"b"}',
            memo='{"m":1}',
            flow_key="k",
            version="1",
            parent_policy=ParentPolicy.TERMINATE,
        )
        first = Pen(new.run_id, epoch=1)
        await first.write(store, worker, start=new)
        given = going_on(name="other", code="other@2", queue="deep", version="2", delay=30 * SECOND)
        assert await first.write(store, worker, move=CONTINUED, effects=given) is None
        run = await store.get("long")
        assert (run.kind, run.priority, run.tags, run.memo) == (RunKind.JOB, 7, '{"a":"b"}', '{"m":1}')
        assert (run.parent_run_id, run.parent_seq) == (parent.run_id, 5)
        assert (run.name, run.code, run.queue, run.version) == ("other", "other@2", "deep", "2")
        assert run.wake_at == run.created_at + 30 * SECOND
        await parent.write(store, worker, move=Move(RunState.COMPLETED, children=True))
        told = await messages(store, Pen(run.run_id, 0), MessageKind.TERMINATE)
        assert [m.message_id for m in told] == [f"parent:{parent.run_id}"]

    async def test_the_end_of_a_chain_is_told_to_the_parent(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        first = await start_owned(store, worker, "long", parent_run_id=parent.run_id)
        await first.write(store, worker, move=CONTINUED, effects=going_on())
        assert await inbox(store, parent) == []
        last = Pen.of(await claim_one(store, worker))
        await last.write(store, worker, move=Move(RunState.COMPLETED, outcome=OUTCOME))
        assert [(m.message_id, m.body) for m in await messages(store, parent)] == [(f"child:{last.run_id}", OUTCOME)]

    async def test_a_parent_that_continues_is_not_told_any_more(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker, "parent")
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        await parent.write(store, worker, move=Move(RunState.CONTINUED, children=True), effects=going_on())
        assert [m.kind for m in await messages(store, child)] == [MessageKind.CANCEL]
        read = await inbox(store, child)
        await child.write(store, worker, consumed=read, move=Move(RunState.CANCELLED, outcome=OUTCOME))
        follower = await store.get("parent")
        assert [m.kind for m in (await store.load(follower.run_id)).messages] == [MessageKind.START]

    async def test_the_unread_go_on_to_the_successor(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        for name in ("read", "unread"):
            await store.send(first.run_id, signal(name))
        assert await first.write(store, worker, consumed=["read"], move=CONTINUED, effects=going_on()) is None
        assert await store.send(first.run_id, signal("late"))
        stored = await claim_one(store, worker)
        assert [m.message_id for m in stored.messages] == ["unread", f"start:{stored.run.run_id}", "late"]
        assert not await store.send(stored.run.run_id, signal("read"))

    async def test_a_send_goes_to_the_run_that_follows(self, store: Store) -> None:
        worker = await live_worker(store)
        for number, order in enumerate((1, -1)):
            sender, first = await start_owned(store, worker), await start_owned(store, worker, f"long-{number}")
            changes = [
                sender.change(1, effects=sends((f"long-{number}", "m"))),
                first.change(1, move=CONTINUED, effects=going_on()),
            ]
            assert await store.commit(worker.worker_id, changes[::order]) == {}
            stored = await claim_one(store, worker)
            assert {m.kind for m in stored.messages} == {MessageKind.SIGNAL, MessageKind.START}

    async def test_a_repeated_commit_makes_no_second_successor(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        change = first.change(1, move=CONTINUED, effects=going_on())
        for _ in range(2):
            assert await store.commit(worker.worker_id, [change]) == {}
        assert len((await claim_one(store, worker)).messages) == 1
        assert await store.commit(worker.worker_id, [change]) == {}
        assert (await store.get("long")).epoch == 1

    async def test_a_refused_run_has_no_successor(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        first.epoch = 9
        assert await first.write(store, worker, move=CONTINUED, effects=going_on()) is Verdict.REFUSED
        run = await store.get("long")
        assert (run.run_id, run.state) == (first.run_id, RunState.RUNNING)

    async def test_a_run_can_begin_and_continue_in_one_commit(self, store: Store) -> None:
        worker = await live_worker(store)
        new, effects = new_run("long"), going_on()
        assert await Pen(new.run_id, 1).write(store, worker, 2, start=new, move=CONTINUED, effects=effects) is None
        assert (await claim_one(store, worker)).run.chain_id == new.run_id

    @pytest.mark.parametrize(
        ("timeout", "execution", "expected"), [(5, 0, 12), (0, 100, 100), (5, 9, 9), (95, 100, 100)]
    )
    async def test_the_execution_timeout_counts_from_the_chains_begin(
        self, store: Store, timeout: int, execution: int, expected: int
    ) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "long", execution_timeout=100 * SECOND)
        begun = (await store.get_run(pen.run_id)).created_at
        store.shift_clock(4)
        await pen.write(store, worker, move=CONTINUED, effects=going_on())
        pen = Pen.of(await claim_one(store, worker))
        store.shift_clock(3)
        given = going_on(timeout=timeout * SECOND, execution_timeout=execution * SECOND)
        await pen.write(store, worker, move=CONTINUED, effects=given)
        run = await store.get("long")
        assert run.deadline is not None
        passed = (run.created_at - begun) - 7 * SECOND if expected == 12 else 0
        assert run.deadline == begun + expected * SECOND + passed

    async def test_the_time_of_a_chain_that_was_paused_is_put_off(self, store: Store) -> None:
        worker, act = await live_worker(store), Act(actor="ann", verb=Verb.PAUSE)
        pen = await start_owned(store, worker, "long", execution_timeout=100 * SECOND)
        await pen.release(store, worker, wake_at=1)
        await store.pause_runs([pen.run_id], act)
        store.shift_clock(1_000)
        await store.resume_runs([pen.run_id], act)
        worker = await live_worker(store)
        pen = Pen.of(await claim_one(store, worker))
        before = await store.get_run(pen.run_id)
        await pen.write(store, worker, move=CONTINUED, effects=going_on(execution_timeout=100 * SECOND))
        assert (await store.get("long")).deadline == before.deadline
        assert before.deadline is not None
        assert before.deadline >= before.created_at + 1_100 * SECOND

    async def test_the_time_of_a_chain_is_put_off_by_its_pauses_whatever_time_its_runs_have(self, store: Store) -> None:
        worker, act = await live_worker(store), Act(actor="ann", verb=Verb.PAUSE)
        limits = {"timeout": 10 * SECOND, "execution_timeout": 100 * SECOND}
        pen = await start_owned(store, worker, "long", **limits)
        begun, paused = (await store.get_run(pen.run_id)).created_at, 0
        for _ in range(2):
            await pen.release(store, worker, wake_at=1)
            await store.pause_runs([pen.run_id], act)
            store.shift_clock(1_000)
            await store.resume_runs([pen.run_id], act)
            (pause,) = [one for one in await store.attempts(pen.run_id, PAUSES) if one.number]
            assert pause.ended_at is not None
            paused += pause.ended_at - pause.started_at
            worker = await live_worker(store)
            pen = Pen.of(await claim_one(store, worker))
            await pen.write(store, worker, move=CONTINUED, effects=going_on(**limits))
            pen = Pen.of(await claim_one(store, worker))
            await pen.write(store, worker)
        await pen.write(store, worker, move=CONTINUED, effects=going_on(execution_timeout=100 * SECOND))
        assert paused >= 2_000 * SECOND
        assert (await store.get("long")).deadline == begun + paused + 100 * SECOND

    async def test_a_run_waits_before_its_time_begins(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "long")
        await pen.write(store, worker, move=CONTINUED, effects=going_on(delay=60 * SECOND, timeout=5 * SECOND))
        run = await store.get("long")
        assert run.deadline == run.created_at + 65 * SECOND

    async def test_a_chain_that_has_ended_refuses_messages(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        await first.write(store, worker, move=CONTINUED, effects=going_on())
        last = Pen.of(await claim_one(store, worker))
        await last.write(store, worker, move=Move(RunState.COMPLETED))
        for pen in (first, last):
            with pytest.raises(RunClosed):
                await store.send(pen.run_id, signal("m"))

    async def test_a_long_chain_has_one_current_run(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = first = await start_owned(store, worker, "long")
        for _ in range(5):
            await pen.write(store, worker, move=CONTINUED, effects=going_on())
            pen = Pen.of(await claim_one(store, worker))
        assert (await store.get("long")).run_id == pen.run_id
        assert (await store.get("long")).chain_id == first.run_id
