"""Paused runs: they do nothing, and lose nothing."""

from __future__ import annotations

import pytest

from batuta.clock import SECOND
from batuta.ids import RunId, new_run_id
from batuta.journal.audit import Act, Verb, state_json
from batuta.journal.entries import Body, EntryKind, crc_holds, encode_entry
from batuta.journal.records import PAUSES, Attempt, Effects, Message, MessageKind, Move, Run, RunKind, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.commits.hints import Ear
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
from batuta.testing.conformance.operators.audit import log_of
from batuta.testing.conformance.runs.chains import going_on
from batuta.testing.conformance.runs.children import child_of, messages

HOUR = 3_600
DONE = Move(RunState.COMPLETED, outcome='{"seq":0,"value":1}')


async def pause(store: Store, *run_ids: RunId, reason: str = "look at it") -> list[RunId]:
    return await store.pause_runs(run_ids, Act(actor="ada", verb=Verb.PAUSE, reason=reason))


async def resume(store: Store, *run_ids: RunId) -> list[RunId]:
    return await store.resume_runs(run_ids, Act(actor="ada", verb=Verb.RESUME))


async def pending(store: Store, id: str | None = None, **options: object) -> Run:
    return (await store.start(new_run(id, **options)))[0]


class PauseConformance:
    """Runs without an owner are paused at once; the others by their owner."""

    async def test_what_has_not_begun_is_held_and_goes_on_at_its_time(self, store: Store) -> None:
        worker = await live_worker(store)
        run = await pending(store, delay=HOUR * SECOND)
        assert await pause(store, run.run_id) == [run.run_id]
        held = await store.get_run(run.run_id)
        assert (held.state, held.wake_at, held.resume_at, held.owner) == ("paused", None, run.wake_at, None)
        assert held.paused_at is not None
        assert held.reason == "look at it"
        store.shift_clock(2 * HOUR)
        await store.register(worker)
        assert await claimed(store, worker) == []
        assert await store.due_at(worker) is None
        assert await resume(store, run.run_id) == [run.run_id]
        again = await store.get_run(run.run_id)
        assert (again.state, again.wake_at, again.paused_at, again.resume_at) == ("pending", run.wake_at, None, None)
        assert again.reason == ""
        stored = await claim_one(store, worker)
        assert [message.kind for message in stored.messages] == ["start"]

    async def test_what_waits_is_held_and_goes_on_at_its_time(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        wake_at = await store.now() + HOUR * SECOND
        await pen.release(store, worker, wake_at)
        assert await pause(store, pen.run_id) == [pen.run_id]
        assert await resume(store, pen.run_id) == [pen.run_id]
        run = await store.get_run(pen.run_id)
        assert (run.state, run.wake_at) == ("waiting", wake_at)
        assert await claimed(store, worker) == []

    async def test_an_owner_is_told_and_lets_go_of_it(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        ear = Ear(store)
        assert await pause(store, pen.run_id, reason="wait") == [pen.run_id]
        await ear.hears(lambda hint: pen.run_id in hint.messages)
        assert (await store.get_run(pen.run_id)).state == "running"
        [message] = (await store.load(pen.run_id)).messages
        assert (message.message_id, message.kind, message.name) == ("pause:1", "pause", "wait")
        wake_at = await store.now() + HOUR * SECOND
        assert await pen.write(store, worker, 1, move=Move(RunState.PAUSED, wake_at=wake_at, reason="wait")) is None
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.wake_at, run.resume_at) == ("paused", None, None, wake_at)
        assert run.paused_at is not None
        assert (run.head, run.reason) == (1, "wait")
        assert await inbox(store, pen) == []
        assert await resume(store, pen.run_id) == [pen.run_id]
        run = await store.get_run(pen.run_id)
        assert (run.state, run.wake_at, run.paused_at, run.reason) == ("waiting", wake_at, None, "")

    @pytest.mark.parametrize("kind", [RunKind.JOB, RunKind.WORKFLOW])
    async def test_a_run_that_nobody_has_begun_is_ended_wherever_it_waits(self, store: Store, kind: RunKind) -> None:
        worker = await live_worker(store)
        first = await start_owned(store, worker, "long", kind=RunKind.WORKFLOW)
        await first.write(store, worker, move=Move(RunState.CONTINUED), effects=going_on())
        goes_on = await store.get("long")
        waits, held, told = [await pending(store, kind=kind, delay=n * HOUR * SECOND) for n in range(3)]
        await store.send(told.run_id, signal("s"))
        await pause(store, held.run_id)
        await store.pause_queue("default", True, "", Act(actor="ada", verb=Verb.PAUSE_QUEUE))
        runs = [waits.run_id, held.run_id, goes_on.run_id, told.run_id, new_run_id()]
        for run_id in runs[:4]:
            await store.send(run_id, Message(message_id=f"cancel:{run_id}", kind=MessageKind.CANCEL))
        assert set(await store.end_unbegun(runs, "enough")) == {waits.run_id, held.run_id}
        for run_id in (waits.run_id, held.run_id):
            run, last = await store.outcome(run_id)
            assert (run.state, run.head, run.reason, run.epoch) == ("cancelled", 0, "enough", 1)
            assert last is not None
            assert (last.kind, run.paused_at, run.wake_at) == (EntryKind.CANCELLED, None, None)
            assert crc_holds(last, 0)
        assert await store.end_unbegun(runs, "enough") == []
        await store.pause_queue("default", False, "", Act(actor="ada", verb=Verb.RESUME_QUEUE))
        owned = await pending(store, kind=kind, queue="other")
        worker.queues.append("other")
        due = {stored.run.run_id for stored in await claimed(store, worker)}
        assert due == {goes_on.run_id, told.run_id, owned.run_id}
        assert await store.end_unbegun([owned.run_id], "too late") == []

    async def test_the_parent_of_a_job_that_is_ended_so_is_told(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        child = child_of(pen, kind=RunKind.JOB, queue="other")
        await pen.write(store, worker, effects=Effects(children=[child]))
        assert await store.end_unbegun([child.run_id], "enough") == [child.run_id]
        [message] = await messages(store, pen)
        assert (message.kind, message.message_id) == ("child", f"child:{child.run_id}")
        assert "RunCancelled" in message.body

    async def test_how_long_it_was_held_is_noted_and_answers_from_outside_have_as_much_more_time(
        self, store: Store
    ) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        begun = await store.now()
        tries = [
            Attempt(seq=1, number=1, started_at=begun, ended_at=begun + 1, next_at=begun + 2, outside=True),
            Attempt(seq=1, number=2, started_at=begun, next_at=begun + 3, outside=True),
            Attempt(seq=2, number=1, started_at=begun, outside=True),
            Attempt(seq=3, number=1, started_at=begun, ended_at=begun + 1, next_at=begun + 4, error="{}"),
        ]
        await pen.write(store, worker, 0, attempts=tries)
        await pen.release(store, worker, None)
        for number in (1, 2):
            await pause(store, pen.run_id)
            held = await store.get_run(pen.run_id)
            assert held.paused_at is not None
            store.shift_clock(HOUR)
            await resume(store, pen.run_id)
            last = (await store.attempts(pen.run_id, PAUSES))[-1]
            assert (last.seq, last.number, last.started_at) == (PAUSES, number, held.paused_at)
            assert (last.ended_at or 0) >= held.paused_at + HOUR * SECOND
        pauses = await store.attempts(pen.run_id, PAUSES)
        paused = sum((one.ended_at or 0) - one.started_at for one in pauses)
        kept = [one for one in (await store.load(pen.run_id)).attempts if one.seq != PAUSES]
        assert [one.next_at for one in kept] == [begun + 2, begun + 3 + paused, None, begun + 4]

    async def test_of_a_job_that_has_not_begun_it_is_not_noted(self, store: Store) -> None:
        run = await pending(store, kind=RunKind.JOB)
        await pause(store, run.run_id)
        await resume(store, run.run_id)
        assert await store.attempts(run.run_id) == []

    async def test_one_that_was_resumed_before_its_owner_let_go_goes_on(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pause(store, pen.run_id)
        assert await resume(store, pen.run_id) == [pen.run_id]
        assert await inbox(store, pen) == []
        wake_at = await store.now() + HOUR * SECOND
        assert await pen.write(store, worker, 1, move=Move(RunState.PAUSED, wake_at=wake_at)) is None
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.wake_at, run.paused_at) == ("waiting", None, wake_at, None)

    async def test_one_that_has_not_begun_and_was_resumed_is_due(self, store: Store) -> None:
        worker = await live_worker(store)
        run = await pending(store)
        pen = Pen.of(await claim_one(store, worker))
        await pause(store, run.run_id)
        await resume(store, run.run_id)
        assert await pen.write(store, worker, 0, move=Move(RunState.PAUSED)) is None
        assert (await store.get_run(run.run_id)).state == "pending"
        assert (await claim_one(store, worker)).run.run_id == run.run_id

    async def test_what_is_held_or_being_held_is_left_alone(self, store: Store) -> None:
        worker = await live_worker(store)
        pen, run = await start_owned(store, worker), await pending(store)
        assert await pause(store, pen.run_id, run.run_id) == [pen.run_id, run.run_id]
        held = await store.get_run(run.run_id)
        assert await pause(store, pen.run_id, run.run_id) == []
        assert await store.get_run(run.run_id) == held
        assert await inbox(store, pen) == ["pause:1"]
        assert len(await log_of(store)) == 2

    async def test_what_is_closed_unknown_or_elsewhere_is_left_alone(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        elsewhere = await make_store("elsewhere")
        other = await pending(elsewhere)
        asked = (pen.run_id, new_run_id(), other.run_id)
        assert await pause(store, *asked) == await resume(store, *asked) == []
        assert await resume(elsewhere, other.run_id) == []
        assert await log_of(store) == []

    async def test_every_act_is_recorded_with_both_states(self, store: Store) -> None:
        worker = await live_worker(store)
        pen, run = await start_owned(store, worker, "owned"), await pending(store, "idle")
        await pause(store, pen.run_id, run.run_id, run.run_id)
        await resume(store, run.run_id)
        rows = await log_of(store)
        assert [(row.verb, row.target, row.before, row.after, row.reason) for row in rows] == [
            ("pause", "owned", state_json("running"), state_json("running"), "look at it"),
            ("pause", "idle", state_json("pending"), state_json("paused"), "look at it"),
            ("resume", "idle", state_json("paused"), state_json("pending"), ""),
        ]
        assert rows[1].run_id == str(run.run_id)

    async def test_many_are_held_at_once(self, store: Store) -> None:
        outcomes = await store.start_many([new_run() for _ in range(500)])
        run_ids = [outcome[0].run_id for outcome in outcomes if isinstance(outcome, tuple)]
        assert await pause(store, *run_ids) == run_ids
        assert len(await log_of(store)) == 500
        assert await resume(store, *run_ids) == run_ids
        worker = await live_worker(store)
        assert len(await claimed(store, worker, 1_000)) == 500

    async def test_a_second_pause_has_an_id_of_its_own(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for number in (1, 2, 3):
            await pause(store, pen.run_id)
            assert await inbox(store, pen) == [f"pause:{number}"]
            await resume(store, pen.run_id)


class PausedConformance:
    """What happens to a run while it is held."""

    async def test_messages_wait_and_make_it_due_when_it_goes_on(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.release(store, worker, await store.now() + HOUR * SECOND)
        await pause(store, pen.run_id)
        assert await store.send(pen.run_id, signal("s1"))
        assert await claimed(store, worker) == []
        await resume(store, pen.run_id)
        stored = await claim_one(store, worker)
        assert [message.message_id for message in stored.messages] == ["s1"]

    async def test_a_signal_does_not_begin_what_is_to_begin_later(self, store: Store) -> None:
        worker = await live_worker(store)
        run = await pending(store, delay=HOUR * SECOND)
        await pause(store, run.run_id)
        await store.send(run.run_id, signal("s1"))
        await resume(store, run.run_id)
        assert await claimed(store, worker) == []

    async def test_a_cancel_begins_it_when_it_goes_on(self, store: Store) -> None:
        worker = await live_worker(store)
        run = await pending(store, delay=HOUR * SECOND)
        await pause(store, run.run_id)
        await store.send(run.run_id, Message(message_id="c", kind=MessageKind.CANCEL))
        assert await claimed(store, worker) == []
        await resume(store, run.run_id)
        assert (await claim_one(store, worker)).run.run_id == run.run_id

    async def test_its_deadline_waits_with_it(self, store: Store) -> None:
        worker = await live_worker(store)
        run = await pending(store, timeout=HOUR * SECOND)
        await pause(store, run.run_id)
        store.shift_clock(3 * HOUR)
        await store.register(worker)
        await beat(store, worker)
        assert await claimed(store, worker) == []
        held = await store.get_run(run.run_id)
        assert held.state == "paused"
        await resume(store, run.run_id)
        again = await store.get_run(run.run_id)
        assert run.deadline is not None
        assert again.deadline is not None
        assert again.deadline >= run.deadline + 3 * HOUR * SECOND
        store.shift_clock(2 * HOUR)
        await store.register(worker)
        await beat(store, worker)
        assert (await store.get_run(run.run_id)).state == "timed_out"

    async def test_it_does_not_expire(self, store: Store) -> None:
        worker = await live_worker(store)
        run = await pending(store, expires=HOUR * SECOND)
        await pause(store, run.run_id)
        store.shift_clock(3 * HOUR)
        await store.register(worker)
        await beat(store, worker)
        assert (await store.get_run(run.run_id)).state == "paused"
        await resume(store, run.run_id)
        await beat(store, worker)
        again = await store.get_run(run.run_id)
        assert run.expires_at is not None
        assert again.expires_at is not None
        assert again.state == "pending"
        assert again.expires_at >= run.expires_at + 3 * HOUR * SECOND

    async def test_what_was_parked_is_tried_again(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason="?", fingerprint="v1"))
        await pause(store, pen.run_id)
        await beat(store, await live_worker(store, code={"flow": "v2"}))
        assert (await store.get_run(pen.run_id)).state == "paused"
        await resume(store, pen.run_id)
        stored = await claim_one(store, worker)
        assert (stored.run.run_id, stored.run.failed_code, stored.run.deaths) == (pen.run_id, [], 0)

    async def test_it_can_be_ended(self, store: Store) -> None:
        run = await pending(store)
        await pause(store, run.run_id)
        entry = encode_entry(0, EntryKind.TERMINATED, 1, Body(reason="r"), 0)
        assert await store.close_run(run.run_id, -1, entry, RunState.TERMINATED, "r")
        closed = await store.get_run(run.run_id)
        assert (closed.state, closed.paused_at, closed.resume_at) == ("terminated", None, None)
        assert await resume(store, run.run_id) == []

    async def test_it_is_debounced_no_more(self, store: Store) -> None:
        worker = await live_worker(store)
        first = await pending(store, debounce="key")
        await pause(store, first.run_id)
        second, is_new = await store.start(new_run(debounce="key", start='{"value":["second"]}'))
        assert is_new
        assert second.run_id != first.run_id
        assert (await claim_one(store, worker)).run.run_id == second.run_id

    async def test_what_comes_after_others_counts_them_while_it_is_held(self, store: Store) -> None:
        worker = await live_worker(store)
        member, after = new_run(), new_run()
        await store.start_many([member], after)
        await pause(store, after.run_id)
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, move=DONE)
        assert await claimed(store, worker) == []
        assert (await store.get_run(after.run_id)).awaits == 0
        await resume(store, after.run_id)
        assert (await claim_one(store, worker)).run.run_id == after.run_id

    async def test_what_comes_after_others_waits_for_them_when_it_goes_on(self, store: Store) -> None:
        worker = await live_worker(store)
        member, after = new_run(), new_run()
        await store.start_many([member], after)
        await pause(store, after.run_id)
        await resume(store, after.run_id)
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, move=DONE)
        assert (await claim_one(store, worker)).run.run_id == after.run_id

    async def test_one_whose_worker_died_while_it_was_being_held_can_go_on(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pause(store, pen.run_id)
        await self._die(store)
        assert await inbox(store, pen) == ["pause:1"]
        assert await resume(store, pen.run_id) == [pen.run_id]
        assert await inbox(store, pen) == []

    async def test_one_whose_worker_died_while_it_was_being_held_can_be_held(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pause(store, pen.run_id)
        await self._die(store)
        assert await pause(store, pen.run_id) == [pen.run_id]
        assert await inbox(store, pen) == []
        assert (await store.get_run(pen.run_id)).state == "paused"

    async def _die(self, store: Store) -> None:
        await outlive_lease(store)
        other = await live_worker(store, queues=["other"])
        await beat(store, other, reap=True)


class BulkConformance:
    """Many runs are asked to end, or ended, in one transaction."""

    async def test_open_runs_are_asked_to_end_once(self, store: Store) -> None:
        worker = await live_worker(store)
        owned = await start_owned(store, worker)
        later = await pending(store, delay=HOUR * SECOND)
        closed = await start_owned(store, worker)
        await closed.write(store, worker, move=Move(RunState.COMPLETED))
        asked = [owned.run_id, later.run_id, closed.run_id, new_run_id()]
        act = Act(actor="ada", verb=Verb.CANCEL, reason="over")
        ear = Ear(store)
        assert await store.cancel_runs(asked, "over", act) == [owned.run_id, later.run_id]
        await ear.hears(lambda hint: owned.run_id in hint.messages)
        [message] = (await store.load(owned.run_id)).messages
        assert (message.message_id, message.kind, message.name) == (f"cancel:{owned.run_id}", "cancel", "over")
        assert (await claim_one(store, worker)).run.run_id == later.run_id
        assert await store.cancel_runs(asked, "over", act) == []
        rows = await log_of(store)
        assert [(row.verb, row.run_id, row.before) for row in rows] == [
            ("cancel", str(owned.run_id), state_json("running")),
            ("cancel", str(later.run_id), state_json("pending")),
        ]

    async def test_one_that_was_asked_by_itself_is_not_asked_again(self, store: Store) -> None:
        run = await pending(store)
        await store.send(run.run_id, Message(message_id=f"cancel:{run.run_id}", kind=MessageKind.CANCEL))
        assert await store.cancel_runs([run.run_id], "", Act(actor="ada", verb=Verb.CANCEL)) == []

    async def test_open_runs_are_ended(self, store: Store) -> None:
        worker = await live_worker(store)
        owned, idle = await start_owned(store, worker), await pending(store)
        closed = await start_owned(store, worker)
        await closed.write(store, worker, move=Move(RunState.COMPLETED))
        asked = [owned.run_id, idle.run_id, closed.run_id, new_run_id()]
        act = Act(actor="ada", verb=Verb.TERMINATE, reason="over")
        ended = await store.terminate_runs(asked, "over", act)
        assert set(ended) == {owned.run_id, idle.run_id}
        for run_id, entries in ((owned.run_id, 2), (idle.run_id, 1)):
            run, last = await store.outcome(run_id)
            assert (run.state, run.reason, run.owner, run.head) == ("terminated", "over", None, entries - 1)
            assert last is not None
            assert last.kind is EntryKind.TERMINATED
            crc = 0
            for entry in await store.journal(run_id):
                assert crc_holds(entry, crc)
                crc = entry.crc
        assert await owned.write(store, worker) is Verdict.REFUSED
        assert await store.terminate_runs(asked, "over", act) == []
        rows = await log_of(store)
        assert {(row.run_id, row.before, row.after) for row in rows} == {
            (str(owned.run_id), state_json("running"), state_json("terminated")),
            (str(idle.run_id), state_json("pending"), state_json("terminated")),
        }

    async def test_a_parent_is_told_of_those_that_were_ended(self, store: Store) -> None:
        worker = await live_worker(store)
        parent = await start_owned(store, worker)
        child = new_run(parent_run_id=parent.run_id, parent_seq=1)
        await parent.write(store, worker, effects=Effects(children=[child]))
        await store.terminate_runs([child.run_id], "over", Act(actor="ada", verb=Verb.TERMINATE))
        assert await inbox(store, parent) == [f"child:{child.run_id}"]

    async def test_an_act_can_be_noted_by_itself(self, store: Store) -> None:
        await store.note_act("nightly", Act(actor="ada", verb=Verb.TRIGGER_SCHEDULE, detail="1"))
        [row] = await log_of(store)
        assert (row.verb, row.target, row.detail, row.run_id) == ("trigger schedule", "nightly", "1", "")
