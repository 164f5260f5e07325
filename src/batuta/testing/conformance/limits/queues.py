"""Queues: paused, and limited for all workers together."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from msgspec.structs import asdict

from batuta.clock import SECOND, as_datetime
from batuta.journal.queues import QueueInfo, QueueLimits, Rate
from batuta.journal.records import Move, NewRun, RunFilter, StoredRun, Verdict, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import (
    MakeStore,
    Pen,
    beat,
    claim_one,
    claimed,
    dead_worker,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
)
from batuta.testing.conformance.runs.close import last_word

DONE = Move(RunState.COMPLETED)


async def start_some(store: Store, count: int, *keys: str, **options: Any) -> list[NewRun]:
    """Start `count` runs of each flow key, key after key."""
    news = [new_run(flow_key=key, **options) for key in keys or ("",) for _ in range(count)]
    await store.start_many(news)
    return news


async def finish(store: Store, worker: WorkerInfo, *stored_runs: StoredRun) -> None:
    for stored in stored_runs:
        assert await Pen.of(stored).write(store, worker, move=DONE) is None


def keys_of(stored_runs: list[StoredRun]) -> Counter[str]:
    return Counter(stored.run.flow_key for stored in stored_runs)


async def view_of(store: Store, name: str = "default") -> QueueInfo:
    return next(view for view in await store.queues() if view.name == name)


class QueuesConformance:
    """A queue gives what its limits allow, and nothing while it is paused."""

    # -- paused

    async def test_a_paused_queue_gives_nothing_until_it_goes_on(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "other"])
        await start_some(store, 2)
        other, _ = await store.start(new_run(queue="other"))
        await store.pause_queue("default", True, "the partner is down")
        assert [stored.run.run_id for stored in await claimed(store, worker)] == [other.run_id]
        assert await store.due_at(worker) is None
        assert (await beat(store, worker)).due_at is None
        await store.pause_queue("default", False)
        assert await store.due_at(worker) is not None
        assert len(await claimed(store, worker)) == 2

    async def test_what_is_owned_when_a_queue_is_paused_goes_on(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.pause_queue("default", True)
        assert await pen.write(store, worker, 2) is None
        assert await pen.write(store, worker, move=DONE) is None

    async def test_going_on_is_heard(self, store: Store, make_store: MakeStore) -> None:
        await store.pause_queue("default", True)
        ears = [Ear(store), Ear(await make_store())]
        await store.pause_queue("default", False)
        for ear in ears:
            await ear.hears(lambda hint: hint.due)

    async def test_a_pause_holds_for_one_namespace(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        await other.start(new_run())
        await store.pause_queue("default", True)
        await store.limit_queue("default", QueueLimits(concurrency=0))
        assert len(await claimed(other, await live_worker(other))) == 1

    # -- concurrency

    async def test_no_more_are_owned_at_once_than_a_queue_allows(self, store: Store) -> None:
        worker, other = await live_worker(store), await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=3))
        await start_some(store, 5)
        first = await store.claim(worker, 10)
        assert (len(first.stored_runs), first.held, first.again_at) == (3, True, None)
        second = await store.claim(other, 10)
        assert (second.stored_runs, second.held) == ([], True)
        assert await store.due_at(worker) is None
        await finish(store, worker, first.stored_runs[0])
        assert await store.due_at(other) is not None
        assert len(await claimed(store, other)) == 1

    async def test_nothing_is_held_when_all_that_is_due_was_taken(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=3))
        await start_some(store, 3)
        claim = await store.claim(worker, 10)
        assert (len(claim.stored_runs), claim.held) == (3, False)

    async def test_what_was_handed_back_does_not_count(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=1))
        await start_some(store, 2)
        [stored] = await claimed(store, worker)
        await Pen.of(stored).release(store, worker)
        assert len(await claimed(store, worker)) == 1

    async def test_a_free_slot_is_heard(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=1))
        await start_some(store, 2)
        [stored] = await claimed(store, worker)
        ears = [Ear(store), Ear(await make_store())]
        await finish(store, worker, stored)
        for ear in ears:
            await ear.hears(lambda hint: hint.due)

    async def test_each_flow_key_has_its_own_limit(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(key_concurrency=1))
        await start_some(store, 3, "a", "b")
        await start_some(store, 2)
        claim = await store.claim(worker, 10)
        assert keys_of(claim.stored_runs) == {"a": 1, "b": 1, "": 2}
        assert claim.held
        assert (await store.claim(worker, 10)).stored_runs == []
        assert await store.due_at(worker) is None
        await finish(store, worker, *[stored for stored in claim.stored_runs if stored.run.flow_key == "b"])
        assert await store.due_at(worker) is not None
        assert keys_of(await claimed(store, worker)) == {"b": 1}

    async def test_a_queue_and_its_keys_can_both_be_limited(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=5, key_concurrency=2))
        await start_some(store, 4, "a", "b", "c", "d")
        taken = await claimed(store, worker)
        assert len(taken) == 5
        assert max(keys_of(taken).values()) <= 2

    async def test_a_full_key_hides_nobody(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(key_concurrency=1))
        await start_some(store, 1_500, "full")
        await start_some(store, 1, "late")
        assert keys_of(await claimed(store, worker, 10)) == {"full": 1, "late": 1}
        assert await store.due_at(worker) is None
        await start_some(store, 1, "later")
        assert await store.due_at(worker) is not None
        assert keys_of(await claimed(store, worker, 10)) == {"later": 1}

    async def test_limits_hold_for_one_queue(self, store: Store) -> None:
        worker = await live_worker(store, queues=["one", "two"])
        await store.limit_queue("one", QueueLimits(concurrency=1))
        await start_some(store, 3, queue="one")
        await start_some(store, 3, queue="two")
        assert Counter(stored.run.queue for stored in await claimed(store, worker)) == {"one": 1, "two": 3}

    async def test_a_limit_that_is_lowered_waits_for_those_that_run(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 4)
        stored_runs = await claimed(store, worker, 3)
        await store.limit_queue("default", QueueLimits(concurrency=2))
        assert await claimed(store, worker) == []
        await finish(store, worker, stored_runs[0])
        assert await claimed(store, worker) == []
        await finish(store, worker, stored_runs[1])
        assert len(await claimed(store, worker)) == 1

    async def test_a_limit_that_is_taken_away_is_heard_and_holds_no_more(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=0, rate=Rate(1, 1)))
        await start_some(store, 4)
        claim = await store.claim(worker, 10)
        assert (claim.stored_runs, claim.held, claim.again_at) == ([], True, None)
        ear = Ear(store)
        await store.limit_queue("default", QueueLimits())
        await ear.hears(lambda hint: hint.due)
        assert len(await claimed(store, worker)) == 4

    async def test_priority_counts_in_a_limited_queue_too(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=1))
        for name, priority in [("low", -1), ("mid", 0), ("high", 7)]:
            await store.start(new_run(name, priority=priority))
        order: list[str] = []
        while stored_runs := await claimed(store, worker):
            order += [stored.run.id for stored in stored_runs]
            await finish(store, worker, *stored_runs)
        assert order == ["high", "mid", "low"]

    async def test_a_claim_counts_what_it_took_at_a_higher_priority(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=4, key_concurrency=2))
        await start_some(store, 1, "a", "b", priority=5)
        await start_some(store, 3, "a", "b", "c")
        stored_runs = await claimed(store, worker)
        assert [stored.run.priority for stored in stored_runs] == [5, 5, 0, 0]
        assert max(keys_of(stored_runs).values()) <= 2

    async def test_many_workers_never_go_beyond_a_limit_together(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store(), await make_store()]
        workers = [await live_worker(each) for each in stores]
        await store.limit_queue("default", QueueLimits(concurrency=7, key_concurrency=2))
        await start_some(store, 6, "a", "b", "c", "d", "e")
        owned: list[tuple[Store, WorkerInfo, StoredRun]] = []
        done = 0
        while done < 30:
            claims = await asyncio.gather(*(claimed(s, w, 4) for s, w in zip(stores, workers, strict=True)))
            for each, worker, stored_runs in zip(stores, workers, claims, strict=True):
                owned += [(each, worker, stored) for stored in stored_runs]
            assert 0 < len(owned) <= 7
            assert max(keys_of([stored for _, _, stored in owned]).values()) <= 2
            each, worker, stored = owned.pop(0)
            await finish(each, worker, stored)
            done += 1

    async def test_keys_behind_thousands_that_are_held_back_are_served(self, make_store: MakeStore) -> None:
        store, other = await make_store(), await make_store()
        owner, worker = await live_worker(store), await live_worker(other)
        await store.limit_queue("default", QueueLimits(key_concurrency=1))
        busy = [f"busy-{n:04}" for n in range(2_500)]
        await start_some(store, 1, *busy)
        while await claimed(store, owner, 1_000):
            pass
        await start_some(store, 1, *busy, "zealous")
        looks = [await claimed(other, worker, 10) for _ in range(4)]
        assert keys_of([stored for stored_runs in looks for stored in stored_runs]) == {"zealous": 1}

    # -- the slots of the dead

    async def test_a_dead_workers_slots_come_back_when_it_is_reaped(self, store: Store) -> None:
        dead = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=2, key_concurrency=1))
        await start_some(store, 2, "a", "b")
        assert len(await claimed(store, dead)) == 2
        await outlive_lease(store)
        worker = await live_worker(store)
        assert await claimed(store, worker) == []
        assert (await beat(store, worker, reap=True)).reaped == 2
        assert keys_of(await claimed(store, worker)) == {"a": 1, "b": 1}

    async def test_a_dead_workers_slots_come_back_when_it_is_buried(self, store: Store) -> None:
        dead, worker = await dead_worker(store), await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=2))
        await start_some(store, 4)
        assert len(await claimed(store, dead)) == 2
        async with store.heartbeat(worker.worker_id) as heartbeat:
            assert await heartbeat.reap([dead.worker_id]) == 2
        assert len(await claimed(store, worker)) == 2

    async def test_a_retired_workers_slots_come_back(self, store: Store) -> None:
        leaving, worker = await live_worker(store), await live_worker(store)
        await store.limit_queue("default", QueueLimits(key_concurrency=1))
        await start_some(store, 2, "a")
        assert len(await claimed(store, leaving)) == 1
        await store.retire(leaving.worker_id)
        assert len(await claimed(store, worker)) == 1

    async def test_a_run_that_is_closed_from_outside_gives_its_slot_back(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=1))
        await start_some(store, 2)
        stored = await claim_one(store, worker)
        assert await store.close_run(stored.run.run_id, -1, last_word(Pen.of(stored)), RunState.TERMINATED, "stop")
        assert len(await claimed(store, worker)) == 1

    async def test_suspects_are_limited_too(self, store: Store) -> None:
        await start_some(store, 2, "a")
        for _ in range(2):
            dead = await live_worker(store)
            await claimed(store, dead)
            await outlive_lease(store)
            await beat(store, await live_worker(store), reap=True)
        await store.limit_queue("default", QueueLimits(key_concurrency=1))
        worker, other = await live_worker(store), await live_worker(store)
        assert len(await claimed(store, worker)) == 1
        assert await claimed(store, other) == []

    # -- room

    async def test_a_worker_says_how_many_it_takes_of_a_queue(self, store: Store) -> None:
        worker = await live_worker(store, queues=["one", "two"])
        await start_some(store, 5, queue="one")
        await start_some(store, 5, queue="two")
        stored_runs = await claimed(store, worker, 100, {"one": 2})
        assert Counter(stored.run.queue for stored in stored_runs) == {"one": 2, "two": 5}
        claim = await store.claim(worker, 100, {"one": 0})
        assert (claim.stored_runs, claim.held) == ([], False)
        assert len(await claimed(store, worker, 100, {"one": 50, "none": 1})) == 3

    async def test_room_in_a_limited_queue(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=3))
        await start_some(store, 5, "a", "b")
        assert len(await claimed(store, worker, 100, {"default": 2})) == 2
        assert len(await claimed(store, worker, 100, {"default": 2})) == 1

    # -- owned starts

    async def test_a_start_into_a_paused_or_limited_queue_must_wait_there(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.pause_queue("paused", True)
        await store.limit_queue("limited", QueueLimits(concurrency=100))
        await store.limit_queue("free", QueueLimits())
        news = [new_run(queue=queue) for queue in ("paused", "default", "limited", "free")]
        changes = [Pen(new.run_id, epoch=1).change(start=new) for new in news]
        assert await store.commit(worker.worker_id, changes) == {0: Verdict.QUEUED, 2: Verdict.QUEUED}
        assert await store.count_runs(RunFilter()) == 2
        assert await store.commit(worker.worker_id, changes) == {0: Verdict.QUEUED, 2: Verdict.QUEUED}

    async def test_what_was_written_before_the_queue_was_limited_is_durable(self, store: Store) -> None:
        worker = await live_worker(store)
        new = new_run()
        change = Pen(new.run_id, epoch=1).change(start=new, move=DONE)
        assert await store.commit(worker.worker_id, [change]) == {}
        await store.limit_queue("default", QueueLimits(concurrency=1))
        assert await store.commit(worker.worker_id, [change]) == {}

    # -- looking

    async def test_a_queue_tells_what_is_going_on_in_it(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "idle"])
        assert [(view.name, view.workers) for view in await store.queues()] == [("default", 1), ("idle", 1)]
        oldest, _ = await store.start(new_run())
        await start_some(store, 3)
        await start_some(store, 2, delay=60 * SECOND)
        await claimed(store, worker, 1)
        second = await store.start(new_run(queue="unserved"))
        view = await view_of(store)
        assert (view.ready, view.delayed, view.running, view.workers) == (3, 2, 1, 1)
        assert view.oldest is not None
        assert view.oldest >= as_datetime(oldest.created_at)
        assert await view_of(store, "unserved") == QueueInfo("unserved", ready=1, oldest=as_datetime(second[0].wake_at))
        assert [view.name for view in await store.queues()] == ["default", "idle", "unserved"]

    async def test_a_queue_tells_its_limits_and_why_it_is_paused(self, store: Store) -> None:
        limits = QueueLimits(concurrency=5, key_concurrency=1, rate=Rate(100, 60), key_rate=Rate(10, 1))
        await store.limit_queue("mail", limits)
        assert await store.queues() == [QueueInfo("mail", **asdict(limits))]
        await store.pause_queue("mail", True, "the server is down")
        assert await store.queues() == [QueueInfo("mail", paused=True, reason="the server is down", **asdict(limits))]
        await store.pause_queue("mail", False)
        await store.limit_queue("mail", QueueLimits(concurrency=1))
        assert await store.queues() == [QueueInfo("mail", concurrency=1)]

    async def test_a_limit_is_set_and_the_others_stay(self, store: Store) -> None:
        rate = Rate(100, 60)
        await store.limit_queue("mail", QueueLimits(concurrency=5, rate=rate), ["concurrency"])
        await store.limit_queue("mail", QueueLimits(rate=rate, key_concurrency=7), ["rate"])
        assert await store.queues() == [QueueInfo("mail", concurrency=5, rate=rate)]
        await store.limit_queue("mail", QueueLimits(key_rate=rate, key_concurrency=2), ["key_rate", "key_concurrency"])
        await store.limit_queue("mail", QueueLimits(concurrency=3), ["rate"])
        limits = QueueLimits(concurrency=5, key_concurrency=2, key_rate=rate)
        assert await store.queues() == [QueueInfo("mail", **asdict(limits))]

    async def test_runs_are_found_by_their_flow_key_and_parent(self, store: Store) -> None:
        mine = await start_some(store, 2, "a")
        await start_some(store, 1, "b")
        child, _ = await store.start(new_run(parent_run_id=mine[0].run_id))
        assert {run.run_id for run in (await store.list_runs(RunFilter(flow_key="a"))).runs} == {
            new.run_id for new in mine
        }
        assert await store.count_runs(RunFilter(flow_key="b")) == 1
        assert [run.run_id for run in (await store.list_runs(RunFilter(parent=mine[0].run_id))).runs] == [child.run_id]
        assert await store.count_runs(RunFilter(parent=mine[0].run_id, flow_key="a")) == 0
