"""How much a namespace may start."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from batuta.clock import SECOND
from batuta.journal.audit import Act, Verb, first_break
from batuta.journal.quotas import EVERYBODY, OPEN_RUNS, PAYLOAD, STARTS, Quota
from batuta.journal.records import Move
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import MakeStore, claim_one, live_worker, new_run, start_owned

SET = Act(actor="ann", verb=Verb.SET_QUOTA, before="null", after='{"limit":7}')
CLEAR = Act(actor="ann", verb=Verb.CLEAR_QUOTA, before='{"limit":7}')
LONG = 1_000_000


async def used(store: Store, name: str) -> float:
    """How far the quota of that name is used."""
    return next(view.used or 0 for view in await store.quotas() if view.name == name)


async def open_up_to(store: Store, limit: int) -> None:
    await store.set_quota(Quota(name=OPEN_RUNS, limit=limit))


class QuotasConformance:
    """Quotas are kept, and their use is counted. No verb of a store refuses anything because of a quota."""

    async def test_there_are_none_at_first(self, store: Store) -> None:
        assert await store.quotas() == []

    async def test_quotas_are_listed_by_name(self, store: Store, make_store: MakeStore) -> None:
        given = [
            Quota(name=OPEN_RUNS, limit=1_000_000_000),
            Quota(name=PAYLOAD, limit=2),
            Quota(name=STARTS, limit=0.25, burst=40),
        ]
        for quota in reversed(given):
            assert await store.set_quota(quota)
        assert await (await make_store()).quotas() == [replace(quota, used=0) for quota in given]
        assert await (await make_store(namespace="other")).quotas() == []

    async def test_a_quota_is_replaced_by_another_of_its_name(self, store: Store) -> None:
        assert await store.set_quota(Quota(name=STARTS, limit=5))
        assert not await store.set_quota(Quota(name=STARTS, limit=5))
        assert await store.set_quota(Quota(name=STARTS, limit=5, burst=9))
        assert await store.set_quota(Quota(name=STARTS))
        assert not await store.set_quota(Quota(name=STARTS))
        assert await store.quotas() == [Quota(name=STARTS, used=0)]

    async def test_a_quota_is_taken_away(self, store: Store) -> None:
        await open_up_to(store, 5)
        assert not await store.clear_quota(STARTS)
        assert await store.clear_quota(OPEN_RUNS)
        assert not await store.clear_quota(OPEN_RUNS)
        assert await store.quotas() == []

    async def test_those_of_everybody_hold_where_there_are_none_of_ones_own(self, make_store: MakeStore) -> None:
        everybody, mine, other = [await make_store(name) for name in (EVERYBODY, "mine", "other")]
        for quota in (Quota(name=OPEN_RUNS, limit=5), Quota(name=PAYLOAD, limit=500)):
            await everybody.set_quota(quota)
        await mine.set_quota(Quota(name=OPEN_RUNS, limit=7))
        await mine.set_quota(Quota(name=STARTS, limit=1))
        assert [(view.name, view.limit, view.own) for view in await mine.quotas()] == [
            (OPEN_RUNS, 7, True),
            (PAYLOAD, 500, False),
            (STARTS, 1, True),
        ]
        assert [view.limit for view in await other.quotas()] == [5, 500]
        await mine.set_quota(Quota(name=OPEN_RUNS))
        assert Quota(name=OPEN_RUNS, used=0) in await mine.quotas()
        await mine.clear_quota(OPEN_RUNS)
        assert Quota(name=OPEN_RUNS, limit=5, used=0, own=False) in await mine.quotas()
        assert all(view.own for view in await everybody.quotas())

    async def test_open_runs_are_counted_wherever_they_stand(self, store: Store) -> None:
        await open_up_to(store, 100)
        worker = await live_worker(store)
        owned = await start_owned(store, worker)
        await (await start_owned(store, worker)).release(store, worker)  # it waits for a message
        await (await start_owned(store, worker)).release(store, worker, wake_at=await store.now() + LONG)
        await start_owned(store, worker, flow_key="a")
        await store.start(new_run())
        await store.start(new_run(flow_key="a"))
        await store.start(new_run(delay=LONG))
        paused = new_run()
        await store.start(paused)
        await store.pause_runs([paused.run_id], Act(actor="ann", verb=Verb.PAUSE))
        broken = await start_owned(store, worker)
        await broken.write(store, worker, move=Move(RunState.NEEDS_CODE, reason="broken", fingerprint="v1"))
        assert await used(store, OPEN_RUNS) == 9
        await owned.write(store, worker, move=Move(RunState.COMPLETED))
        assert await used(store, OPEN_RUNS) == 8

    async def test_no_more_are_counted_than_one_above_the_quota(self, store: Store) -> None:
        await store.start_many([new_run() for _ in range(20)])
        worker = await live_worker(store)
        for _ in range(3):
            await (await start_owned(store, worker)).release(store, worker)
        for limit, counted in ((3, 4), (20, 21), (22, 23), (23, 23), (1_000_000_000, 23)):
            await open_up_to(store, limit)
            assert await used(store, OPEN_RUNS) == counted

    async def test_namespaces_are_counted_apart(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        for one in (store, other):
            await open_up_to(one, 10)
        await store.start_many([new_run() for _ in range(4)])
        await other.spend_starts(1, Quota(name=STARTS, limit=1))
        assert await used(store, OPEN_RUNS) == 4
        assert await used(other, OPEN_RUNS) == 0

    async def test_a_count_is_right_after_the_quota_was_gone_for_a_while(self, store: Store) -> None:
        await open_up_to(store, 10)
        await store.clear_quota(OPEN_RUNS)
        worker = await live_worker(store)
        await (await start_owned(store, worker)).release(store, worker)
        await store.start(new_run())
        await claim_one(store, worker)
        await open_up_to(store, 10)
        assert await used(store, OPEN_RUNS) == 2

    async def test_starts_that_were_spent_come_back_with_time(self, store: Store, make_store: MakeStore) -> None:
        quota = Quota(name=STARTS, limit=10, burst=40)
        await store.set_quota(quota)
        assert await used(store, STARTS) == 0
        other = await make_store()
        await store.spend_starts(30, quota)
        await other.spend_starts(30, quota)
        assert await used(store, STARTS) == pytest.approx(60, abs=5)  # some time has passed since
        for one in (store, other):
            one.shift_clock(4)
        assert await used(other, STARTS) == pytest.approx(20, abs=5)
        for one in (store, other):
            one.shift_clock(1_000)
        assert await used(store, STARTS) == 0

    @pytest.mark.parametrize("is_first", [True, False])
    async def test_what_comes_back_before_starts_are_told_of_counts(self, store: Store, is_first: bool) -> None:
        quota = Quota(name=STARTS, limit=0.01, burst=10)
        await store.set_quota(quota)
        if not is_first:
            await store.spend_starts(6, quota)
            store.shift_clock(500)
        await store.spend_starts(8, quota, ago=300 * SECOND)
        assert await used(store, STARTS) == pytest.approx(5 if is_first else 9, abs=0.5)

    async def test_what_comes_back_is_no_more_than_the_burst(self, store: Store) -> None:
        quota = Quota(name=STARTS, limit=10, burst=10)
        await store.set_quota(quota)
        for ago in (0, 1_000, 0):
            await store.spend_starts(0, quota, ago * SECOND)
            store.shift_clock(10)
        await store.spend_starts(30, quota, 10 * SECOND)
        assert await used(store, STARTS) == 0
        await store.spend_starts(30, quota, 1_000 * SECOND)
        assert await used(store, STARTS) == pytest.approx(30, abs=5)

    async def test_starts_of_many_clients_are_all_noted(self, make_store: MakeStore) -> None:
        quota = Quota(name=STARTS, limit=0.001, burst=1_000)
        stores = [await make_store() for _ in range(4)]
        await stores[0].set_quota(quota)
        await asyncio.gather(*(store.spend_starts(3, quota) for store in stores for _ in range(5)))
        assert await used(stores[0], STARTS) == pytest.approx(60, abs=1)

    async def test_whoever_changes_a_quota_is_in_the_audit_log(self, store: Store) -> None:
        await store.set_quota(Quota(name=OPEN_RUNS, limit=7), SET)
        await store.set_quota(Quota(name=OPEN_RUNS, limit=7), SET)
        await store.clear_quota(OPEN_RUNS, CLEAR)
        await store.clear_quota(OPEN_RUNS, CLEAR)
        rows = await store.audit()
        assert [(row.verb, row.target, row.before, row.after) for row in rows] == [
            ("set quota", OPEN_RUNS, "null", '{"limit":7}'),
            ("clear quota", OPEN_RUNS, '{"limit":7}', "null"),
        ]
        assert first_break(store.namespace, (0, ""), rows) is None
