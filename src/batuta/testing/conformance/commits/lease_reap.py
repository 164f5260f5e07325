"""Leases, heartbeats and what becomes of the runs of the dead."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.records import LOSSES, LOSSES_KEPT, Move, RunFilter, Verdict
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import (
    LEASE_SECONDS,
    MakeStore,
    Pen,
    beat,
    claim_one,
    claimed,
    dead_worker,
    ended_process,
    live_worker,
    new_run,
    outlive_lease,
    start_owned,
    worker_info,
)


class LeaseReapConformance:
    """A worker lives as long as it beats; what it leaves behind is found by the others."""

    async def test_registering_and_beating_tell_the_stores_time(self, store: Store) -> None:
        worker = worker_info()
        before = await store.now()
        registered = await store.register(worker)
        pulse = await beat(store, worker)
        assert before <= registered <= pulse.now <= await store.now()
        assert pulse.alive

    async def test_the_timeline_stays_the_same(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pulses = [await beat(store, worker), await beat(await make_store(), worker)]
        assert pulses[0].timeline == pulses[1].timeline

    async def test_a_beat_tells_of_the_one_before_it(self, store: Store) -> None:
        worker = await live_worker(store)
        async with store.heartbeat(worker.worker_id) as heartbeat:
            first, second = await heartbeat.beat(worker, reap=False), await heartbeat.beat(worker, reap=False)
        assert second.beaten_at in (first.now, None)  # None: this store cannot be set back
        assert second.position >= first.position

    async def test_a_beat_renews_the_lease(self, store: Store) -> None:
        worker = await live_worker(store)
        async with store.heartbeat(worker.worker_id) as heartbeat:
            for _ in range(4):
                store.shift_clock(LEASE_SECONDS * 0.7)
                assert (await heartbeat.beat(worker, reap=False)).alive

    async def test_a_lease_that_is_over_is_renewed_while_nobody_took_its_runs(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await outlive_lease(store)
        await store.start(new_run())
        assert await claimed(store, worker, 10) == []
        pulse = await beat(store, worker)
        assert (pulse.alive, pulse.owned) == (True, {pen.run_id: 1})
        await claim_one(store, worker)

    async def test_after_a_standstill_the_first_to_beat_reaps_nobody(self, store: Store) -> None:
        first, second = await live_worker(store), await live_worker(store)
        pen = await start_owned(store, second)
        await outlive_lease(store)
        assert (await beat(store, first, reap=True)).reaped == 0
        assert (await beat(store, second, reap=True)).owned == {pen.run_id: 1}

    async def test_a_worker_whose_runs_were_taken_is_not_alive(self, store: Store) -> None:
        worker = await live_worker(store)
        await outlive_lease(store)
        await beat(store, await live_worker(store), reap=True)
        assert not (await beat(store, worker)).alive
        assert not (await beat(store, worker)).alive
        await store.register(worker)
        assert (await beat(store, worker)).alive

    async def test_an_unknown_or_retired_worker_is_not_alive(self, store: Store) -> None:
        assert not (await beat(store, worker_info())).alive
        worker = await live_worker(store)
        await store.retire(worker.worker_id)
        assert not (await beat(store, worker)).alive

    async def test_a_beat_tells_what_is_owned(self, store: Store) -> None:
        worker, other = await live_worker(store), await live_worker(store)
        pens = [await start_owned(store, worker) for _ in range(3)]
        await start_owned(store, other)
        await pens[0].write(store, worker, move=Move(RunState.COMPLETED))
        await pens[1].release(store, worker, wake_at=0)
        await claim_one(store, worker)
        assert (await beat(store, worker)).owned == {pens[1].run_id: 2, pens[2].run_id: 1}

    async def test_a_beat_tells_when_the_next_run_is_due(self, store: Store) -> None:
        worker = await live_worker(store)
        assert (await beat(store, worker)).due_at is None
        assert await store.due_at(worker) is None
        run, _ = await store.start(new_run(delay=60 * SECOND, priority=3))
        await store.start(new_run(delay=90 * SECOND, priority=9))
        await store.start(new_run(queue="other"))
        await store.start(new_run(name="unknown"))
        assert (await beat(store, worker)).due_at == run.wake_at == await store.due_at(worker)
        due, _ = await store.start(new_run())
        assert (await beat(store, worker)).due_at == due.wake_at == await store.due_at(worker)

    # -- reaping

    async def test_the_runs_of_the_dead_are_set_free(self, store: Store) -> None:
        dead = await live_worker(store)
        begun = await start_owned(store, dead)
        await store.start(new_run("unbegun"))
        await claim_one(store, dead)
        await outlive_lease(store)
        reaper = await live_worker(store)
        pulse = await beat(store, reaper, reap=True)
        assert pulse.reaped == 2
        assert pulse.due_at is not None
        assert pulse.due_at <= pulse.now
        run, unbegun = await store.get_run(begun.run_id), await store.get("unbegun")
        assert (run.state, run.owner, run.epoch, run.deaths) == (RunState.WAITING, None, 2, 1)
        assert (unbegun.state, unbegun.owner, unbegun.epoch) == (RunState.PENDING, None, 2)
        assert {stored.run.run_id for stored in await claimed(store, reaper, 10)} == {run.run_id, unbegun.run_id}

    async def test_a_begun_run_of_the_dead_notes_its_losses_and_keeps_the_last_of_them(self, store: Store) -> None:
        reaper, lease = await live_worker(store, lease=1_000_000 * SECOND), 10 * SECOND
        pen = await start_owned(store, await live_worker(store, lease=lease))
        await store.start(new_run("unbegun"))
        for _ in range(LOSSES_KEPT + 2):
            await claimed(store, await live_worker(store, lease=lease), 10)
            store.shift_clock(11)
            assert (await beat(store, reaper, reap=True)).reaped > 0
            await store.unpark(pen.run_id)
        losses = await store.attempts(pen.run_id)
        assert {one.seq for one in losses} == {LOSSES}
        times = sorted(one.started_at for one in losses)
        assert LOSSES_KEPT // 2 <= len(times) <= LOSSES_KEPT
        assert times[-1] <= await store.now() < times[-1] + 5 * SECOND
        assert await store.attempts((await store.get("unbegun")).run_id) == []

    async def test_a_reaped_zombie_is_refused(self, store: Store) -> None:
        zombie = await live_worker(store)
        pen = await start_owned(store, zombie)
        await outlive_lease(store)
        await beat(store, await live_worker(store), reap=True)
        assert await pen.write(store, zombie) is Verdict.REFUSED
        await store.register(zombie)
        assert await pen.write(store, zombie) is Verdict.REFUSED

    async def test_an_expired_owner_that_nobody_reaped_may_still_write(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await outlive_lease(store)
        assert await pen.write(store, worker) is None

    async def test_nothing_is_reaped_unless_asked(self, store: Store) -> None:
        dead = await live_worker(store)
        pen = await start_owned(store, dead)
        await outlive_lease(store)
        pulse = await beat(store, await live_worker(store), reap=False)
        assert pulse.reaped == 0
        assert (await store.get_run(pen.run_id)).owner == dead.worker_id

    async def test_the_living_keep_their_runs(self, store: Store) -> None:
        worker, other = await live_worker(store), await live_worker(store)
        pen = await start_owned(store, worker)
        own = await start_owned(store, other)
        assert (await beat(store, other, reap=True)).reaped == 0
        assert await pen.write(store, worker) is None
        assert await own.write(store, other) is None

    async def test_a_worker_that_is_not_alive_reaps_nobody(self, store: Store) -> None:
        dead = await live_worker(store)
        pen = await start_owned(store, dead)
        await outlive_lease(store)
        pulse = await beat(store, worker_info(), reap=True)
        assert (pulse.alive, pulse.reaped) == (False, 0)
        assert (await store.get_run(pen.run_id)).owner == dead.worker_id

    async def test_the_dead_of_another_namespace_are_not_ours(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store(namespace="other")
        dead = await live_worker(other)
        pen = await start_owned(other, dead)
        await outlive_lease(store, other)
        assert (await beat(store, await live_worker(store), reap=True)).reaped == 0
        assert (await other.get_run(pen.run_id)).owner == dead.worker_id

    async def test_the_rows_of_the_dead_go_with_their_runs(self, store: Store) -> None:
        dead = await live_worker(store)
        await outlive_lease(store)
        me = await live_worker(store)
        await beat(store, me, reap=False)
        assert {worker.worker_id for worker in await store.workers()} == {dead.worker_id, me.worker_id}
        assert (await beat(store, me, reap=True)).peers == []
        assert [worker.worker_id for worker in await store.workers()] == [me.worker_id]

    # -- retiring

    async def test_a_retired_workers_runs_are_free_and_no_death_is_counted(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await store.retire(worker.worker_id)
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.deaths, run.epoch) == (RunState.WAITING, None, 0, 2)
        assert await pen.write(store, worker) is Verdict.REFUSED
        assert (await claim_one(store, await live_worker(store))).run.run_id == pen.run_id

    async def test_retiring_twice_is_harmless(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.retire(worker.worker_id)
        await store.retire(worker.worker_id)

    # -- fast detection

    async def test_a_worker_without_its_lock_seems_gone(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        me, held = await live_worker(store), await live_worker(other)
        gone = await dead_worker(other, process=ended_process())
        async with other.heartbeat(held.worker_id), store.heartbeat(me.worker_id) as heartbeat:
            assert (await heartbeat.beat(me, reap=False)).peers == [gone.worker_id]
            async with other.heartbeat(gone.worker_id):
                assert (await heartbeat.beat(me, reap=False)).peers == []
            assert (await heartbeat.beat(me, reap=False)).peers == [gone.worker_id]

    async def test_one_whose_lease_is_over_seems_gone_too(self, store: Store) -> None:
        gone = await dead_worker(store)
        await outlive_lease(store)
        me = await live_worker(store)
        async with store.heartbeat(me.worker_id) as heartbeat:
            assert (await heartbeat.beat(me, reap=False)).peers == [gone.worker_id]
            assert await heartbeat.reap([gone.worker_id]) == 0
            assert (await heartbeat.beat(me, reap=False)).peers == []

    async def test_burying_frees_the_runs_of_the_gone(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        me, gone = await live_worker(store), await dead_worker(other)
        pen = await start_owned(other, gone)
        async with store.heartbeat(me.worker_id) as heartbeat:
            assert await heartbeat.reap([gone.worker_id]) == 1
            assert (await heartbeat.beat(me, reap=False)).peers == []
        run = await store.get_run(pen.run_id)
        assert (run.owner, run.state, run.deaths) == (None, RunState.WAITING, 1)
        assert await pen.write(other, gone) is Verdict.REFUSED
        assert not (await beat(other, gone)).alive

    async def test_burying_frees_all_however_many(self, store: Store) -> None:
        me, gone = await live_worker(store), await dead_worker(store)
        news = [new_run() for _ in range(2_500)]
        starts = [Pen(new.run_id, epoch=1).change(1, start=new) for new in news]
        assert await store.commit(gone.worker_id, starts) == {}
        async with store.heartbeat(me.worker_id) as heartbeat:
            assert await heartbeat.reap([gone.worker_id]) == 2_500
        assert await store.count_runs(RunFilter(states=(RunState.WAITING,))) == 2_500

    async def test_a_worker_that_holds_its_lock_is_not_buried(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        me, slow = await live_worker(store), await live_worker(other)
        pen = await start_owned(other, slow)
        async with other.heartbeat(slow.worker_id) as slow_heart, store.heartbeat(me.worker_id) as heartbeat:
            assert await heartbeat.reap([slow.worker_id, "unknown"]) == 0
            assert (await slow_heart.beat(slow, reap=False)).alive
        assert await pen.write(other, slow) is None

    async def test_burying_one_leaves_others_whose_lease_is_over(self, store: Store, make_store: MakeStore) -> None:
        other = await make_store()
        gone, slow = await dead_worker(other), await live_worker(other)
        pens = [await start_owned(other, gone), await start_owned(other, slow)]
        await outlive_lease(store, other)
        me = await live_worker(store)
        async with other.heartbeat(slow.worker_id), store.heartbeat(me.worker_id) as heartbeat:
            assert await heartbeat.reap([gone.worker_id, slow.worker_id]) == 1
        assert await pens[0].write(other, gone) is Verdict.REFUSED
        assert await pens[1].write(other, slow) is None
