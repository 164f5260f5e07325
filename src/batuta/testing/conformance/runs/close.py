"""Closing runs from outside: terminate and time out."""

from __future__ import annotations

from itertools import pairwise

import pytest

from batuta.clock import SECOND
from batuta.errors import UnknownRun
from batuta.journal.entries import Body, Entry, EntryKind, crc_holds, decode_body, encode_entry
from batuta.journal.records import Move, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import Pen, beat, claim_one, claimed, live_worker, new_run, start_owned


def last_word(pen: Pen) -> Entry:
    """The entry of a terminate at the pen's place."""
    crc = pen.last.crc if pen.last else 0
    return encode_entry(pen.head + 1, EntryKind.TERMINATED, 9_000, Body(reason="enough"), crc)


class CloseConformance:
    """After a run is closed, its owner can write nothing more."""

    async def test_a_terminated_run_is_closed_with_its_last_entry(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        entry = last_word(pen)
        assert await store.close_run(pen.run_id, pen.head, entry, RunState.TERMINATED, "enough")
        run, last = await store.outcome(pen.run_id)
        assert (run.state, run.owner, run.wake_at, run.reason) == (RunState.TERMINATED, None, None, "enough")
        assert (run.epoch, run.head, last) == (2, 1, entry)
        assert run.closed_at is not None
        assert await store.epochs(pen.run_id) == [1, 2]

    async def test_its_owner_is_refused_afterwards(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.close_run(pen.run_id, pen.head, last_word(pen), RunState.TERMINATED, "enough")
        for move in (None, Move(RunState.COMPLETED), Move(RunState.WAITING)):
            assert await pen.write(store, worker, move=move) is Verdict.REFUSED
        assert len(await store.journal(pen.run_id)) == 2

    async def test_a_head_that_has_moved_is_left_alone(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        entry, head = last_word(pen), pen.head
        await pen.write(store, worker)
        assert not await store.close_run(pen.run_id, head, entry, RunState.TERMINATED, "enough")
        run = await store.get_run(pen.run_id)
        assert (run.state, run.epoch, run.head) == (RunState.RUNNING, 1, 1)
        assert await pen.write(store, worker) is None

    async def test_a_closed_run_is_left_alone(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        before = await store.get_run(pen.run_id)
        assert not await store.close_run(pen.run_id, pen.head, last_word(pen), RunState.TERMINATED, "enough")
        assert await store.get_run(pen.run_id) == before
        assert len(await store.journal(pen.run_id)) == 2

    async def test_a_run_that_never_began_can_be_closed(self, store: Store) -> None:
        run, _ = await store.start(new_run())
        assert await store.close_run(run.run_id, -1, last_word(Pen(run.run_id, 0)), RunState.TERMINATED, "enough")
        worker = await live_worker(store)
        assert await claimed(store, worker, 10) == []
        closed = await store.get_run(run.run_id)
        assert (closed.state, closed.epoch, closed.head) == (RunState.TERMINATED, 1, 0)

    @pytest.mark.parametrize("state", [RunState.NEEDS_CODE, RunState.POISONED])
    async def test_a_parked_run_can_be_closed(self, store: Store, state: RunState) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(state, reason="stuck"))
        assert await store.close_run(pen.run_id, pen.head, last_word(pen), RunState.TERMINATED, "enough")

    async def test_an_unknown_run_cannot_be_closed(self, store: Store) -> None:
        with pytest.raises(UnknownRun):
            await store.close_run(new_run().run_id, 0, last_word(Pen(new_run().run_id, 0)), RunState.TERMINATED, "")

    # -- deadlines

    async def test_a_beat_times_out_what_is_over_its_deadline(self, store: Store) -> None:
        worker = await live_worker(store)
        owned = await start_owned(store, worker, timeout=4 * SECOND)
        asleep = await start_owned(store, worker, timeout=4 * SECOND)
        await asleep.release(store, worker, wake_at=await store.now() + 60 * SECOND)
        unbegun, _ = await store.start(new_run(timeout=4 * SECOND))
        patient = await start_owned(store, worker, timeout=60 * SECOND)
        store.shift_clock(5)
        other = await live_worker(store)
        await beat(store, other)
        for run_id, head in [(owned.run_id, 1), (asleep.run_id, 1), (unbegun.run_id, 0)]:
            run, last = await store.outcome(run_id)
            assert (run.state, run.owner, run.wake_at, run.head) == (RunState.TIMED_OUT, None, None, head)
            assert last is not None
            assert (last.kind, last.ord) == (EntryKind.TIMED_OUT, head)
            assert decode_body(last).reason == run.reason != ""
            assert (await store.epochs(run_id))[-1] == run.epoch
        assert (await store.get_run(patient.run_id)).state is RunState.RUNNING
        assert await owned.write(store, worker) is Verdict.REFUSED

    async def test_a_timed_out_tape_still_verifies(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, timeout=4 * SECOND)
        await pen.write(store, worker, 2)
        store.shift_clock(5)
        await beat(store, await live_worker(store))
        entries = await store.journal(pen.run_id)
        assert [entry.ord for entry in entries] == [0, 1, 2, 3]
        assert crc_holds(entries[0], 0)
        assert all(crc_holds(entry, before.crc) for before, entry in pairwise(entries))
        assert entries == sorted(entries, key=lambda entry: entry.at)

    async def test_nothing_times_out_early_or_twice(self, store: Store) -> None:
        worker = await live_worker(store)
        run, _ = await store.start(new_run(timeout=5 * SECOND))
        store.shift_clock(4)
        await beat(store, worker)
        assert (await store.get_run(run.run_id)).state is RunState.PENDING
        store.shift_clock(2)
        await beat(store, worker)
        closed = await store.get_run(run.run_id)
        store.shift_clock(2)
        await beat(store, worker)
        assert await store.get_run(run.run_id) == closed
        assert len(await store.journal(run.run_id)) == 1

    async def test_a_parked_run_times_out_too(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, timeout=5 * SECOND)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason="stuck"))
        store.shift_clock(6)
        await beat(store, await live_worker(store))
        assert (await store.get_run(pen.run_id)).state is RunState.TIMED_OUT

    async def test_an_owner_that_closed_in_time_is_not_timed_out(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run(timeout=5 * SECOND))
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        store.shift_clock(6)
        await beat(store, worker)
        assert (await store.get_run(pen.run_id)).state is RunState.COMPLETED
