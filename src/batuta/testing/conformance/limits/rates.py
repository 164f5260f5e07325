"""Rates: how many begin within a time."""

from __future__ import annotations

import asyncio

from batuta.clock import SECOND
from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, Pen, beat, claimed, live_worker, new_run, outlive_lease
from batuta.testing.conformance.limits.queues import finish, keys_of, start_some

SECONDS = 600
"""Long: the time that a test takes does not matter then."""
PERIOD = SECONDS * SECOND
FOREVER = 10**6 * SECOND


def is_strict(begun: list[int], rate: Rate) -> bool:
    """Whether no period, wherever it begins, has more than it may."""
    begun = sorted(begun)
    return all(later - first >= rate.period for first, later in zip(begun, begun[rate.count :], strict=False))


class RatesConformance:
    """A rate is kept in every period, and time gives back what it took."""

    async def test_no_more_begin_in_a_period_than_a_rate_allows(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=Rate(3, SECONDS)))
        await start_some(store, 5)
        first = await store.claim(worker, 10)
        assert len(first.stored_runs) == 3
        assert first.held
        assert first.again_at is not None
        await finish(store, worker, *first.stored_runs)
        again = await store.claim(worker, 10)
        assert (again.stored_runs, again.held, again.again_at) == ([], True, first.again_at)

    async def test_it_is_known_when_a_rate_allows_the_next(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=Rate(2, SECONDS)))
        await start_some(store, 3)
        again_at = (await store.claim(worker, 10)).again_at
        now = await store.now()
        assert again_at is not None
        assert PERIOD - 60 * SECOND < again_at - now <= PERIOD + PERIOD // 60
        assert await store.due_at(worker) == again_at
        assert (await beat(store, worker)).due_at == again_at
        store.shift_clock((again_at - now) / SECOND - 5)
        assert await claimed(store, worker) == []
        store.shift_clock(5)
        assert len(await claimed(store, worker)) == 1

    async def test_what_is_due_later_than_the_rate_allows_is_due_then(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=Rate(1, SECONDS)))
        await start_some(store, 1)
        await claimed(store, worker)
        later, _ = await store.start(new_run(delay=3 * PERIOD))
        assert await store.due_at(worker) == later.wake_at
        claim = await store.claim(worker, 10)
        assert (claim.stored_runs, claim.held) == ([], False)

    async def test_a_rate_is_strict_in_every_period(self, store: Store) -> None:
        rate = Rate(4, SECONDS)
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=rate))
        await start_some(store, 40)
        begun: list[int] = []
        for step in [7, 290, 3, 280, 30, 11, 400, 190, 9, 2, 600, 100, 200, 299, 1, 1, 305, 290, 20] * 2:
            stored_runs = await claimed(store, worker, 10 if step % 2 else 1)
            begun += [await store.now()] * len(stored_runs)
            store.shift_clock(step)
        assert len(begun) > 30
        assert is_strict(begun, Rate(rate.count, rate.per - 1))

    async def test_a_rate_for_each_flow_key(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(key_rate=Rate(2, SECONDS)))
        await start_some(store, 3, "a", "b")
        await start_some(store, 3)
        claim = await store.claim(worker, 100)
        assert keys_of(claim.stored_runs) == {"a": 2, "b": 2, "": 3}
        assert claim.held
        assert claim.again_at is not None
        assert await store.due_at(worker) == claim.again_at
        await start_some(store, 1, "c")
        assert keys_of(await claimed(store, worker)) == {"c": 1}
        store.shift_clock((claim.again_at - await store.now()) / SECOND + 1)
        assert keys_of(await claimed(store, worker)) == {"a": 1, "b": 1}

    async def test_a_key_that_has_had_its_share_hides_nobody(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(key_rate=Rate(1, SECONDS)))
        await start_some(store, 1_500, "often")
        await start_some(store, 1, "seldom")
        assert keys_of(await claimed(store, worker, 10)) == {"often": 1, "seldom": 1}
        await start_some(store, 1, "new")
        assert keys_of(await claimed(store, worker, 10)) == {"new": 1}

    async def test_many_keys_that_have_had_their_share_hide_nobody(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        worker, another = await live_worker(store, lease=FOREVER), await live_worker(other, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(key_rate=Rate(1, SECONDS)))
        await start_some(store, 3, *(f"{number:02}" for number in range(40)))
        assert len(await claimed(other, another)) == 40
        await start_some(store, 1, "new")
        assert keys_of(await claimed(store, worker, 1)) == {"new": 1}
        assert (await store.claim(worker, 1)).again_at is not None

    async def test_the_later_of_two_rates_counts(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=Rate(2, SECONDS), key_rate=Rate(1, 3 * SECONDS)))
        await start_some(store, 2, "a")
        assert len(await claimed(store, worker)) == 1
        again_at = (await store.claim(worker, 10)).again_at
        assert again_at is not None
        assert again_at - await store.now() > 2 * PERIOD
        await start_some(store, 2, "b")
        claim = await store.claim(worker, 10)
        assert keys_of(claim.stored_runs) == {"b": 1}
        assert claim.again_at is not None

    async def test_only_the_first_claim_of_a_run_counts(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=Rate(1, SECONDS), key_rate=Rate(1, SECONDS)))
        await start_some(store, 1_200, "a")
        [stored] = await claimed(store, worker)
        for _ in range(3):
            await Pen.of(stored).release(store, worker, wake_at=await store.now(), count=1)
            assert await store.due_at(worker) is not None
            [stored] = await claimed(store, worker)
        assert stored.run.epoch == 4

    async def test_what_a_dead_worker_had_begun_is_claimed_again_at_once(self, store: Store) -> None:
        dead = await live_worker(store)
        await store.limit_queue("default", QueueLimits(rate=Rate(2, SECONDS)))
        await start_some(store, 4)
        begun = {stored.run.run_id for stored in await claimed(store, dead)}
        await outlive_lease(store)
        worker = await live_worker(store)
        assert (await beat(store, worker, reap=True)).reaped == 2
        assert {stored.run.run_id for stored in await claimed(store, worker)} == begun

    async def test_what_may_not_begin_takes_no_place_from_what_has_begun(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(key_concurrency=1, rate=Rate(1, SECONDS)))
        await start_some(store, 3, "a")
        [stored] = await claimed(store, worker)
        await Pen.of(stored).release(store, worker, wake_at=await store.now(), count=1)
        assert [again.run.run_id for again in await claimed(store, worker)] == [stored.run.run_id]

    async def test_a_rate_comes_with_a_concurrency(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(concurrency=1, rate=Rate(2, SECONDS)))
        await start_some(store, 5)
        for _ in range(2):
            claim = await store.claim(worker, 10)
            assert (len(claim.stored_runs), claim.held, claim.again_at) == (1, True, None)
            assert await store.due_at(worker) is None
            await finish(store, worker, *claim.stored_runs)
        claim = await store.claim(worker, 10)
        assert claim.stored_runs == []
        assert claim.again_at is not None

    async def test_another_period_counts_what_has_begun(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=Rate(5, 30 * SECONDS)))
        await start_some(store, 20)
        assert len(await claimed(store, worker)) == 5
        await store.limit_queue("default", QueueLimits(rate=Rate(5, SECONDS)))
        assert await claimed(store, worker) == []

    async def test_many_workers_keep_a_rate_together(self, store: Store, make_store: MakeStore) -> None:
        stores = [store, await make_store(), await make_store()]
        workers = [await live_worker(each, lease=FOREVER) for each in stores]
        await store.limit_queue("default", QueueLimits(rate=Rate(10, SECONDS), key_rate=Rate(3, SECONDS)))
        await start_some(store, 10, "a", "b", "c", "d", "e")
        claims = [claimed(each, worker, 4) for each, worker in zip(stores, workers, strict=True) for _ in range(3)]
        stored_runs = [stored for some in await asyncio.gather(*claims) for stored in some]
        assert len(stored_runs) == 10
        assert max(keys_of(stored_runs).values()) <= 3

    async def test_a_rate_holds_for_one_namespace(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        for each in (store, other):
            await each.limit_queue("default", QueueLimits(rate=Rate(1, SECONDS)))
            await start_some(each, 2)
        assert [len(await claimed(each, await live_worker(each))) for each in (store, other)] == [1, 1]
