"""Fairness: a flow key with many runs does not keep others waiting."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.records import StoredRun
from batuta.journal.store import Store
from batuta.testing.conformance.kit import Pen, claimed, live_worker, new_run
from batuta.testing.conformance.limits.queues import finish, keys_of, start_some


async def start_mixed(store: Store) -> list[str]:
    """Runs with and without keys, all due now. Their ids, in the order in which they became due."""
    keys = ["b", "a", "", "b", "a", "c"]
    for number, key in enumerate(keys):
        await store.start(new_run(f"{number}", flow_key=key, delay=number))
    store.shift_clock(1)
    return [f"{number}" for number in range(len(keys))]


class FairnessConformance:
    """Of four that are taken one has waited for longest. The others are of the flow keys that have had the fewest."""

    async def test_a_key_with_few_runs_is_not_kept_waiting(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 300, "many")
        await start_some(store, 5, "few")
        stored_runs = await claimed(store, worker, 20)
        assert keys_of(stored_runs) == {"many": 15, "few": 5}

    async def test_two_keys_have_the_same_share(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 100, "first", "second")
        for _ in range(3):
            assert keys_of(await claimed(store, worker, 20)) == {"first": 10, "second": 10}

    async def test_a_key_has_its_share_one_at_a_time_too(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=1))
        await start_some(store, 20, "first", "second")
        taken: list[StoredRun] = []
        for _ in range(12):
            [stored] = await claimed(store, worker, 10)
            taken.append(stored)
            await finish(store, worker, stored)
        assert keys_of(taken)["second"] >= 3

    async def test_one_of_four_has_waited_for_longest(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 100, "old")
        await start_some(store, 10, *(f"new {number}" for number in range(10)))
        for _ in range(3):
            taken = keys_of(await claimed(store, worker, 20))
            assert taken["old"] >= 5
            assert len(taken) >= 9

    async def test_a_key_that_has_had_nothing_of_late_comes_before_one_that_has(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 300, "many")
        assert keys_of(await claimed(store, worker, 100)) == {"many": 100}
        await start_some(store, 50, "few")
        assert keys_of(await claimed(store, worker, 20)) == {"many": 5, "few": 15}
        assert keys_of(await claimed(store, worker, 40)) == {"many": 10, "few": 30}
        assert keys_of(await claimed(store, worker, 20)) == {"many": 15, "few": 5}

    async def test_keys_are_even_again_when_each_has_had_its_share(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 100, "first")
        assert keys_of(await claimed(store, worker, 12)) == {"first": 12}
        await start_some(store, 100, "second")
        assert keys_of(await claimed(store, worker, 20)) == {"first": 5, "second": 15}
        for _ in range(3):
            taken = keys_of(await claimed(store, worker, 20))
            assert abs(taken["first"] - taken["second"]) <= 2

    async def test_a_limited_queue_remembers_who_had_many(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=200, key_concurrency=150))
        await start_some(store, 100, "many")
        assert keys_of(await claimed(store, worker, 60)) == {"many": 60}
        await start_some(store, 50, "few")
        assert keys_of(await claimed(store, worker, 20)) == {"many": 5, "few": 15}

    async def test_what_a_key_leaves_of_its_share_goes_to_others(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=200))
        await start_some(store, 1, "few")
        await start_some(store, 200, "many")
        assert keys_of(await claimed(store, worker, 40)) == {"few": 1, "many": 39}
        await start_some(store, 1, "other")
        assert keys_of(await claimed(store, worker, 40)) == {"other": 1, "many": 39}

    async def test_a_full_key_takes_no_place_from_others(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=200, key_concurrency=60))
        await start_some(store, 200, "full")
        assert keys_of(await claimed(store, worker, 60)) == {"full": 60}
        await start_some(store, 1, "few")
        await start_some(store, 100, "many")
        assert keys_of(await claimed(store, worker, 40)) == {"few": 1, "many": 39}

    async def test_the_keys_take_turns_from_claim_to_claim(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 50, *(f"{number:02}" for number in range(20)))
        seen: set[str] = set()
        for _ in range(10):
            seen.update(keys_of(await claimed(store, worker, 5)))
        assert len(seen) == 20

    async def test_one_at_a_time_is_fair_too(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(concurrency=1))
        await start_some(store, 50, "many")
        await start_some(store, 3, "few")
        seen: list[str] = []
        for _ in range(16):
            [stored] = await claimed(store, worker, 10)
            seen.append(stored.run.flow_key)
            await finish(store, worker, stored)
        assert seen.count("few") == 3

    async def test_a_rate_is_shared_fairly(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.limit_queue("default", QueueLimits(rate=Rate(20, 600)))
        await start_some(store, 100, "many")
        await start_some(store, 4, "few")
        assert keys_of(await claimed(store, worker, 100)) == {"many": 16, "few": 4}

    async def test_a_higher_priority_comes_first_whatever_the_key(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 10, "low", "lower")
        high = await start_some(store, 4, "high", priority=1)
        assert {stored.run.run_id for stored in await claimed(store, worker, 4)} == {new.run_id for new in high}

    async def test_what_has_no_key_is_taken_in_order(self, store: Store) -> None:
        worker = await live_worker(store)
        plain = await start_some(store, 5)
        await start_some(store, 50, "keyed")
        taken = {stored.run.run_id for stored in await claimed(store, worker, 10)}
        assert taken.issuperset(new.run_id for new in plain)

    async def test_all_that_fits_is_taken_and_comes_in_order(self, store: Store) -> None:
        worker = await live_worker(store)
        in_order = await start_mixed(store)
        assert [stored.run.id for stored in await claimed(store, worker, 6)] == in_order

    async def test_it_comes_in_order_beside_a_queue_that_gives_nothing(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "other"])
        await store.pause_queue("other", True)
        in_order = await start_mixed(store)
        assert [stored.run.id for stored in await claimed(store, worker, 6)] == in_order

    async def test_it_comes_in_order_behind_a_queue_that_is_used_up(self, store: Store) -> None:
        worker = await live_worker(store, queues=["default", "other"])
        await store.limit_queue("other", QueueLimits(concurrency=1))
        await start_some(store, 2, queue="other", priority=1)
        in_order = await start_mixed(store)
        assert [stored.run.id for stored in await claimed(store, worker, 7)][1:] == in_order

    async def test_what_is_not_due_has_no_turn(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 20, "now")
        await start_some(store, 20, "a later one", "later", delay=60 * SECOND)
        assert keys_of(await claimed(store, worker, 10)) == {"now": 10}

    async def test_what_the_worker_does_not_know_has_no_turn(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 20, "theirs", name="unknown")
        await start_some(store, 20, "mine", "theirs")
        assert len(await claimed(store, worker, 40)) == 40

    async def test_a_queue_with_keys_does_not_keep_another_one_waiting(self, store: Store) -> None:
        worker = await live_worker(store, queues=["keyed", "plain"])
        await start_some(store, 30, "a", "b", queue="keyed")
        plain = await start_some(store, 2, queue="plain")
        await start_some(store, 30, "a", "b", queue="keyed")
        taken: set[object] = set()
        for _ in range(7):
            stored_runs = await claimed(store, worker, 10)
            taken.update(stored.run.run_id for stored in stored_runs)
        assert taken.issuperset(new.run_id for new in plain)

    async def test_a_run_keeps_its_key_when_it_comes_back(self, store: Store) -> None:
        worker = await live_worker(store)
        await start_some(store, 1, "a")
        [stored] = await claimed(store, worker)
        await Pen.of(stored).release(store, worker, wake_at=await store.now(), count=1)
        await start_some(store, 20, "b")
        assert keys_of(await claimed(store, worker, 4))["a"] == 1
