"""Messages from one run to another."""

from __future__ import annotations

import pytest

from batuta.clock import SECOND
from batuta.journal.records import Effects, IfExists, Move, Refusal, Send, Verdict
from batuta.journal.states import RunState
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


def sends(*pairs: tuple[str, str], seq: int = 1) -> Effects:
    """Signals to runs, as pairs of id and message id. Each has a seq of its own."""
    return Effects(
        sends=[Send(seq=seq + index, id=id, message=signal(message)) for index, (id, message) in enumerate(pairs)]
    )


class SendsConformance:
    """A message from one run to another leaves with its turn, and arrives once or is refused."""

    async def test_a_send_arrives_at_the_current_run_of_the_id(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        assert await sender.write(store, worker, effects=sends(("target", "m1"), ("target", "m2"))) is None
        messages = (await store.load(target.run_id)).messages
        assert [(m.message_id, m.kind, m.name) for m in messages] == [("m1", "signal", "go"), ("m2", "signal", "go")]
        assert 0 < messages[0].number < messages[1].number
        assert 0 < messages[0].at <= await store.now()

    async def test_an_unowned_receiver_becomes_due(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        for wake_at in (None, await store.now() + 60 * SECOND):
            await target.release(store, worker, wake_at=wake_at)
            await sender.write(store, worker, effects=sends(("target", f"m{wake_at}")))
            stored = await claim_one(store, worker)
            assert [m.message_id for m in stored.messages] == [f"m{wake_at}"]
            target = Pen.of(stored)
            await target.write(store, worker, consumed=[f"m{wake_at}"])

    async def test_an_owned_receiver_stays_with_its_owner(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        await sender.write(store, worker, effects=sends(("target", "m")))
        run = await store.get_run(target.run_id)
        assert (run.state, run.owner, run.wake_at, run.epoch) == (RunState.RUNNING, worker.worker_id, None, 1)
        assert (await beat(store, worker)).unread == [target.run_id]

    async def test_a_receiver_does_not_begin_before_its_time(self, store: Store) -> None:
        worker = await live_worker(store)
        sender = await start_owned(store, worker)
        run, _ = await store.start(new_run("later", delay=60 * SECOND))
        assert await sender.write(store, worker, effects=sends(("later", "m"))) is None
        assert (await store.get("later")).wake_at == run.wake_at

    async def test_a_parked_receiver_stays_parked(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        await target.write(store, worker, move=Move(RunState.NEEDS_CODE, reason="stuck", fingerprint="v1"))
        assert await sender.write(store, worker, effects=sends(("target", "m"))) is None
        run = await store.get_run(target.run_id)
        assert (run.state, run.wake_at) == (RunState.NEEDS_CODE, None)
        assert await inbox(store, target) == ["m"]

    async def test_what_was_taken_is_not_sent_again_to_the_next_run_of_the_id(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        change = sender.change(effects=sends(("target", "m")))
        assert await store.commit(worker.worker_id, [change]) == {}
        sender.wrote(change)
        assert await target.write(store, worker, consumed=["m"], move=Move(RunState.COMPLETED)) is None
        following = await start_owned(store, worker, "target", if_exists=IfExists.RESTART)
        # By who did not get the store's answer, and by who comes after a worker that died before it could act on it.
        assert await store.commit(worker.worker_id, [change]) == {}
        later = Effects(sends=[Send(seq=1, id="target", message=signal("m"), again=True)])
        assert await sender.write(store, worker, 0, effects=later) is None
        assert await inbox(store, following) == []
        # A message that no run has read is kept until now.
        later = Effects(sends=[Send(seq=2, id="target", message=signal("n"), again=True)])
        assert await sender.write(store, worker, 0, effects=later) is None
        assert await inbox(store, following) == ["n"]

    async def test_what_an_earlier_run_of_the_id_has_taken_is_not_sent_again(self, store: Store) -> None:
        worker = await live_worker(store)
        sender = await start_owned(store, worker)
        for number in range(3):
            target = await start_owned(store, worker, "target", if_exists=IfExists.RESTART)
            assert await sender.write(store, worker, effects=sends(("target", f"m{number}"))) is None
            move = Move(RunState.COMPLETED)
            assert await target.write(store, worker, consumed=[f"m{number}"], move=move) is None
        elsewhere = await start_owned(store, worker, "elsewhere")
        assert await sender.write(store, worker, effects=sends(("elsewhere", "n"))) is None
        following = await start_owned(store, worker, "target", if_exists=IfExists.RESTART)
        names = enumerate(["m0", "m1", "m2", "n"])
        again = [Send(seq=seq, id="target", message=signal(name), again=True) for seq, name in names]
        assert await sender.write(store, worker, 0, effects=Effects(sends=again)) is None
        assert await inbox(store, following) == ["n"]
        assert await inbox(store, elsewhere) == ["n"]

    async def test_a_message_id_is_taken_once(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        assert await sender.write(store, worker, effects=sends(("target", "m"), ("target", "m"))) is None
        assert await sender.write(store, worker, effects=sends(("target", "m"))) is None
        assert not await store.send(target.run_id, signal("m"))
        assert await inbox(store, target) == ["m"]

    async def test_a_duplicate_is_accepted_even_when_the_receiver_is_closed(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        await sender.write(store, worker, effects=sends(("target", "m")))
        await target.write(store, worker, consumed=["m"], move=Move(RunState.COMPLETED))
        assert await sender.write(store, worker, effects=sends(("target", "m"))) is None

    async def test_nobody_to_send_to_is_said_per_send(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        done = await start_owned(store, worker, "done")
        await done.write(store, worker, move=Move(RunState.FAILED))
        await (await make_store(namespace="other")).start(new_run("foreign"))
        to = [("foreign", "m1"), ("target", "m2"), ("done", "m3"), ("none", "m4")]
        refused = await sender.write(store, worker, effects=sends(*to, seq=7))
        assert refused == [
            Refusal(7, "foreign", "UnknownRun"),
            Refusal(9, "done", "RunClosed", "failed"),
            Refusal(10, "none", "UnknownRun"),
        ]
        assert (await store.get_run(sender.run_id)).head == 1
        assert (await inbox(store, target), await inbox(store, done)) == (["m2"], [])

    async def test_refusals_are_told_by_the_change_that_they_belong_to(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker, f"run-{n}") for n in range(4)]
        pens[2].epoch = 7
        changes = [
            pens[0].change(1, effects=sends(("run-1", "m"))),
            pens[1].change(1, effects=sends(("none", "m"), ("run-0", "m"))),
            pens[2].change(1, effects=sends(("run-3", "never"))),
            pens[3].change(1),
        ]
        verdicts = await store.commit(worker.worker_id, changes)
        assert verdicts == {1: [Refusal(1, "none", "UnknownRun")], 2: Verdict.REFUSED}
        assert [await inbox(store, pen) for pen in pens] == [["m"], ["m"], [], []]

    async def test_a_repeated_commit_tells_the_same(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        change = sender.change(1, effects=sends(("target", "m1"), ("none", "m2"), ("target", "m3")))
        for _ in range(2):
            answer = await store.commit(worker.worker_id, [change])
            assert answer == {0: [Refusal(2, "none", "UnknownRun")]}
        assert await inbox(store, target) == ["m1", "m3"]

    async def test_a_repeated_commit_of_an_end_tells_the_same(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        change = sender.change(1, effects=sends(("target", "m1"), ("none", "m2")), move=Move(RunState.COMPLETED))
        for _ in range(2):
            answer = await store.commit(worker.worker_id, [change])
            assert answer == {0: [Refusal(2, "none", "UnknownRun")]}
            await target.write(store, worker, consumed=["m1"])

    async def test_a_run_that_starts_in_the_same_batch_can_be_sent_to(self, store: Store) -> None:
        worker = await live_worker(store)
        sender, new = await start_owned(store, worker), new_run("target")
        target = Pen(new.run_id, epoch=1)
        changes = [target.change(1, start=new), sender.change(1, effects=sends(("target", "m")))]
        assert await store.commit(worker.worker_id, changes) == {}
        assert await inbox(store, target) == ["m"]

    @pytest.mark.parametrize("first", ["sender", "receiver"])
    async def test_a_receiver_evicted_in_the_same_batch_is_due_at_once(self, store: Store, first: str) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        later = await store.now() + 600 * SECOND
        changes = [
            sender.change(1, effects=sends(("target", "m"))),
            target.change(1, move=Move(RunState.WAITING, wake_at=later)),
        ]
        assert await store.commit(worker.worker_id, changes if first == "sender" else changes[::-1]) == {}
        stored = await claim_one(store, worker)
        assert (stored.run.run_id, [m.message_id for m in stored.messages]) == (target.run_id, ["m"])

    async def test_two_runs_that_send_to_each_other_and_wait_are_both_due(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker, "ping"), await start_owned(store, worker, "pong")]
        changes = [
            pen.change(1, effects=sends((other, "m")), move=Move(RunState.WAITING))
            for pen, other in zip(pens, ("pong", "ping"), strict=True)
        ]
        assert await store.commit(worker.worker_id, changes) == {}
        assert {stored.run.id for stored in await claimed(store, worker, 10)} == {"ping", "pong"}

    @pytest.mark.parametrize("first", ["sender", "receiver"])
    async def test_a_receiver_that_ends_in_the_same_batch_loses_no_message(self, store: Store, first: str) -> None:
        worker = await live_worker(store)
        sender, target = await start_owned(store, worker), await start_owned(store, worker, "target")
        changes = [
            sender.change(1, effects=sends(("target", "m"))),
            target.change(1, move=Move(RunState.COMPLETED)),
        ]
        if first == "receiver":
            changes.reverse()
        answers = await store.commit(worker.worker_id, changes)
        sent, ended = (answers.get(place) for place in ((0, 1) if first == "sender" else (1, 0)))
        if sent is None:
            assert ended is Verdict.UNREAD
            assert await inbox(store, target) == ["m"]
            assert (await store.get_run(target.run_id)).state is RunState.RUNNING
        else:
            assert sent == [Refusal(1, "target", "RunClosed", "completed")]
            assert ended is None
            assert await inbox(store, target) == []

    async def test_a_run_can_send_to_itself(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "self")
        assert await pen.write(store, worker, effects=sends(("self", "m")), move=Move(RunState.WAITING)) is None
        stored = await claim_one(store, worker)
        assert [m.message_id for m in stored.messages] == ["m"]

    async def test_a_run_that_ends_gets_no_more_from_itself(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "self")
        refused = await pen.write(store, worker, effects=sends(("self", "m")), move=Move(RunState.COMPLETED))
        assert refused == [Refusal(1, "self", "RunClosed", "completed")]
        assert (await store.get_run(pen.run_id)).state is RunState.COMPLETED

    async def test_a_zombie_sends_nothing(self, store: Store) -> None:
        dead = await live_worker(store)
        sender, target = await start_owned(store, dead), await start_owned(store, dead, "target")
        await outlive_lease(store)
        worker = await live_worker(store)
        await beat(store, worker, reap=True)
        assert await sender.write(store, dead, effects=sends(("target", "m"))) is Verdict.REFUSED
        assert await inbox(store, target) == []

    async def test_many_sends_of_one_change_keep_their_order(self, store: Store) -> None:
        worker = await live_worker(store)
        sender = await start_owned(store, worker)
        pens = [await start_owned(store, worker, f"target-{n}") for n in range(3)]
        for pen in pens[:2]:
            await pen.release(store, worker)
        to = [(f"target-{n % 3}", f"m{n}") for n in range(1_500)]
        assert await sender.write(store, worker, effects=sends(*to)) is None
        for number, pen in enumerate(pens):
            assert await inbox(store, pen) == [f"m{n}" for n in range(number, 1_500, 3)]
        assert len(await claimed(store, worker, 10)) == 2
