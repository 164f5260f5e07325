"""Messages: sent once, read by the chain's owner, never lost."""

from __future__ import annotations

import secrets

import pytest
from msgspec.structs import replace

from batuta.clock import SECOND
from batuta.errors import QuotaExceeded, RunClosed, UnknownRun
from batuta.journal.paging import unread_pages
from batuta.journal.quotas import EVERYBODY, WAITING, Quota
from batuta.journal.records import (
    HEARTBEAT,
    PAGE_BYTES,
    REJECTED,
    Effects,
    IfExists,
    Message,
    MessageKind,
    Move,
    Output,
    OutputKind,
)
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

    async def test_what_was_received_is_told_with_whether_it_was_read(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for message_id, kind in (("c", MessageKind.CANCEL), ("b", MessageKind.UPDATE), ("a", MessageKind.SIGNAL)):
            await store.send(pen.run_id, Message(message_id=message_id, kind=kind, name="x"))
        await pen.write(store, worker, consumed=["a", "c"])
        found = [(one.message_id, one.kind, one.read) for one in await store.received(pen.run_id)]
        assert found[:3] == [
            ("a", MessageKind.SIGNAL, True),
            ("b", MessageKind.UPDATE, False),
            ("c", MessageKind.CANCEL, True),
        ]
        waiting, _ = await store.start(new_run())
        [start] = await store.received(waiting.run_id)
        assert (start.kind, start.read) == (MessageKind.START, False)
        assert [one.message_id for one in await store.received(pen.run_id, "a", 1)] == ["b"]

    async def test_a_heartbeat_from_outside_leaves_nothing_behind(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        sign = Message(message_id=f"{HEARTBEAT}1", kind=MessageKind.ACTIVITY, name=str(pen.run_id), body="{}")
        for message in (sign, signal(f"{HEARTBEAT}2")):
            await store.send(pen.run_id, message)
            await pen.write(store, worker, 0, consumed=[message.message_id])
        assert (await store.load(pen.run_id)).messages == []
        assert await store.send(pen.run_id, sign)
        assert not await store.send(pen.run_id, signal(f"{HEARTBEAT}2"))

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
            stored = await claim_one(store, worker)
            assert (stored.run.run_id, [m.message_id for m in stored.messages]) == (pen.run_id, ["m"])

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
        assert {
            run_id: (epoch, [m.message_id for m in messages]) for run_id, (epoch, messages, *_) in found.items()
        } == {
            pens[0].run_id: (1, ["m2"]),
            pens[1].run_id: (-1, ["m1", "m2"]),
            pens[2].run_id: (1, []),
        }
        assert await store.unread([]) == {}

    async def test_many_long_messages_are_read_in_pages(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        long = f'"{secrets.token_urlsafe(PAGE_BYTES // 2)[: PAGE_BYTES // 5 * 3]}"'  # as long when it is compressed
        for number in range(5):
            await store.send(pen.run_id, signal(f"m{number}", body=long))
        await store.send(pen.run_id, Message(message_id="c", kind=MessageKind.CANCEL))
        await store.send(pen.run_id, Message(message_id="p", kind=MessageKind.PAUSE, name="why"))
        everything = left = ["m0", "m1", "m2", "m3", "m4", "c", "p"]
        while left:
            _, messages, more, _ = (await store.unread([pen.run_id]))[pen.run_id]
            stored = await store.load(pen.run_id)
            assert (stored.messages, stored.more) == (messages, more)
            page = [one.message_id for one in messages]
            assert page == ([*left[:2], "p"] if len(left) > 3 else left)
            assert more or len(left) <= 4
            pages = [page async for page in unread_pages(store, pen.run_id)]
            assert pages[0] == messages
            assert sorted(one.message_id for page in pages for one in page) == sorted(left)
            assert all(len([one for one in page if one.message_id.startswith("m")]) <= 2 for page in pages)
            after, read = "", list[str]()
            while lying := await store.inbox(pen.run_id, after):
                assert len([one for one in lying if one.body == long]) <= 2
                read += [one.message_id for one in lying]
                after = read[-1]
            assert read == sorted(everything)
            consumed = [one for one in page if one != "p" or page == left]
            await pen.write(store, worker, consumed=consumed)
            left = [one for one in left if one not in consumed]

    async def test_a_page_has_what_a_run_begins_with(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        long = f'"{"x" * PAGE_BYTES}"'
        for number in range(3):
            await store.send(pen.run_id, signal(f"m{number}", body=long))
        run, _ = await store.start(new_run())
        for number in range(3):
            await store.send(run.run_id, signal(f"m{number}", body=long))
        await store.send(run.run_id, Message(message_id="c", kind=MessageKind.CANCEL))
        stored = await store.load(run.run_id)
        assert [one.message_id for one in stored.messages] == [f"start:{run.run_id}", "m0", "c"]
        assert stored.more
        claim = await store.claim(worker, 10)
        [claimed] = [one for one in claim.stored_runs if one.run.run_id == run.run_id]
        assert ([one.message_id for one in claimed.messages], claimed.more) == (
            [f"start:{run.run_id}", "m0", "c"],
            True,
        )

    async def test_an_update_that_was_rejected_can_be_sent_again(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        ask = Message(message_id="u", kind=MessageKind.UPDATE, name="ask", body="[1]")
        chain = pen.run_id
        assert await store.send(pen.run_id, ask)
        [first] = (await store.load(pen.run_id)).messages
        assert not await store.send(pen.run_id, ask), "it has not been read yet"
        rejected = Output(kind=OutputKind.ANSWER, name="u", ord=REJECTED, at=1, error='{"kind":"UpdateRejected"}')
        await pen.write(store, worker, 0, consumed=["u"], effects=Effects(outputs=[rejected]))
        assert await store.answers([(chain, "u")]) == [rejected]
        assert await store.send(pen.run_id, signal("between"))
        assert await store.send(pen.run_id, replace(ask, body="[2]"))
        assert await store.answers([(chain, "u")]) == [None]
        between, again = (await store.load(pen.run_id)).messages
        assert (between.message_id, again.message_id, again.body) == ("between", "u", "[2]")
        assert again.number > first.number
        assert (await beat(store, worker)).unread == [pen.run_id]
        accepted = Output(kind=OutputKind.ANSWER, name="u", ord=1, at=1, value="3")
        await pen.write(store, worker, 1, consumed=["u", "between"], effects=Effects(outputs=[accepted]))
        assert not await store.send(pen.run_id, ask)
        assert await store.answers([(chain, "u")]) == [accepted]

    async def test_an_update_that_was_rejected_stays_so_when_its_run_has_ended(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, Message(message_id="u", kind=MessageKind.UPDATE))
        rejected = Output(kind=OutputKind.ANSWER, name="u", ord=REJECTED, at=1, error="{}")
        end = Move(RunState.COMPLETED)
        await pen.write(store, worker, consumed=["u"], move=end, effects=Effects(outputs=[rejected]))
        assert not await store.send(pen.run_id, Message(message_id="u", kind=MessageKind.UPDATE))
        assert await store.answers([(pen.run_id, "u")]) == [rejected]

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
        assert caught.value.id == (await store.get_run(pen.run_id)).id  # not its run id, which no caller has given
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

    # -- how many may wait

    async def test_an_inbox_takes_so_many_messages_from_outside(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        other = await start_owned(store, worker)
        await store.set_quota(Quota(name=WAITING, limit=3))
        for n in range(3):
            await store.send(other.run_id, signal(f"other {n}"))
            assert await store.send(pen.run_id, signal(f"m{n}"))
        for refused in (
            signal("one more"),
            Message(message_id="u", kind=MessageKind.UPDATE, name="ask"),
            Message(message_id=f"{HEARTBEAT}1", kind=MessageKind.ACTIVITY, name=str(pen.run_id)),
        ):
            with pytest.raises(QuotaExceeded, match="3 unread messages wait in the inbox of run") as full:
                await store.send(pen.run_id, refused)
            assert (full.value.quota, full.value.limit, full.value.namespace) == (WAITING, 3, store.namespace)
        assert not await store.send(pen.run_id, signal("m1"))  # it was sent before
        assert len((await store.load(pen.run_id)).messages) == 3

    async def test_a_full_inbox_still_takes_what_ends_a_run_or_answers_it(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.set_quota(Quota(name=WAITING, limit=1))
        await store.send(pen.run_id, signal("m"))
        for kind in (MessageKind.CANCEL, MessageKind.CHILD, MessageKind.ACTIVITY):
            assert await store.send(pen.run_id, Message(message_id=f"a {kind}", kind=kind, name=str(pen.run_id)))

    async def test_an_inbox_that_was_read_takes_messages_again(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.set_quota(Quota(name=WAITING, limit=2))
        for n in range(2):
            await store.send(pen.run_id, signal(f"m{n}"))
        await pen.write(store, worker, consumed=["m0"])
        assert await store.send(pen.run_id, signal("m2"))
        with pytest.raises(QuotaExceeded):
            await store.send(pen.run_id, signal("m3"))
        await store.set_quota(Quota(name=WAITING, limit=None))
        assert await store.send(pen.run_id, signal("m3"))

    async def test_a_start_with_a_signal_for_a_full_inbox_is_refused(self, store: Store) -> None:
        first = new_run(id="busy")
        await store.start(first)
        await store.set_quota(Quota(name=WAITING, limit=1))
        await store.send(first.run_id, signal("m"))
        with pytest.raises(QuotaExceeded):
            await store.start(new_run(id="busy", if_exists=IfExists.RETURN), signal("again"))
        assert (await store.start(new_run(id="idle"), signal("first")))[1]

    async def test_everybodys_quota_holds_where_a_namespace_has_none(self, make_store: MakeStore) -> None:
        mine, everybody = await make_store(namespace="mine"), await make_store(namespace=EVERYBODY)
        run, _ = await mine.start(new_run())
        await everybody.set_quota(Quota(name=WAITING, limit=1))
        await mine.send(run.run_id, signal("m0"))
        with pytest.raises(QuotaExceeded):
            await mine.send(run.run_id, signal("m1"))
        await mine.set_quota(Quota(name=WAITING, limit=2))
        assert await mine.send(run.run_id, signal("m1"))
        with pytest.raises(QuotaExceeded):
            await mine.send(run.run_id, signal("m2"))
