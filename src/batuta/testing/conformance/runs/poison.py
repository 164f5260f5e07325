"""Runs that their workers die with: counted, run alone, and parked in the end."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.records import Move, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.stores.contract.rules import BEAT_LIMIT
from batuta.testing.conformance.kit import (
    Pen,
    beat,
    claim_one,
    claimed,
    let_go,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
)


async def die(store: Store, worker: WorkerInfo) -> None:
    """No process holds the worker's lock, and another worker notices."""
    await let_go(store, worker)
    me = await live_worker(store)
    async with store.heartbeat(me.worker_id) as heartbeat:
        await heartbeat.reap([worker.worker_id])
    await store.retire(me.worker_id)


async def make_suspects(store: Store, *ids: str, **options: object) -> None:
    """Start runs, and let two workers die with each."""
    for id in ids:
        await store.start(new_run(id, **options))
    for _ in range(2):
        worker = await live_worker(store, queues=[str(options.get("queue", "default"))])
        assert len(await claimed(store, worker, 100)) == len(ids)
        await die(store, worker)


class PoisonConformance:
    """Five deaths without progress park a run. From the second on it is a suspect: a worker has one at most."""

    async def test_five_deaths_without_progress_park_a_run(self, store: Store) -> None:
        await store.start(new_run("bad"))
        for death in range(1, 6):
            await claim_one(store, await live_worker(store))
            await outlive_lease(store)
            await beat(store, await live_worker(store), reap=True)
            assert (await store.get("bad")).deaths == death
        run = await store.get("bad")
        assert (run.state, run.owner, run.wake_at, run.epoch) == (RunState.POISONED, None, None, 10)
        assert run.reason
        assert await claimed(store, await live_worker(store), 10) == []

    async def test_progress_resets_the_count_of_deaths(self, store: Store) -> None:
        await store.start(new_run("slow"))
        for _ in range(7):
            worker = await live_worker(store)
            pen = Pen.of(await claim_one(store, worker))
            await pen.write(store, worker)
            await outlive_lease(store)
            await beat(store, await live_worker(store), reap=True)
            assert (await store.get("slow")).deaths == 1

    async def test_progress_of_a_claim_that_ended_well_resets_it_too(self, store: Store) -> None:
        await store.start(new_run("slow"))
        for _ in range(4):
            await claim_one(store, await live_worker(store))
            await outlive_lease(store)
            await beat(store, await live_worker(store), reap=True)
        worker = await live_worker(store)
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker)
        await pen.release(store, worker, wake_at=0)
        await claim_one(store, await live_worker(store))
        await outlive_lease(store)
        await beat(store, await live_worker(store), reap=True)
        run = await store.get("slow")
        assert (run.state, run.deaths) == (RunState.WAITING, 1)

    async def test_a_run_that_its_worker_gives_up_counts_a_death_each_and_rests_longer_each_time(
        self, store: Store
    ) -> None:
        await store.start(new_run("bad"))
        rests = []
        for death in range(1, 5):
            worker = await live_worker(store)
            run_id = (await claim_one(store, worker)).run.run_id
            assert await store.give_up(worker.worker_id, [run_id], "its commits fail") == 1
            run, now = await store.get("bad"), await store.now()
            assert (run.state, run.owner, run.epoch, run.deaths) == (RunState.PENDING, None, 2 * death, death)
            assert run.reason == "its commits fail"
            assert run.wake_at is not None
            rests.append((run.wake_at - now) / SECOND)
            store.shift_clock(8)
        worker = await live_worker(store)
        for rest, wanted in zip(rests, (0, 1, 3, 7), strict=True):
            assert wanted - 5 < rest <= wanted
        await store.give_up(worker.worker_id, [(await claim_one(store, worker)).run.run_id], "its commits fail")
        run = await store.get("bad")
        assert (run.state, run.deaths, run.wake_at) == (RunState.POISONED, 5, None)
        assert run.reason == "its commits fail"

    async def test_a_run_that_is_given_up_after_progress_has_one_death_and_is_due(self, store: Store) -> None:
        await make_suspects(store, "slow")
        worker = await live_worker(store)
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker)
        assert await store.give_up(worker.worker_id, [pen.run_id], "why") == 1
        run = await store.get("slow")
        assert (run.state, run.deaths) == (RunState.WAITING, 1)
        assert (await claim_one(store, worker)).run.reason == ""

    async def test_only_the_owner_can_give_a_run_up(self, store: Store) -> None:
        worker, other = await live_worker(store), await live_worker(store)
        pen = await start_owned(store, worker)
        ended = await start_owned(store, other)
        await ended.write(store, other, move=Move(RunState.COMPLETED))
        assert await store.give_up(other.worker_id, [pen.run_id, ended.run_id, new_run().run_id], "why") == 0
        assert await store.give_up(worker.worker_id, [], "why") == 0
        run = await store.get_run(pen.run_id)
        assert (run.owner, run.epoch, run.deaths) == (worker.worker_id, 1, 0)

    async def test_a_worker_claims_one_suspect_at_a_time(self, store: Store) -> None:
        await make_suspects(store, "a", "b", "c")
        await store.start(new_run("healthy"))
        worker = await live_worker(store)
        assert [stored.run.id for stored in await claimed(store, worker, 10)] == ["a", "healthy"]
        assert await store.due_at(worker) is None
        assert (await beat(store, worker)).due_at is None
        assert await claimed(store, worker, 10) == []
        other = await live_worker(store)
        assert await store.due_at(other) is not None
        assert [stored.run.id for stored in await claimed(store, other, 10)] == ["b"]

    async def test_suspects_keep_their_place_among_the_others(self, store: Store) -> None:
        await make_suspects(store, "low", "low too", priority=-1)
        await store.start(new_run("low and later", priority=-1))
        await store.start(new_run("high"))
        worker = await live_worker(store)
        order = [[stored.run.id for stored in await claimed(store, worker, 1)] for _ in range(4)]
        assert order == [["high"], ["low"], ["low and later"], []]

    async def test_suspects_of_several_queues_come_one_at_a_time_too(self, store: Store) -> None:
        await make_suspects(store, "one", queue="one")
        await make_suspects(store, "two", queue="two")
        worker = await live_worker(store, queues=["one", "two"])
        assert [stored.run.id for stored in await claimed(store, worker, 10)] == ["one"]

    async def test_a_suspect_that_makes_progress_is_none_any_more(self, store: Store) -> None:
        await make_suspects(store, "a", "b")
        worker = await live_worker(store)
        pen = Pen.of(await claim_one(store, worker))
        assert await claimed(store, worker, 10) == []
        await pen.write(store, worker)
        assert (await claim_one(store, worker)).run.id == "b"

    async def test_a_suspect_that_was_given_back_makes_room_for_another(self, store: Store) -> None:
        await make_suspects(store, "a", "b")
        worker = await live_worker(store)
        pen = Pen.of(await claim_one(store, worker))
        later = await store.now() + 60 * SECOND
        await pen.write(store, worker, 0, move=Move(RunState.PENDING, wake_at=later))
        assert (await claim_one(store, worker)).run.id == "b"

    async def test_a_suspect_that_sleeps_is_due_for_who_has_none(self, store: Store) -> None:
        await make_suspects(store, "a")
        worker = await live_worker(store)
        later = await store.now() + 3 * SECOND
        await Pen.of(await claim_one(store, worker)).write(store, worker, 0, move=Move(RunState.PENDING, wake_at=later))
        assert await store.due_at(worker) == later
        assert await claimed(store, worker, 10) == []
        store.shift_clock(4)
        assert (await claim_one(store, worker)).run.id == "a"

    async def test_only_the_suspect_is_to_blame(self, store: Store) -> None:
        await make_suspects(store, "bad")
        for id in ("new", "begun"):
            await store.start(new_run(id))
        worker = await live_worker(store)
        stored_runs = {stored.run.id: stored for stored in await claimed(store, worker, 10)}
        await Pen.of(stored_runs["begun"]).write(store, worker)
        own = await start_owned(store, worker)
        await die(store, worker)
        assert (await store.get("bad")).deaths == 3
        for run in (await store.get("new"), await store.get("begun"), await store.get_run(own.run_id)):
            assert (run.deaths, run.owner) == (0, None)
        assert (await store.get("new")).state is RunState.PENDING
        assert (await store.get("begun")).state is RunState.WAITING

    async def test_a_lease_that_ran_out_is_blamed_on_the_suspect_too(self, store: Store) -> None:
        await make_suspects(store, "bad")
        await store.start(new_run("good"))
        assert len(await claimed(store, await live_worker(store), 10)) == 2
        await outlive_lease(store)
        assert (await beat(store, await live_worker(store), reap=True)).reaped == 2
        assert [(await store.get(id)).deaths for id in ("bad", "good")] == [3, 0]

    async def test_a_suspect_that_made_progress_is_not_to_blame(self, store: Store) -> None:
        await make_suspects(store, "bad")
        await store.start(new_run("good"))
        worker = await live_worker(store)
        stored_runs = {stored.run.id: stored for stored in await claimed(store, worker, 10)}
        await Pen.of(stored_runs["bad"]).write(store, worker)
        await die(store, worker)
        assert [(await store.get(id)).deaths for id in ("bad", "good")] == [1, 1]

    async def test_the_suspect_is_to_blame_for_however_many(self, store: Store) -> None:
        """More than one transaction sets free: the last of them must still know."""
        await make_suspects(store, "bad")
        dead = await live_worker(store)
        await claim_one(store, dead)
        news = [new_run() for _ in range(BEAT_LIMIT + 10)]
        starts = [Pen(new.run_id, epoch=1).change(0, start=new) for new in news]
        assert await store.commit(dead.worker_id, starts) == {}
        await outlive_lease(store)
        me = await live_worker(store)
        reaped = [(await beat(store, me, reap=True)).reaped for _ in range(3)]
        assert sum(reaped) == len(news) + 1
        assert (await store.get("bad")).deaths == 3
        for new in (news[0], news[-1]):
            assert (await store.get_run(new.run_id)).deaths == 0

    async def test_healthy_runs_outlive_a_poisonous_one(self, store: Store) -> None:
        """Claimed together, again and again, with one that kills before anybody makes progress."""
        for id in ("bad", "good", "fine"):
            await store.start(new_run(id))
        while (await store.get("bad")).state is not RunState.POISONED:
            worker = await live_worker(store)
            for stored in await claimed(store, worker, 10):
                if stored.run.id != "bad" and stored.run.deaths >= 2:
                    await Pen.of(stored).write(store, worker)
            if (await store.get("bad")).owner == worker.worker_id:
                await die(store, worker)
            else:
                await store.retire(worker.worker_id)
        for id in ("good", "fine"):
            assert (await store.get(id)).deaths <= 2
