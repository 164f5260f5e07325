"""Jobs end, and the next ones take their places."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from batuta.journal.queues import QueueLimits
from batuta.journal.records import Message, MessageKind, NewRun, RunFilter, StoredRun, Verdict, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import MakeStore, Pen, claimed, live_worker, outlive_lease
from batuta.testing.conformance.limits.queues import view_of
from batuta.testing.conformance.runs.plain import ended, job

JOBS = 120
COMPLETED = RunFilter(states=(RunState.COMPLETED,))


async def enqueue(store: Store, *keys: str) -> list[NewRun]:
    """A job of each of these flow keys."""
    news = [job(flow_key=key) for key in keys]
    await store.start_many(news)
    return news


def keys_of(stored_runs: list[StoredRun]) -> list[str]:
    return sorted(stored.run.flow_key for stored in stored_runs)


class HandingConformance:
    """What `hand_over` does is what a commit and a claim do."""

    async def test_the_next_have_the_places_of_those_that_end(self, store: Store) -> None:
        worker, other = await live_worker(store), await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=2))
        await enqueue(store, *[""] * 5)
        first = await claimed(store, worker)
        answers, claim = await store.hand_over(worker, [ended(stored) for stored in first], 2)
        assert answers == {}
        assert len(claim.stored_runs) == 2
        assert {stored.run.owner for stored in claim.stored_runs} == {worker.worker_id}
        assert await claimed(store, other) == []
        assert [(await store.get_run(stored.run.run_id)).state for stored in first] == [RunState.COMPLETED] * 2
        assert (await view_of(store)).running == 2

    async def test_no_more_than_asked_and_what_was_left_is_said(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=2))
        await enqueue(store, *[""] * 6)
        first = await claimed(store, worker)
        _, claim = await store.hand_over(worker, [ended(stored) for stored in first], 1)
        assert len(claim.stored_runs) == 1
        _, claim = await store.hand_over(worker, [ended(stored) for stored in claim.stored_runs], 9)
        assert (len(claim.stored_runs), claim.held) == (2, True)
        _, claim = await store.hand_over(worker, [], 9)
        assert (claim.stored_runs, claim.held) == ([], True)

    async def test_a_key_is_free_when_its_job_ends(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=9, key_concurrency=1))
        await enqueue(store, "a", "b", "a", "b", "a")
        first = await claimed(store, worker)
        assert keys_of(first) == ["a", "b"]
        of_a = next(stored for stored in first if stored.run.flow_key == "a")
        _, claim = await store.hand_over(worker, [ended(of_a)], 9)
        assert keys_of(claim.stored_runs) == ["a"]

    async def test_a_limit_that_was_lowered_counts(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=4))
        await enqueue(store, *[""] * 9)
        first = await claimed(store, worker)
        await store.limit_queue("default", QueueLimits(concurrency=2))
        _, claim = await store.hand_over(worker, [ended(stored) for stored in first[:3]], 3)
        assert len(claim.stored_runs) == 1

    async def test_ends_are_written_though_nothing_may_be_claimed(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=3))
        await enqueue(store, *[""] * 9)
        first = await claimed(store, worker)
        await store.pause_queue("default", True)
        answers, claim = await store.hand_over(worker, [ended(first[0])], 1)
        assert (answers, claim.stored_runs) == ({}, [])
        await store.pause_queue("default", False)
        await outlive_lease(store)
        answers, claim = await store.hand_over(worker, [ended(first[1])], 1)
        assert (answers, claim.stored_runs) == ({}, [])
        assert await store.count_runs(COMPLETED) == 2

    @pytest.mark.parametrize("kind", [MessageKind.SIGNAL, MessageKind.CANCEL])
    async def test_each_end_has_its_own_verdict(self, store: Store, kind: MessageKind) -> None:
        worker = await live_worker(store)
        await enqueue(store, *[""] * 4)
        first = (await store.claim(worker, 3)).stored_runs
        stale, unread = ended(first[0]), ended(first[1])
        stale.epoch += 1
        await store.send(unread.run_id, Message(message_id="m", kind=kind))
        answers, claim = await store.hand_over(worker, [stale, unread, ended(first[2])], 3)
        assert answers == {0: Verdict.REFUSED, 1: Verdict.UNREAD}
        assert len(claim.stored_runs) == 1
        assert await store.count_runs(COMPLETED) == 1

    async def test_what_was_written_before_is_durable(self, store: Store) -> None:
        worker = await live_worker(store)
        await enqueue(store, *[""] * 4)
        changes = [ended(stored) for stored in (await store.claim(worker, 2)).stored_runs]
        assert len((await store.hand_over(worker, changes, 1))[1].stored_runs) == 1
        answers, claim = await store.hand_over(worker, changes, 2)
        assert (answers, len(claim.stored_runs)) == ({}, 1)

    async def test_other_changes_may_be_among_them(self, store: Store) -> None:
        worker = await live_worker(store)
        await enqueue(store, *[""] * 3)
        first, second = (await store.claim(worker, 2)).stored_runs
        goes_on = Pen.of(second).change(consumed=[second.messages[0].message_id])
        answers, claim = await store.hand_over(worker, [ended(first), goes_on], 2)
        assert (answers, len(claim.stored_runs)) == ({}, 1)
        assert (await store.get_run(second.run.run_id)).head == 0

    async def test_it_is_told_that_they_have_closed(self, store: Store) -> None:
        worker = await live_worker(store)
        await enqueue(store, "", "")
        (stored,) = (await store.claim(worker, 1)).stored_runs
        ear = Ear(store)
        await store.hand_over(worker, [ended(stored)], 1)
        await ear.hears(lambda hint: stored.run.run_id in (hint.closed or ()))

    async def test_limits_hold_whoever_hands_over(self, store: Store, make_store: MakeStore) -> None:
        """Several at the same time, with claims between. A job counts from when it is there until its end is sent."""
        stores = [store, await make_store(), await make_store()]
        workers = [await live_worker(one) for one in stores]
        await store.limit_queue("default", QueueLimits(concurrency=6, key_concurrency=1))
        await enqueue(store, *[f"k{n % 12}" for n in range(JOBS)])
        at_work, most, done = Counter[str](), 0, 0

        async def work(store: Store, worker: WorkerInfo) -> None:
            nonlocal most, done
            while done < JOBS:
                await asyncio.sleep(0)
                stored_runs = (await store.claim(worker, 9)).stored_runs
                while stored_runs:
                    at_work.update(stored.run.flow_key for stored in stored_runs)
                    most = max(most, at_work.total())
                    assert max(at_work.values()) == 1
                    await asyncio.sleep(0)
                    at_work.subtract(stored.run.flow_key for stored in stored_runs)
                    done += len(stored_runs)
                    answers, claim = await store.hand_over(
                        worker, [ended(stored) for stored in stored_runs], len(stored_runs)
                    )
                    assert answers == {}
                    stored_runs = claim.stored_runs

        async with asyncio.timeout(60):
            await asyncio.gather(*map(work, stores, workers))
        assert (done, await store.count_runs(COMPLETED)) == (JOBS, JOBS)
        assert most <= 6
