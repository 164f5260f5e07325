"""Parents and children: started together, and told of each other's end."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec import json

from batuta.authoring.failures.conversion import to_exception
from batuta.clock import SECOND
from batuta.errors import RunNotCompleted, RunTerminated, RunTimedOut
from batuta.journal.entries import Body
from batuta.journal.records import (
    Effects,
    IfExists,
    Message,
    MessageKind,
    Move,
    NewRun,
    ParentPolicy,
    Refusal,
    RunFilter,
    Verdict,
)
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    MakeStore,
    Pen,
    beat,
    claim_one,
    claimed,
    inbox,
    live_worker,
    new_run,
    outlive_lease,
    signal,
    start_owned,
)
from batuta.testing.conformance.runs.close import last_word
from batuta.testing.conformance.runs.sends import sends

MANY = 10_000
OUTCOME = '{"seq":3,"value":"fish"}'


def child_of(parent: Pen, id: str | None = None, *, seq: int = 3, **options: Any) -> NewRun:
    return new_run(id, parent_run_id=parent.run_id, parent_seq=seq, **options)


def births(*children: NewRun) -> Effects:
    return Effects(children=list(children))


def end(state: RunState = RunState.COMPLETED, outcome: str = OUTCOME, **parts: Any) -> Move:
    return Move(state, outcome=outcome, **parts)


async def messages(store: Store, pen: Pen, kind: MessageKind | None = None) -> list[Message]:
    return [m for m in (await store.load(pen.run_id)).messages if kind in (None, m.kind)]


class KinConformance:
    """A child is started with its parent's turn, and neither ends without a word to the other."""

    # -- starting

    async def test_a_child_is_started_with_its_parents_turn(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        new = child_of(parent, "child", queue="deep", priority=3, tags='{"a":"b"}', memo="1", version="2", start="[7]")
        assert await parent.write(store, worker, effects=births(new)) is None
        run = await store.get("child")
        assert (run.run_id, run.chain_id, run.state, run.owner) == (new.run_id, new.run_id, RunState.PENDING, None)
        assert (run.parent_run_id, run.parent_seq, run.epoch, run.head) == (parent.run_id, 3, 0, -1)
        assert (run.queue, run.priority, run.tags, run.memo, run.version) == ("deep", 3, '{"a":"b"}', "1", "2")
        assert run.wake_at == run.created_at
        [start] = (await store.load(new.run_id)).messages
        assert (start.kind, start.message_id, start.body) == (MessageKind.START, f"start:{new.run_id}", "[7]")
        deep = await live_worker(store, queues=["deep"])
        assert (await claim_one(store, deep)).run.run_id == new.run_id

    async def test_a_child_may_wait_and_have_a_time(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        await parent.write(store, worker, effects=births(child_of(parent, "c", delay=30 * SECOND, timeout=9 * SECOND)))
        run = await store.get("c")
        assert run.wake_at == run.created_at + 30 * SECOND
        assert run.deadline == run.created_at + 39 * SECOND
        assert await claimed(store, worker, 10) == []

    async def test_a_taken_id_refuses_that_child_alone(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        await start_owned(store, worker, "taken")
        done = await start_owned(store, worker, "done")
        await done.write(store, worker, move=Move(RunState.FAILED))
        children = [child_of(parent, id, seq=seq) for seq, id in enumerate(("taken", "free", "done", "free"), start=1)]
        assert await parent.write(store, worker, effects=births(*children)) == [
            Refusal(1, "taken", "AlreadyStarted", "running", "workflow flow"),
            Refusal(3, "done", "AlreadyStarted", "failed", "workflow flow"),
            Refusal(4, "free", "AlreadyStarted", "pending", "workflow flow"),
        ]
        assert (await store.get("free")).run_id == children[1].run_id
        assert (await store.get_run(parent.run_id)).head == 1
        assert await store.count_runs(RunFilter()) == 4

    async def test_a_child_may_restart_a_closed_id(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        done = await start_owned(store, worker, "again")
        await done.write(store, worker, move=Move(RunState.COMPLETED))
        new = child_of(parent, "again", if_exists=IfExists.RESTART)
        assert await parent.write(store, worker, effects=births(new)) is None
        assert (await store.get("again")).run_id == new.run_id
        second = child_of(parent, "again", if_exists=IfExists.RESTART)
        refused = await parent.write(store, worker, effects=births(second))
        assert refused == [Refusal(3, "again", "AlreadyStarted", "pending", "workflow flow")]

    async def test_a_repeated_commit_tells_the_same(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        await start_owned(store, worker, "taken")
        change = parent.change(1, effects=births(child_of(parent, "child"), child_of(parent, "taken")))
        for _ in range(2):
            answers = await store.commit(worker.worker_id, [change])
            assert answers == {0: [Refusal(3, "taken", "AlreadyStarted", "running", "workflow flow")]}
        assert await store.count_runs(RunFilter()) == 3
        assert (await claim_one(store, worker)).run.id == "child"
        assert await store.commit(worker.worker_id, [change]) == {
            0: [Refusal(3, "taken", "AlreadyStarted", "running", "workflow flow")]
        }
        assert (await store.get("child")).state is RunState.RUNNING

    async def test_a_refused_parent_starts_no_child(self, store: Store) -> None:
        dead = await live_worker(store)
        parent = await start_owned(store, dead)
        await outlive_lease(store)
        await beat(store, await live_worker(store), reap=True)
        assert await parent.write(store, dead, effects=births(child_of(parent, "child"))) is Verdict.REFUSED
        assert await store.count_runs(RunFilter()) == 1

    async def test_a_parents_first_turn_can_start_a_child(self, store: Store) -> None:
        worker = await live_worker(store)
        new = new_run("parent")
        parent = Pen(new.run_id, epoch=1)
        effects, wait = births(child_of(parent, "child")), Move(RunState.WAITING)
        assert await parent.write(store, worker, start=new, effects=effects, move=wait) is None
        assert (await store.get("child")).parent_run_id == new.run_id
        assert (await store.get("parent")).state is RunState.WAITING

    async def test_many_children_in_one_change(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        await start_owned(store, worker, "child-77")
        children = [child_of(parent, f"child-{n}", seq=n) for n in range(MANY)]
        refused = await parent.write(store, worker, effects=births(*children))
        assert refused == [Refusal(77, "child-77", "AlreadyStarted", "running", "workflow flow")]
        assert await store.count_runs(RunFilter(id_prefix="child-")) == MANY
        stored_runs = await claimed(store, worker, 100)
        assert len(stored_runs) == 100
        assert all(len(stored.messages) == 1 for stored in stored_runs)
        changes = [Pen.of(stored).change(1, move=end()) for stored in stored_runs]
        assert await store.commit(worker.worker_id, changes) == {}
        assert len(await inbox(store, parent)) == 100
        assert await parent.write(store, worker, move=Move(RunState.FAILED, children=True)) is None
        some = [await store.load(each.run_id) for each in children[::1_000]]
        told = [[m.kind for m in stored.messages] for stored in some if stored.run.closed_at is None]
        assert told == [[MessageKind.START, MessageKind.CANCEL]] * len(told) != []

    # -- a child ends

    @pytest.mark.parametrize("state", sorted(CLOSED - {RunState.CONTINUED}))
    async def test_a_childs_end_is_told_to_its_parent(self, store: Store, state: RunState) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id, parent_seq=3)
        assert await child.write(store, worker, move=end(state)) is None
        [told] = await messages(store, parent)
        assert (told.message_id, told.kind, told.body) == (f"child:{child.run_id}", MessageKind.CHILD, OUTCOME)
        assert told.name == str(parent.run_id)
        assert told.number > 0
        assert (await beat(store, worker)).unread == [parent.run_id]

    async def test_a_waiting_parent_becomes_due(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        await parent.release(store, worker, wake_at=await store.now() + 60 * SECOND)
        await child.write(store, worker, move=end())
        stored = await claim_one(store, worker)
        assert (stored.run.run_id, len(stored.messages)) == (parent.run_id, 1)

    async def test_what_a_child_sends_comes_before_its_end(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker, "parent")
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        assert await child.write(store, worker, effects=sends(("parent", "m")), move=end()) is None
        assert await inbox(store, parent) == ["m", f"child:{child.run_id}"]

    @pytest.mark.parametrize("first", ["parent", "child"])
    async def test_a_parent_evicted_in_the_same_batch_is_due_at_once(self, store: Store, first: str) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        later = await store.now() + 60 * SECOND
        changes = [parent.change(1, move=Move(RunState.WAITING, wake_at=later)), child.change(1, move=end())]
        assert await store.commit(worker.worker_id, changes if first == "parent" else changes[::-1]) == {}
        assert len((await claim_one(store, worker)).messages) == 1

    async def test_a_whole_life_of_a_child_in_one_commit_is_told(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        new = child_of(parent)
        assert await Pen(new.run_id, epoch=1).write(store, worker, 2, start=new, move=end()) is None
        assert await inbox(store, parent) == [f"child:{new.run_id}"]

    async def test_a_repeated_end_is_told_once(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        change = child.change(1, move=end())
        for _ in range(2):
            assert await store.commit(worker.worker_id, [change]) == {}
        assert len(await inbox(store, parent)) == 1

    async def test_a_closed_parent_is_told_nothing(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        await parent.write(store, worker, move=Move(RunState.COMPLETED))
        assert await child.write(store, worker, move=end()) is None
        assert await inbox(store, parent) == []

    async def test_a_refused_end_is_not_told(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        await store.send(child.run_id, signal("m"))
        assert await child.write(store, worker, move=end()) is Verdict.UNREAD
        child.epoch = 9
        assert await child.write(store, worker, move=end()) is Verdict.REFUSED
        assert await inbox(store, parent) == []

    async def test_a_terminated_child_is_told_to_its_parent(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, 'a "child"', parent_run_id=parent.run_id, parent_seq=4)
        await parent.release(store, worker)
        assert await store.close_run(child.run_id, child.head, last_word(child), RunState.TERMINATED, "enough, ç")
        stored = await claim_one(store, worker)
        error = self._error(stored.messages[0], child, seq=4)
        assert isinstance(error, RunTerminated)
        assert (error.id, error.state) == ('a "child"', "terminated")
        assert "enough, ç" in str(error)

    async def test_a_child_over_its_time_is_told_to_its_parent(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id, parent_seq=4, timeout=4 * SECOND)
        await parent.release(store, worker)
        store.shift_clock(5)
        await beat(store, worker)
        stored = await claim_one(store, worker)
        error = self._error(stored.messages[0], child, seq=4)
        assert isinstance(error, RunTimedOut)
        assert error.state == "timed_out"

    def _error(self, told: Message, child: Pen, seq: int) -> RunNotCompleted:
        assert (told.message_id, told.kind) == (f"child:{child.run_id}", MessageKind.CHILD)
        body = json.decode(told.body, type=Body)
        assert body.seq == seq
        assert body.error
        error = to_exception(body.error)
        assert isinstance(error, RunNotCompleted)
        return error

    # -- a parent ends

    @pytest.mark.parametrize("state", sorted(CLOSED))
    async def test_children_are_told_of_their_parents_end_by_their_policy(self, store: Store, state: RunState) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        children = {
            policy: await start_owned(store, worker, parent_run_id=parent.run_id, parent_policy=policy)
            for policy in ParentPolicy
        }
        assert await parent.write(store, worker, move=Move(state, children=True)) is None
        await self._assert_told(store, parent, children)

    async def test_children_of_a_terminated_parent_are_told(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        children = {
            policy: await start_owned(store, worker, parent_run_id=parent.run_id, parent_policy=policy)
            for policy in ParentPolicy
        }
        assert await store.close_run(parent.run_id, parent.head, last_word(parent), RunState.TERMINATED, "enough")
        await self._assert_told(store, parent, children)

    async def test_children_of_a_parent_over_its_time_are_told(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker, timeout=4 * SECOND)
        children = {
            policy: await start_owned(store, worker, parent_run_id=parent.run_id, parent_policy=policy)
            for policy in ParentPolicy
        }
        store.shift_clock(5)
        await beat(store, worker)
        assert (await store.get_run(parent.run_id)).state is RunState.TIMED_OUT
        await self._assert_told(store, parent, children)

    async def _assert_told(self, store: Store, parent: Pen, children: dict[ParentPolicy, Pen]) -> None:
        kinds = {ParentPolicy.CANCEL: MessageKind.CANCEL, ParentPolicy.TERMINATE: MessageKind.TERMINATE}
        for policy, child in children.items():
            told = [(m.message_id, m.kind) for m in await messages(store, child)]
            expected = [(f"parent:{parent.run_id}", kinds[policy])] if policy in kinds else []
            assert told == expected

    async def test_a_waiting_child_becomes_due(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        await child.release(store, worker)
        await parent.write(store, worker, move=Move(RunState.COMPLETED, children=True))
        assert (await claim_one(store, worker)).run.run_id == child.run_id

    @pytest.mark.parametrize("first", ["parent", "child"])
    async def test_a_child_evicted_in_the_same_batch_is_due_at_once(self, store: Store, first: str) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        changes = [
            parent.change(1, move=Move(RunState.COMPLETED, children=True)),
            child.change(1, move=Move(RunState.WAITING)),
        ]
        assert await store.commit(worker.worker_id, changes if first == "parent" else changes[::-1]) == {}
        assert (await claim_one(store, worker)).run.run_id == child.run_id

    async def test_a_closed_child_is_told_nothing(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = await start_owned(store, worker, parent_run_id=parent.run_id)
        await child.write(store, worker, move=Move(RunState.COMPLETED))
        await parent.write(store, worker, move=Move(RunState.COMPLETED, children=True))
        assert await inbox(store, child) == []

    async def test_a_child_that_ends_with_its_parent_hurts_nobody(self, store: Store) -> None:
        worker = await live_worker(store)
        for order in (1, -1):
            parent = await start_owned(store, worker)
            child = await start_owned(store, worker, parent_run_id=parent.run_id)
            changes = [
                parent.change(1, move=Move(RunState.COMPLETED, children=True)),
                child.change(1, move=end()),
            ]
            assert await store.commit(worker.worker_id, changes[::order]) == {}
            states = [(await store.get_run(pen.run_id)).state for pen in (parent, child)]
            assert states == [RunState.COMPLETED, RunState.COMPLETED]

    async def test_a_child_started_with_its_parents_last_turn_is_told(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        kept = child_of(parent, parent_policy=ParentPolicy.ABANDON)
        told = child_of(parent, parent_policy=ParentPolicy.TERMINATE)
        change = parent.change(1, effects=births(kept, told), move=Move(RunState.COMPLETED, children=True))
        for _ in range(2):
            assert await store.commit(worker.worker_id, [change]) == {}
            assert [m.kind for m in (await store.load(kept.run_id)).messages] == [MessageKind.START]
            kinds = [m.kind for m in (await store.load(told.run_id)).messages]
            assert kinds == [MessageKind.START, MessageKind.TERMINATE]

    async def test_nobody_is_told_when_there_is_no_child_to_look_for(self, store: Store) -> None:
        worker = await live_worker(store)
        parent, stranger = await start_owned(store, worker), await start_owned(store, worker)
        assert await parent.write(store, worker, move=Move(RunState.COMPLETED, children=True)) is None
        assert await inbox(store, stranger) == []

    async def test_kin_of_another_namespace_is_a_stranger(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        worker, foreign = await live_worker(store), await live_worker(other)
        parent = await start_owned(store, worker)
        stranger = await start_owned(other, foreign, parent_run_id=parent.run_id)
        assert await stranger.write(other, foreign, move=end()) is None
        assert await inbox(store, parent) == []
        stranger = await start_owned(other, foreign, parent_run_id=parent.run_id)
        await parent.write(store, worker, move=Move(RunState.COMPLETED, children=True))
        assert await inbox(other, stranger) == []
