"""The store's clock is set back: due runs stay due, and no worker lives longer for it."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.quotas import STARTS, Quota
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    LEASE_SECONDS,
    beat,
    claimed,
    live_worker,
    new_run,
    start_owned,
)
from batuta.testing.conformance.limits.quotas import used

HOUR = 3_600
FOREVER = 30 * 24 * HOUR * SECOND


class ClockConformance:
    """An hour back: times that were written before are ahead of the clock."""

    async def test_what_was_due_before_the_clock_was_set_back_can_be_made_due_again(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        pen = await start_owned(store, worker)
        await pen.release(store, worker, wake_at=await store.now())
        due = [(await store.start(new_run(flow_key=key)))[0] for key in ("", "a")]
        later, _ = await store.start(new_run(delay=60 * SECOND))
        until = await store.now()
        store.shift_clock(-HOUR)
        await beat(store, worker)
        assert await claimed(store, worker, 10) == []
        assert await store.hasten(until, 10) == 3
        assert await store.hasten(until, 10) == 0
        assert {stored.run.run_id for stored in await claimed(store, worker, 10)} == {
            pen.run_id,
            *(run.run_id for run in due),
        }
        assert (await store.get_run(later.run_id)).wake_at == later.wake_at

    async def test_what_was_started_since_is_not_made_due(self, store: Store) -> None:
        until = await store.now()
        store.shift_clock(-HOUR)
        run, _ = await store.start(new_run(delay=60 * SECOND))
        assert await store.hasten(until, 10) == 0
        assert (await store.get_run(run.run_id)).wake_at == run.wake_at

    async def test_what_has_begun_can_be_made_due_though_it_would_sleep_on(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        pens = [await start_owned(store, worker) for _ in range(3)]
        for pen, minutes in zip(pens, (5, 1, 90), strict=True):
            await pen.release(store, worker, wake_at=await store.now() + minutes * 60 * SECOND)
        await store.start(new_run(delay=60 * SECOND))
        until = await store.now()
        store.shift_clock(-HOUR)
        await beat(store, worker)
        assert await store.hasten(until, 10) == 0
        assert await store.hasten(until, 1, asleep=HOUR * SECOND) == 1
        assert [stored.run.run_id for stored in await claimed(store, worker, 10)] == [pens[1].run_id]
        assert await store.hasten(until, 10, asleep=HOUR * SECOND) == 1
        assert [stored.run.run_id for stored in await claimed(store, worker, 10)] == [pens[0].run_id]

    async def test_so_many_are_made_due_at_once(self, store: Store) -> None:
        for _ in range(5):
            await store.start(new_run())
        until = await store.now()
        store.shift_clock(-HOUR)
        assert [await store.hasten(until, 2) for _ in range(4)] == [2, 2, 1, 0]

    async def test_the_lease_of_a_dead_worker_is_over_in_time(self, store: Store) -> None:
        dead, reaper = await live_worker(store), await live_worker(store)
        pen = await start_owned(store, dead)
        store.shift_clock(-HOUR)
        assert (await beat(store, reaper, reap=True)).reaped == 0
        reaped = []
        for _ in range(2):
            store.shift_clock(LEASE_SECONDS * 0.7)
            reaped.append((await beat(store, reaper, reap=True)).reaped)
        assert reaped == [0, 1]
        assert (await store.get_run(pen.run_id)).owner is None

    async def test_a_rate_counts_nothing_that_is_yet_to_come(self, store: Store) -> None:
        worker = await live_worker(store, lease=FOREVER)
        await store.limit_queue("default", QueueLimits(rate=Rate(2, 10), key_rate=Rate(1, 10)))
        for _ in range(2):
            await store.start(new_run(flow_key="a"))
            await store.start(new_run(flow_key="b"))
        assert len(await claimed(store, worker, 10)) == 2
        until = await store.now()
        store.shift_clock(-HOUR)
        await beat(store, worker)
        await store.hasten(until, 10)
        assert (await store.due_at(worker) or 0) <= await store.now()
        assert len(await claimed(store, worker, 10)) == 2
        assert await claimed(store, worker, 10) == []

    async def test_starts_come_back_to_a_quota_that_was_used_up(self, store: Store) -> None:
        quota = Quota(name=STARTS, limit=1, burst=10)
        await store.set_quota(quota)
        await store.spend_starts(10, quota)
        store.shift_clock(-HOUR)
        assert await used(store, STARTS) <= 0
        await store.spend_starts(10, quota)
        store.shift_clock(5)
        assert await used(store, STARTS) <= 20
        store.shift_clock(20)
        assert await used(store, STARTS) <= 0
