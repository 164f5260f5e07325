"""Starts that meet a run: renewed ids and debounced calls; and runs that no worker claims in time."""

from __future__ import annotations

import asyncio
from typing import Any

from batuta.clock import SECOND
from batuta.journal.entries import EntryKind
from batuta.journal.records import IfExists, Message, MessageKind, Move, NewRun, Run, RunFilter, WorkerInfo
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
from batuta.testing.conformance.runs.close import last_word

DONE = Move(RunState.COMPLETED)
LONG = 100_000 * SECOND


def renewing(id: str, fresh: float = 0) -> NewRun:
    return new_run(id, if_exists=IfExists.RENEW, fresh=round(fresh * SECOND))


def debounced(key: str = "k", text: str = "x", delay: float = 5, **options: Any) -> NewRun:
    start = f'{{"value":["{text}"]}}'
    return new_run(debounce=key, delay=round(delay * SECOND), start=start, **options)


async def close(store: Store, worker: WorkerInfo, run: Run) -> None:
    stored = await claim_one(store, worker)
    assert stored.run.run_id == run.run_id
    assert await Pen.of(stored).write(store, worker, move=DONE) is None


async def start_bodies(store: Store, run: Run) -> list[str]:
    """What the run's start messages say."""
    messages = (await store.load(run.run_id)).messages
    return [message.body for message in messages if message.kind is MessageKind.START]


class RenewConformance:
    """An id is kept while its run is open, and for a while after it began."""

    async def test_an_open_run_keeps_its_id(self, store: Store) -> None:
        first, is_new = await store.start(renewing("u"))
        assert is_new
        store.shift_clock(100)
        assert await store.start(renewing("u", fresh=1)) == (first, False)

    async def test_a_closed_run_gives_its_id_to_the_next(self, store: Store) -> None:
        worker = await live_worker(store)
        first, _ = await store.start(renewing("u"))
        await close(store, worker, first)
        second, is_new = await store.start(renewing("u"))
        assert is_new
        assert second.run_id != first.run_id
        assert await store.get("u") == second

    async def test_a_closed_run_keeps_its_id_while_it_is_fresh(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        first, _ = await store.start(renewing("u", fresh=60))
        await close(store, worker, first)
        store.shift_clock(50)
        kept, is_new = await store.start(renewing("u", fresh=60))
        assert (kept.run_id, kept.state, is_new) == (first.run_id, RunState.COMPLETED, False)
        store.shift_clock(10)
        assert (await store.start(renewing("u", fresh=60)))[1]

    async def test_a_renewed_start_written_again_is_the_same(self, store: Store) -> None:
        new = renewing("u", fresh=60)
        once = await store.start(new)
        assert await store.start(new) == once
        assert (await store.start_many([new, renewing("u", fresh=60)])) == [once, (once[0], False)]

    async def test_many_renewed_starts_of_one_id(self, store: Store) -> None:
        worker = await live_worker(store)
        first, _ = await store.start(renewing("u"))
        await close(store, worker, first)
        a, b = await store.start_many([renewing("u"), renewing("u")])
        assert isinstance(a, tuple)
        assert isinstance(b, tuple)
        assert (a[1], b[1], a[0].run_id == b[0].run_id) == (True, False, True)

    async def test_an_owned_start_renews_too(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "u")
        assert await pen.write(store, worker, move=DONE) is None
        await start_owned(store, worker, "u", if_exists=IfExists.RENEW)

    async def test_of_renewed_starts_at_once_one_is_new(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        first, _ = await store.start(renewing("u"))
        await close(store, worker, first)
        stores = [store, await make_store()]
        results = await asyncio.gather(*(stores[n % 2].start(renewing("u", fresh=0)) for n in range(8)))
        assert sum(is_new for _, is_new in results) == 1
        assert len({run.run_id for run, _ in results}) == 1


class ExpiryConformance:
    """A run that no worker claimed in time is closed. A claimed run never expires."""

    async def test_a_run_that_nobody_claims_expires(self, store: Store) -> None:
        run, _ = await store.start(new_run(expires=60 * SECOND))
        assert run.expires_at == run.created_at + 60 * SECOND
        store.shift_clock(59)
        await beat(store, await live_worker(store))
        assert (await store.get_run(run.run_id)).state is RunState.PENDING
        store.shift_clock(2)
        await beat(store, await live_worker(store))
        closed, entry = await store.outcome(run.run_id)
        assert closed.state is RunState.TIMED_OUT
        assert "expired" in closed.reason
        assert entry is not None
        assert entry.kind is EntryKind.TIMED_OUT

    async def test_runs_expire_in_a_paused_queue_and_in_one_that_nobody_works_on(self, store: Store) -> None:
        await store.pause_queue("paused", True)
        runs = [(await store.start(new_run(queue=queue, expires=SECOND)))[0] for queue in ("paused", "unserved")]
        store.shift_clock(2)
        await beat(store, await live_worker(store))
        assert {(await store.get_run(run.run_id)).state for run in runs} == {RunState.TIMED_OUT}

    async def test_after_a_claim_a_run_does_not_expire(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        await store.start(new_run(expires=60 * SECOND))
        stored = await claim_one(store, worker)
        assert (stored.run.expires_at, stored.run.deadline) == (None, None)
        assert await store.get_run(stored.run.run_id) == stored.run
        await Pen.of(stored).release(store, worker, count=1)
        store.shift_clock(100)
        await beat(store, worker)
        assert (await store.get_run(stored.run.run_id)).state is RunState.WAITING

    async def test_one_that_has_expired_is_claimed_with_its_expiry_as_its_deadline(self, store: Store) -> None:
        for timeout in (0, 1_000):
            run, _ = await store.start(new_run(expires=5 * SECOND, timeout=timeout * SECOND))
            store.shift_clock(6)
            stored = await claim_one(store, await live_worker(store))
            assert (stored.run.deadline, stored.run.expires_at) == (run.expires_at, None)
            assert await store.get_run(run.run_id) == stored.run

    async def test_a_delay_does_not_put_the_expiry_off(self, store: Store) -> None:
        run, _ = await store.start(new_run(expires=5 * SECOND, delay=60 * SECOND))
        assert run.expires_at == run.created_at + 5 * SECOND

    async def test_an_owned_start_does_not_expire(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker, expires=SECOND)
        assert (await store.get_run(pen.run_id)).expires_at is None


class DebounceConformance:
    """Until the run is claimed, the last call wins."""

    async def test_a_later_start_replaces_what_the_first_was_to_do(self, store: Store) -> None:
        first, is_new = await store.start(debounced(text="one"))
        assert is_new
        store.shift_clock(3)
        later = debounced(text="two", tags='{"a":"b"}', memo="7", priority=4, expires=60 * SECOND)
        run, is_new = await store.start(later)
        assert not is_new
        assert (run.run_id, run.id, run.created_at) == (first.run_id, first.id, first.created_at)
        assert (run.tags, run.memo, run.priority) == ('{"a":"b"}', "7", 4)
        assert run.wake_at is not None
        assert first.wake_at is not None
        assert run.wake_at >= first.wake_at + 3 * SECOND
        assert run.expires_at is not None
        assert run.expires_at >= first.created_at + 63 * SECOND
        assert await start_bodies(store, run) == ['{"value":["two"]}']
        assert await store.count_runs(RunFilter()) == 1
        assert await store.get_run(run.run_id) == run

    async def test_it_runs_once_when_it_is_quiet(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        for number in range(5):
            await store.start(debounced(text=f"{number}"))
            store.shift_clock(4)
            assert await claimed(store, worker) == []
        store.shift_clock(2)
        stored = await claim_one(store, worker)
        assert [message.body for message in stored.messages] == ['{"value":["4"]}']

    async def test_after_the_claim_a_start_is_another_run(self, store: Store) -> None:
        worker = await live_worker(store)
        first, _ = await store.start(debounced(delay=0))
        await claim_one(store, worker)
        second, is_new = await store.start(debounced(delay=0))
        assert is_new
        assert second.run_id != first.run_id
        third, is_new = await store.start(debounced(delay=0))
        assert (third.run_id, is_new) == (second.run_id, False)

    async def test_a_run_that_came_back_is_not_debounced(self, store: Store) -> None:
        worker = await live_worker(store)
        first, _ = await store.start(debounced(delay=0))
        stored = await claim_one(store, worker)
        assert await Pen.of(stored).write(store, worker, 0, move=Move(RunState.PENDING)) is None
        second, is_new = await store.start(debounced(delay=0))
        assert is_new
        assert second.run_id != first.run_id

    async def test_after_it_was_closed_a_start_is_another_run(self, store: Store) -> None:
        first, _ = await store.start(debounced(delay=60))
        assert await store.close_run(first.run_id, -1, last_word(Pen(first.run_id, 0)), RunState.TERMINATED, "stop")
        assert (await store.start(debounced(delay=60, expires=SECOND)))[1]
        store.shift_clock(2)
        await beat(store, await live_worker(store))
        assert (await store.start(debounced(delay=60)))[1]

    async def test_it_is_put_off_for_so_long_only(self, store: Store) -> None:
        worker = await live_worker(store, lease=LONG)
        first, _ = await store.start(debounced(debounce_limit=12 * SECOND))
        for number in range(3):
            store.shift_clock(4)
            run, _ = await store.start(debounced(text=f"{number}", debounce_limit=12 * SECOND))
            assert run.wake_at is not None
            assert run.wake_at <= first.created_at + 12 * SECOND
        assert await start_bodies(store, first) == ['{"value":["2"]}']
        assert len(await claimed(store, worker)) == 1

    async def test_its_deadline_moves_with_it(self, store: Store) -> None:
        await store.start(debounced(timeout=10 * SECOND))
        store.shift_clock(4)
        run, _ = await store.start(debounced(timeout=10 * SECOND))
        assert run.wake_at is not None
        assert run.deadline == run.wake_at + 10 * SECOND

    async def test_keys_are_their_own_and_so_are_namespaces(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        results = [await store.start(debounced("a")), await store.start(debounced("b"))]
        results.append(await other.start(debounced("a")))
        assert [is_new for _, is_new in results] == [True, True, True]

    async def test_of_many_starts_of_one_key_the_last_wins(self, store: Store) -> None:
        outcomes = await store.start_many([debounced(text=text) for text in ("a", "b", "c")] + [new_run("other")])
        tuples = [outcome for outcome in outcomes if isinstance(outcome, tuple)]
        assert [is_new for _, is_new in tuples] == [True, False, False, True]
        assert len({run.run_id for run, _ in tuples}) == 2
        assert await start_bodies(store, tuples[0][0]) == ['{"value":["c"]}']

    async def test_a_start_with_a_message_is_debounced_too(self, store: Store) -> None:
        first, _ = await store.start(debounced(text="a"))
        run, is_new = await store.start(debounced(text="b"), signal("m"))
        assert (run.run_id, is_new) == (first.run_id, False)
        assert [message.kind for message in (await store.load(run.run_id)).messages] == ["start", "signal"]

    async def test_debounced_starts_at_once_are_one_run(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store()]
        results = await asyncio.gather(*(stores[n % 2].start(debounced(text=f"{n}")) for n in range(8)))
        assert sum(is_new for _, is_new in results) == 1
        assert len({run.run_id for run, _ in results}) == 1

    async def test_a_cancel_still_reaches_it_at_once(self, store: Store) -> None:
        worker = await live_worker(store)
        run, _ = await store.start(debounced(delay=60))
        await store.send(run.run_id, Message(message_id="c", kind=MessageKind.CANCEL))
        assert (await claim_one(store, worker)).run.run_id == run.run_id
