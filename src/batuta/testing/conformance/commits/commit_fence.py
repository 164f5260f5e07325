"""Committing changes, and the fence that keeps zombies out."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest

from batuta.clock import SECOND
from batuta.journal.entries import Body, EntryKind, crc_holds, encode_entry
from batuta.journal.records import (
    Attempt,
    Change,
    Effects,
    IfExists,
    Message,
    MessageKind,
    Move,
    Output,
    OutputKind,
    Refusal,
    Verdict,
    WorkerInfo,
)
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    MakeStore,
    Pen,
    beat,
    claim_one,
    claimed,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
    worker_info,
)
from batuta.testing.conformance.runs.plain import ended, job

MANY_ENDS = 120
"""So many completed runs that a store may write them by a statement of their own."""

PARTS: dict[str, dict[str, Any]] = {
    "one entry": {},
    "several entries": {"count": 3},
    "last entry": {"move": Move(RunState.COMPLETED)},
    "another end": {"move": Move(RunState.TIMED_OUT)},
    "continued": {"move": Move(RunState.CONTINUED)},
    "eviction": {"move": Move(RunState.WAITING, wake_at=77)},
    "eviction without an entry": {"count": 0, "move": Move(RunState.WAITING)},
    "parking": {"count": 0, "move": Move(RunState.NEEDS_CODE, fingerprint="v1")},
    "pause": {"count": 0, "move": Move(RunState.PAUSED)},
    "hand-back": {"count": 0, "move": Move(RunState.PENDING)},
    "attempts": {"count": 0, "attempts": [Attempt(seq=1, number=1, started_at=5)]},
    "read messages": {"consumed": ["nothing"]},
    "outputs": {"effects": Effects(outputs=[Output(kind=OutputKind.PUBLISHED, name="o", ord=1, at=5, value="1")])},
    "end told to a parent": {"move": Move(RunState.COMPLETED, outcome="{}")},
}
"""What a change of a run that exists may hold, by the statement that a store may have for it."""

WRITTEN_AGAIN = [way for way, parts in PARTS.items() if parts.get("count", 1)]
"""Those with entries, which can be told from another's."""


async def snapshot(store: Store, pen: Pen) -> Any:
    """All that a commit could change about a run."""
    stored = await store.load(pen.run_id)
    return stored, await store.epochs(pen.run_id), await store.get(stored.run.id)


async def successor_of_all(store: Store) -> WorkerInfo:
    """A worker that came when all leases were over, and set all runs free."""
    await outlive_lease(store)
    other = await live_worker(store)
    await beat(store, other, reap=True)
    return other


class CommitFenceConformance:
    """A change is durable as a whole, once, and only from the run's owner."""

    # -- what is written

    async def test_an_owned_start_is_running_here(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "mine", timeout=9 * SECOND)
        run = await store.get("mine")
        assert (run.run_id, run.state, run.owner) == (pen.run_id, RunState.RUNNING, worker.worker_id)
        assert (run.epoch, run.head, run.wake_at, run.closed_at) == (1, 0, None, None)
        assert run.deadline == run.created_at + 9 * SECOND
        assert (await store.load(pen.run_id)).messages == []

    async def test_entries_come_back_as_they_were_written(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        change = pen.change(5)
        assert await store.commit(worker.worker_id, [change]) == {}
        written = await store.journal(pen.run_id)
        assert written[1:] == change.entries
        assert all(crc_holds(entry, before.crc) for before, entry in pairwise(written))
        assert (await store.get_run(pen.run_id)).head == 5
        assert await store.epochs(pen.run_id) == [1] * 6

    async def test_a_whole_life_in_one_commit(self, store: Store) -> None:
        worker = await live_worker(store)
        new = new_run("short")
        pen = Pen(new.run_id, epoch=1)
        change = pen.change(3, start=new, move=Move(RunState.COMPLETED))
        assert await store.commit(worker.worker_id, [change]) == {}
        run = await store.get("short")
        assert (run.state, run.owner, run.head, run.wake_at) == (RunState.COMPLETED, None, 2, None)
        assert run.closed_at is not None

    async def test_a_start_may_begin_to_wait_at_once(self, store: Store) -> None:
        worker = await live_worker(store)
        new = new_run()
        pen, later = Pen(new.run_id, epoch=1), await store.now() + 60 * SECOND
        await pen.write(store, worker, start=new, move=Move(RunState.WAITING, wake_at=later))
        run = await store.get_run(new.run_id)
        assert (run.state, run.owner, run.wake_at) == (RunState.WAITING, None, later)

    async def test_closing_clears_owner_and_wake_up(self, store: Store) -> None:
        worker = await live_worker(store)
        for state in CLOSED:
            pen = await start_owned(store, worker)
            await pen.write(store, worker, move=Move(state, reason="because"))
            run = await store.get_run(pen.run_id)
            assert (run.state, run.owner, run.wake_at, run.reason) == (state, None, None, "because")
            assert (run.epoch, run.head) == (1, 1)
            assert run.created_at <= (run.closed_at or 0) <= await store.now()

    async def test_consumed_messages_are_not_read_again(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run())
        stored = await claim_one(store, worker)
        pen = Pen.of(stored)
        await store.send(pen.run_id, Message(message_id="kept", kind=MessageKind.SIGNAL))
        await pen.write(store, worker, consumed=[stored.messages[0].message_id])
        assert [m.message_id for m in (await store.load(pen.run_id)).messages] == ["kept"]

    async def test_a_batch_of_2000_changes(self, store: Store) -> None:
        worker = await live_worker(store)
        news = [new_run() for _ in range(2_000)]
        pens = [Pen(new.run_id, epoch=1) for new in news]
        starts = [pen.change(1, start=new) for pen, new in zip(pens, news, strict=True)]
        assert await store.commit(worker.worker_id, starts) == {}
        for pen, change in zip(pens, starts, strict=True):
            pen.wrote(change)
        moves = [None, Move(RunState.COMPLETED), Move(RunState.WAITING, wake_at=5), Move(RunState.FAILED)]
        changes = [pen.change(1, move=moves[index % 4]) for index, pen in enumerate(pens)]
        assert await store.commit(worker.worker_id, changes) == {}
        expected = [RunState.RUNNING, RunState.COMPLETED, RunState.WAITING, RunState.FAILED]
        for index in (0, 1, 2, 3, 1_998, 1_999):
            run = await store.get_run(pens[index].run_id)
            assert (run.state, run.head) == (expected[index % 4], 1)
            assert len(await store.journal(run.run_id)) == 2

    async def test_large_and_strange_text_survives(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for text in ("\x00", "a\x00b", "ação 🎼 \u2028", "'\"\\; DROP TABLE runs", "z" * 1_500_000):
            before = pen.last
            assert await pen.write(store, worker, text=text) is None
            entry = (await store.journal(pen.run_id, after=pen.head - 1))[0]
            assert entry == pen.last
            assert before is not None
            assert crc_holds(entry, before.crc)

    async def test_large_numbers_survive(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        entry = encode_entry(1, EntryKind.TIMER_FIRED, 2**62, Body(seq=2**40), 0xFFFF_FFFF)
        change = Change(run_id=pen.run_id, epoch=1, head=0, entries=[entry])
        assert await store.commit(worker.worker_id, [change]) == {}
        assert (await store.journal(pen.run_id))[1] == entry

    async def test_an_empty_batch_is_nothing(self, store: Store) -> None:
        assert await store.commit("nobody", []) == {}

    # -- what is refused

    async def test_a_stale_epoch_is_refused(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        other = await successor_of_all(store)
        before = await snapshot(store, pen)
        assert await pen.write(store, worker) is Verdict.REFUSED
        assert await snapshot(store, pen) == before
        successor = Pen.of(await claim_one(store, other))
        assert await pen.write(store, worker) is Verdict.REFUSED
        assert await successor.write(store, other) is None
        assert await store.epochs(pen.run_id) == [1, successor.epoch]

    async def test_a_stale_epoch_is_refused_though_the_same_worker_claimed_again(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        old = Pen(pen.run_id, pen.epoch, pen.head, pen.last)
        await pen.release(store, worker, wake_at=0)
        successor = Pen.of(await claim_one(store, worker))
        assert await old.write(store, worker) is Verdict.REFUSED
        assert await successor.write(store, worker) is None

    async def test_a_gap_and_a_repeated_head_are_refused(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 3)
        before = await snapshot(store, pen)
        ahead = Pen(pen.run_id, pen.epoch, pen.head + 2, pen.last)
        assert await ahead.write(store, worker) is Verdict.REFUSED
        behind = Pen(pen.run_id, pen.epoch, 0, pen.last)
        assert await behind.write(store, worker) is Verdict.REFUSED
        assert await snapshot(store, pen) == before

    async def test_a_closed_run_takes_nothing_more(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        before = await snapshot(store, pen)
        assert await pen.write(store, worker) is Verdict.REFUSED
        assert await pen.write(store, worker, move=Move(RunState.FAILED)) is Verdict.REFUSED
        assert await snapshot(store, pen) == before

    async def test_an_unknown_run_is_refused(self, store: Store) -> None:
        worker = await live_worker(store)
        assert await Pen(new_run().run_id, epoch=1, head=3).write(store, worker) is Verdict.REFUSED

    async def test_a_run_of_another_namespace_is_refused(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        other = await make_store(namespace="other")
        await other.register(worker)
        assert await pen.write(other, worker) is Verdict.REFUSED
        assert len(await store.journal(pen.run_id)) == 1

    async def test_a_refused_change_leaves_nothing(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
        await successor_of_all(store)
        before = await snapshot(store, pen)
        attempt = Attempt(seq=1, number=1, started_at=5)
        for move in (None, Move(RunState.WAITING), Move(RunState.COMPLETED), Move(RunState.NEEDS_CODE)):
            verdict = await pen.write(store, worker, consumed=["m"], attempts=[attempt], move=move)
            assert verdict is Verdict.REFUSED
        assert await snapshot(store, pen) == before

    async def test_refused_ones_do_not_hold_up_the_others(self, store: Store) -> None:
        worker = await live_worker(store)
        stale = await start_owned(store, worker)
        other = await successor_of_all(store)
        await store.register(worker)
        await store.start(new_run("taken"))
        good = [await start_owned(store, other) for _ in range(4)]
        fresh, taken = new_run("fresh"), new_run("taken")
        changes = [
            good[0].change(2),
            stale.change(1, move=Move(RunState.COMPLETED)),
            good[1].change(1, move=Move(RunState.COMPLETED)),
            Pen(taken.run_id, epoch=1).change(1, start=taken),
            good[2].change(1, move=Move(RunState.WAITING)),
            Pen(fresh.run_id, epoch=1).change(1, start=fresh),
            good[3].change(0, attempts=[Attempt(seq=1, number=1, started_at=5)]),
        ]
        verdicts = await store.commit(other.worker_id, changes)
        assert verdicts == {1: Verdict.REFUSED, 3: Verdict.EXISTS}
        assert [(await store.get_run(pen.run_id)).head for pen in good] == [2, 1, 1, 0]
        states = [(await store.get_run(pen.run_id)).state for pen in good]
        assert states == [RunState.RUNNING, RunState.COMPLETED, RunState.WAITING, RunState.RUNNING]
        assert len(await store.attempts(good[3].run_id)) == 1
        assert (await store.get("fresh")).owner == other.worker_id
        assert (await store.get_run(stale.run_id)).head == 0

    # -- starts by a worker

    async def test_a_start_by_a_worker_that_is_not_live_is_refused(self, store: Store) -> None:
        dead, never = await live_worker(store), worker_info()
        await outlive_lease(store)
        for worker in (dead, never):
            new = new_run()
            assert await Pen(new.run_id, epoch=1).write(store, worker, start=new) is Verdict.REFUSED
            assert (await store.start(new_run(new.id)))[1]

    async def test_a_retired_worker_starts_nothing(self, store: Store) -> None:
        worker, new = await live_worker(store), new_run()
        await store.retire(worker.worker_id)
        assert await Pen(new.run_id, epoch=1).write(store, worker, start=new) is Verdict.REFUSED

    @pytest.mark.parametrize("policy", list(IfExists))
    async def test_a_start_whose_id_is_open_exists(self, store: Store, policy: IfExists) -> None:
        worker = await live_worker(store)
        first, _ = await store.start(new_run("taken"))
        new = new_run("taken", if_exists=policy)
        assert await Pen(new.run_id, epoch=1).write(store, worker, start=new) is Verdict.EXISTS
        assert await store.get("taken") == first

    async def test_a_restart_takes_over_from_a_closed_run(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "again")
        await pen.write(store, worker, move=Move(RunState.COMPLETED))
        for policy in (IfExists.RETURN, IfExists.REJECT):
            new = new_run("again", if_exists=policy)
            assert await Pen(new.run_id, epoch=1).write(store, worker, start=new) is Verdict.EXISTS
        new = new_run("again", if_exists=IfExists.RESTART)
        assert await Pen(new.run_id, epoch=1).write(store, worker, start=new) is None
        assert (await store.get("again")).run_id == new.run_id

    async def test_one_of_two_starts_with_one_id_in_a_batch_wins(self, store: Store) -> None:
        worker = await live_worker(store)
        news = [new_run("twin") for _ in range(2)]
        changes = [Pen(new.run_id, epoch=1).change(1, start=new) for new in news]
        assert await store.commit(worker.worker_id, changes) == {1: Verdict.EXISTS}
        assert (await store.get("twin")).run_id == news[0].run_id

    # -- written again, because the first answer was lost

    @pytest.mark.parametrize(
        "move",
        [
            None,
            Move(RunState.COMPLETED),
            Move(RunState.WAITING, wake_at=77),
            Move(RunState.NEEDS_CODE, fingerprint="v1"),
        ],
        ids=["running", "closed", "waiting", "parked"],
    )
    async def test_the_same_batch_again_counts_as_durable(self, store: Store, move: Move | None) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
        new = new_run()
        changes = [
            pen.change(2, consumed=["m"], attempts=[Attempt(seq=1, number=1, started_at=5)], move=move),
            Pen(new.run_id, epoch=1).change(1, start=new, move=move),
        ]
        assert await store.commit(worker.worker_id, changes) == {}
        before = await snapshot(store, pen), await store.load(new.run_id)
        assert await store.commit(worker.worker_id, changes) == {}
        assert (await snapshot(store, pen), await store.load(new.run_id)) == before

    async def test_the_same_start_again_counts_as_durable_after_the_lease(self, store: Store) -> None:
        worker, new = await live_worker(store), new_run()
        change = Pen(new.run_id, epoch=1).change(1, start=new)
        assert await store.commit(worker.worker_id, [change]) == {}
        await outlive_lease(store)
        assert await store.commit(worker.worker_id, [change]) == {}

    async def test_half_a_batch_again_writes_the_other_half(self, store: Store) -> None:
        worker = await live_worker(store)
        pens = [await start_owned(store, worker) for _ in range(3)]
        changes = [pen.change(1) for pen in pens]
        assert await store.commit(worker.worker_id, changes[:1]) == {}
        assert await store.commit(worker.worker_id, changes) == {}
        assert [(await store.get_run(pen.run_id)).head for pen in pens] == [1, 1, 1]

    async def test_another_owners_progress_is_not_taken_for_ones_own(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        change = pen.change(1)
        other = await successor_of_all(store)
        await Pen.of(await claim_one(store, other)).write(store, other)
        assert await store.commit(worker.worker_id, [change]) == {0: Verdict.REFUSED}

    # -- two workers with one epoch: a failover has lost the claim of one, and the other has claimed the run since

    @pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a batch"])
    async def test_only_the_owner_writes_though_another_has_its_epoch_and_head(self, store: Store, alone: bool) -> None:
        owner, twin = await live_worker(store), await live_worker(store)
        for way, parts in PARTS.items():
            pen, others = await start_owned(store, owner), [await start_owned(store, twin) for _ in range(2)]
            before = await snapshot(store, pen)
            changes = [pen.change(**parts)] + ([] if alone else [other.change(1) for other in others])
            assert await store.commit(twin.worker_id, changes) == {0: Verdict.REFUSED}, way
            assert await snapshot(store, pen) == before, way
            assert [(await store.get_run(other.run_id)).head for other in others] == [0 if alone else 1] * 2, way
            assert (await store.commit(owner.worker_id, changes[:1])).get(0) is None, way

    @pytest.mark.parametrize("count", [1, 3, MANY_ENDS])
    async def test_only_the_owner_ends_runs_though_another_has_their_epochs(self, store: Store, count: int) -> None:
        owner, twin = await live_worker(store), await live_worker(store)
        pens = [await start_owned(store, owner) for _ in range(count)]
        changes = [pen.change(1, move=Move(RunState.COMPLETED)) for pen in pens]
        assert await store.commit(twin.worker_id, changes) == dict.fromkeys(range(count), Verdict.REFUSED)
        assert {(await store.get_run(pen.run_id)).head for pen in pens} == {0}
        assert await store.commit(owner.worker_id, changes) == {}
        assert {(await store.get_run(pen.run_id)).state for pen in pens} == {RunState.COMPLETED}

    async def test_only_the_owner_ends_jobs_and_hands_their_places_over(self, store: Store) -> None:
        owner, twin = await live_worker(store), await live_worker(store)
        await store.start_many([job() for _ in range(4)])
        changes = [ended(stored) for stored in await claimed(store, owner)]
        refused = dict.fromkeys(range(4), Verdict.REFUSED)
        assert await store.commit(twin.worker_id, changes) == refused
        assert (await store.hand_over(twin, changes, 4))[0] == refused
        assert {(await store.get_run(change.run_id)).head for change in changes} == {-1}
        assert (await store.hand_over(owner, changes, 4))[0] == {}

    @pytest.mark.parametrize("way", ["one entry", "last entry", "eviction", "outputs"])
    async def test_only_the_owner_commits_a_transaction(self, store: Store, way: str) -> None:
        owner, twin = await live_worker(store), await live_worker(store)
        pen = await start_owned(store, owner)
        change = pen.change(**PARTS[way])
        for worker, expected in ((twin, Verdict.REFUSED), (owner, [])):
            transaction = store.transact(2.0)
            await transaction.begin()
            assert await transaction.commit(worker.worker_id, change, _agreed) == expected
        assert await store.journal(pen.run_id, after=0) == change.entries

    async def test_another_entry_at_the_same_place_is_not_taken_for_ones_own(self, store: Store) -> None:
        worker = await live_worker(store)
        for way in WRITTEN_AGAIN:
            pen = await start_owned(store, worker)
            mine = pen.change(**PARTS[way])
            theirs = pen.change(**PARTS[way] | {"text": "theirs"})
            assert await store.commit(worker.worker_id, [theirs]) == {}, way
            before = await snapshot(store, pen)
            assert await store.commit(worker.worker_id, [mine]) == {0: Verdict.REFUSED}, way
            assert await snapshot(store, pen) == before, way
            assert await store.commit(worker.worker_id, [theirs]) == {}, way

    @pytest.mark.parametrize("way", ["one entry", "several entries", "read messages", "outputs"])
    async def test_what_the_owner_has_written_is_not_anothers(self, store: Store, way: str) -> None:
        owner, twin = await live_worker(store), await live_worker(store)
        pen = await start_owned(store, owner)
        change = pen.change(**PARTS[way])
        assert await store.commit(owner.worker_id, [change]) == {}
        assert await store.commit(twin.worker_id, [change]) == {0: Verdict.REFUSED}

    async def test_a_start_with_another_first_entry_is_not_taken_for_ones_own(self, store: Store) -> None:
        worker, new = await live_worker(store), new_run()
        first, second = (Pen(new.run_id, epoch=1).change(1, start=new, text=text) for text in ("first", "second"))
        assert await store.commit(worker.worker_id, [first]) == {}
        assert await store.commit(worker.worker_id, [second]) == {0: Verdict.REFUSED}
        assert await store.journal(new.run_id) == first.entries


def _agreed(_: Sequence[Refusal]) -> None:
    """Whatever was refused may be."""
