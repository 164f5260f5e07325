"""Messages: sent once, read by the chain's owner, never lost."""

from __future__ import annotations

import pytest

from batuta.clock import SECOND
from batuta.errors import RunClosed, UnknownRun
from batuta.journal.records import IfExists, Message, MessageKind, Move
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    MakeStore,
    Pen,
    beat,
    claim_one,
    claimed,
    live_worker,
    new_run,
    signal,
    start_owned,
)


class InboxConformance:
    """A message that was accepted is read, once."""

    async def test_messages_come_in_order_of_their_numbers(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for index in range(5):
            assert await store.send(pen.run_id, signal(f"m{4 - index}", str(index)))
        messages = (await store.load(pen.run_id)).messages
        assert [m.body for m in messages] == ["0", "1", "2", "3", "4"]
        assert [m.number for m in messages] == sorted({m.number for m in messages})
        now = await store.now()
        assert all(0 < m.at <= now for m in messages)

    @pytest.mark.parametrize("kind", [MessageKind.SIGNAL, MessageKind.UPDATE, MessageKind.CANCEL, MessageKind.CHILD])
    async def test_every_kind_of_message_comes_back(self, store: Store, kind: MessageKind) -> None:
        run, _ = await store.start(new_run())
        body = '"' + "ç\\u0000" * 100_000 + '"'
        await store.send(run.run_id, Message(message_id="m", kind=kind, name="naïve", body=body))
        message = (await store.load(run.run_id)).messages[1]
        assert (message.message_id, message.kind, message.name, message.body) == ("m", kind, "naïve", body)

    async def test_a_message_id_is_taken_once(self, store: Store) -> None:
        run, _ = await store.start(new_run())
        assert await store.send(run.run_id, signal("m", '"first"'))
        assert not await store.send(run.run_id, signal("m", '"second"'))
        assert [m.body for m in (await store.load(run.run_id)).messages[1:]] == ['"first"']

    async def test_a_consumed_message_id_stays_taken(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        await pen.write(store, worker, consumed=["m"])
        assert not await store.send(pen.run_id, signal("m"))
        assert (await store.load(pen.run_id)).messages == []

    async def test_a_message_id_may_repeat_in_another_chain(self, store: Store) -> None:
        one, _ = await store.start(new_run())
        two, _ = await store.start(new_run())
        assert await store.send(one.run_id, signal("m"))
        assert await store.send(two.run_id, signal("m"))

    async def test_a_message_makes_an_unowned_run_due(self, store: Store) -> None:
        worker = await live_worker(store)
        for wake_at in (None, await store.now() + 60 * SECOND):
            pen = await start_owned(store, worker)
            await pen.release(store, worker, wake_at=wake_at)
            assert await claimed(store, worker, 10) == []
            await store.send(pen.run_id, signal("m"))
            tape = await claim_one(store, worker)
            assert (tape.run.run_id, [m.message_id for m in tape.messages]) == (pen.run_id, ["m"])

    async def test_a_message_does_not_make_a_due_run_later(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.release(store, worker, wake_at=77)
        await store.send(pen.run_id, signal("m"))
        assert (await store.get_run(pen.run_id)).wake_at == 77

    async def test_a_message_does_not_begin_a_run_before_its_time(self, store: Store) -> None:
        worker = await live_worker(store)
        run, _ = await store.start(new_run(delay=60 * SECOND))
        await store.send(run.run_id, signal("m"))
        assert (await store.get_run(run.run_id)).wake_at == run.wake_at
        assert await claimed(store, worker, 10) == []

    @pytest.mark.parametrize("kind", [MessageKind.CANCEL, MessageKind.TERMINATE])
    async def test_what_ends_a_run_need_not_wait_for_its_time(self, store: Store, kind: MessageKind) -> None:
        worker = await live_worker(store)
        run, _ = await store.start(new_run(delay=60 * SECOND))
        await store.send(run.run_id, Message(message_id="m", kind=kind))
        assert (await claim_one(store, worker)).run.run_id == run.run_id

    async def test_a_duplicate_wakes_nobody(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        await pen.write(store, worker, consumed=["m"], move=Move(RunState.WAITING))
        await store.send(pen.run_id, signal("m"))
        assert (await store.get_run(pen.run_id)).wake_at is None

    async def test_a_message_leaves_an_owned_run_with_its_owner(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.wake_at, run.epoch) == (RunState.RUNNING, worker.worker_id, None, 1)
        assert (await beat(store, worker)).unread == [pen.run_id]
        await pen.write(store, worker, consumed=["m"])
        assert (await beat(store, worker)).unread == []

    async def test_the_unread_of_many_runs_are_read_with_their_epochs(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker) for _ in range(3)]
        for pen in pens[:2]:
            await store.send(pen.run_id, signal("m1"))
            await store.send(pen.run_id, signal("m2"))
        await pens[0].write(store, worker, consumed=["m1"])
        await pens[1].write(store, worker, move=Move(RunState.TERMINATED))
        found = await store.unread([*(pen.run_id for pen in pens), new_run().run_id])
        assert {run_id: (epoch, [m.message_id for m in messages]) for run_id, (epoch, messages) in found.items()} == {
            pens[0].run_id: (1, ["m2"]),
            pens[1].run_id: (-1, ["m1", "m2"]),
            pens[2].run_id: (1, []),
        }
        assert await store.unread([]) == {}

    async def test_a_run_evicted_with_an_unread_message_is_due_at_once(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        await pen.release(store, worker, wake_at=await store.now() + 60 * SECOND)
        assert (await claim_one(store, worker)).run.run_id == pen.run_id

    async def test_a_run_that_read_all_is_not_due_at_once(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("m"))
        await pen.write(store, worker, consumed=["m"], move=Move(RunState.WAITING))
        assert (await store.get_run(pen.run_id)).wake_at is None

    @pytest.mark.parametrize("state", [RunState.NEEDS_CODE, RunState.POISONED])
    async def test_a_message_does_not_move_a_parked_run(self, store: Store, state: RunState) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, move=Move(state, reason="stuck"))
        assert await store.send(pen.run_id, signal("m"))
        run = await store.get_run(pen.run_id)
        assert (run.state, run.wake_at, run.reason) == (state, None, "stuck")
        assert len((await store.load(pen.run_id)).messages) == 1

    async def test_a_closed_run_refuses_messages(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, signal("before"))
        await pen.write(store, worker, consumed=["before"], move=Move(RunState.COMPLETED))
        with pytest.raises(RunClosed, match="completed") as caught:
            await store.send(pen.run_id, signal("after"))
        assert caught.value.id == (await store.get_run(pen.run_id)).id  # not its run id, which nobody has given it
        assert not await store.send(pen.run_id, signal("before"))

    async def test_a_restarted_id_does_not_inherit_messages(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "again")
        await store.send(pen.run_id, signal("old"))
        await pen.write(store, worker, move=Move(RunState.TERMINATED))
        run, _ = await store.start(new_run("again", if_exists=IfExists.RESTART))
        with pytest.raises(RunClosed):
            await store.send(pen.run_id, signal("new"))
        assert [m.kind for m in (await store.load(run.run_id)).messages] == [MessageKind.START]

    async def test_a_chain_carries_its_unread_on(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long")
        await store.send(first.run_id, signal("unread"))
        await first.write(store, worker, move=Move(RunState.CONTINUED))
        follower = new_run("long", chain_id=first.run_id, if_exists=IfExists.RESTART)
        pen = Pen(follower.run_id, epoch=1)
        assert await pen.write(store, worker, start=follower) is None
        assert await store.send(first.run_id, signal("late"))
        assert [m.message_id for m in (await store.load(follower.run_id)).messages] == ["unread", "late"]
        assert not await store.send(follower.run_id, signal("unread"))

    async def test_an_unknown_run_takes_no_message(self, store: Store, make_store: MakeStore) -> None:
        with pytest.raises(UnknownRun):
            await store.send(new_run().run_id, signal("m"))
        run, _ = await (await make_store(namespace="other")).start(new_run())
        with pytest.raises(UnknownRun):
            await store.send(run.run_id, signal("m"))

    async def test_nobody_reads_a_message_of_another_namespace(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        mine, _ = await store.start(new_run("same"))
        theirs, _ = await other.start(new_run("same"))
        await store.send(mine.run_id, signal("m"))
        assert await other.send(theirs.run_id, signal("m"))
        assert len((await other.load(theirs.run_id)).messages) == 2
