"""Parked runs: stopped visibly, and taken up again by other code."""

from __future__ import annotations

import pytest

from batuta.clock import SECOND
from batuta.errors import UnknownRun
from batuta.journal.records import Move, RunFilter
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.stores.contract.rules import BEAT_LIMIT, POISON_DEATHS
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
)


class ParkingConformance:
    """needs_code waits for other code; poisoned waits for a person."""

    async def test_a_parked_run_says_why_and_which_code_failed(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason="differs at 3", fingerprint="v1"))
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.wake_at, run.epoch) == (RunState.NEEDS_CODE, None, None, 1)
        assert (run.reason, run.failed_code, run.closed_at) == ("differs at 3", ["v1"], None)
        assert await claimed(store, worker, 10) == []

    async def test_the_code_that_failed_does_not_revive_it(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        await beat(store, worker)
        await beat(store, await live_worker(store, code={"other": "v2"}))
        await beat(store, await live_worker(store, code={"flow": "v2"}, queues=["other"]))
        assert (await store.get_run(pen.run_id)).state is RunState.NEEDS_CODE

    async def test_other_code_revives_it(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        other = await live_worker(store, code={"flow": "v2"})
        pulse = await beat(store, other)
        assert pulse.due_at is not None
        assert pulse.due_at <= pulse.now
        run = await store.get_run(pen.run_id)
        assert (run.state, run.failed_code) == (RunState.WAITING, ["v1"])
        assert (await claim_one(store, other)).run.run_id == pen.run_id

    async def test_every_fingerprint_that_failed_is_kept_once(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        for fingerprint in ("v1", "v2", "v2", ""):
            await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint=fingerprint))
            assert (await store.get_run(pen.run_id)).failed_code == (["v1"] if fingerprint == "v1" else ["v1", "v2"])
            worker = await live_worker(store, code={"flow": "v3"})
            await beat(store, worker)
            pen = Pen.of(await claim_one(store, worker))
        for code, revived in [("v1", False), ("v2", False), ("v3", True)]:
            await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE))
            await beat(store, await live_worker(store, code={"flow": code}))
            assert ((await store.get_run(pen.run_id)).state is RunState.WAITING) is revived

    async def test_a_revived_run_is_due_for_other_code_alone(self, store: Store) -> None:
        old, new = await live_worker(store), await live_worker(store, code={"flow": "v2"})
        pen = await start_owned(store, old)
        await pen.write(store, old, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        due_at = (await beat(store, new)).due_at
        assert due_at is not None
        assert await claimed(store, old, 10) == []
        assert await store.due_at(old) is None
        assert (await beat(store, old)).due_at is None
        assert await store.due_at(new) == due_at
        assert (await claim_one(store, new)).run.run_id == pen.run_id

    async def test_what_failed_once_stays_away_from_that_code(self, store: Store) -> None:
        old, new = await live_worker(store), await live_worker(store, code={"flow": "v2"})
        pen = await start_owned(store, old)
        await pen.write(store, old, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        await beat(store, new)
        later = await store.now() + SECOND
        await Pen.of(await claim_one(store, new)).release(store, new, wake_at=later, count=1)
        store.shift_clock(2)
        assert await store.due_at(old) is None
        assert await claimed(store, old, 10) == []
        assert await store.due_at(new) == later
        assert (await claim_one(store, new)).run.run_id == pen.run_id

    async def test_a_fingerprint_counts_for_its_own_name(self, store: Store) -> None:
        worker = await live_worker(store, code={"flow": "same", 'fl"ow': "same"})
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint="same"))
        other, _ = await store.start(new_run(name='fl"ow'))
        renamed = await live_worker(store, code={"flow": "v2", 'fl"ow': "same"})
        await beat(store, renamed)
        assert (await claim_one(store, worker)).run.run_id == other.run_id
        assert (await claim_one(store, renamed)).run.run_id == pen.run_id

    async def test_what_the_code_cannot_replay_does_not_hide_the_rest(self, store: Store) -> None:
        old, new = await live_worker(store), await live_worker(store, code={"flow": "v2"})
        for _ in range(20):
            pen = await start_owned(store, old)
            await pen.write(store, old, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        await beat(store, new)
        mine, _ = await store.start(new_run())
        assert await store.due_at(old) == mine.wake_at
        assert [stored.run.run_id for stored in await claimed(store, old, 5)] == [mine.run_id]

    async def test_many_that_stay_parked_do_not_hide_one_that_may_go_on(self, store: Store) -> None:
        worker = await live_worker(store)
        news = [new_run() for _ in range(BEAT_LIMIT + 1)]
        starts = [Pen(new.run_id, epoch=1).change(start=new) for new in news]
        for index, change in enumerate(starts):
            change.move = Move(RunState.NEEDS_CODE, fingerprint="v1" if index == BEAT_LIMIT else "v2")
        assert await store.commit(worker.worker_id, starts) == {}
        await beat(store, await live_worker(store, code={"flow": "v2"}))
        assert (await store.get_run(news[-1].run_id)).state is RunState.WAITING
        assert await store.count_runs(RunFilter(states=(RunState.NEEDS_CODE,))) == BEAT_LIMIT

    async def test_a_poisoned_run_is_not_revived_by_other_code(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.POISONED, reason="kills"))
        await beat(store, await live_worker(store, code={"flow": "v2"}))
        assert (await store.get_run(pen.run_id)).state is RunState.POISONED

    @pytest.mark.parametrize("state", [RunState.NEEDS_CODE, RunState.POISONED])
    async def test_a_parked_run_can_be_tried_again_by_the_same_code(self, store: Store, state: RunState) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(state, reason="differs", fingerprint="v1"))
        parked = await store.get_run(pen.run_id)
        assert await store.unpark(pen.run_id)
        run = await store.get_run(pen.run_id)
        assert run.wake_at is not None
        assert run.wake_at <= await store.now()
        parked.state, parked.wake_at, parked.reason, parked.failed_code = RunState.WAITING, run.wake_at, "", []
        assert run == parked
        stored = await claim_one(store, worker)
        assert (stored.run.run_id, stored.run.head) == (pen.run_id, pen.head)
        assert await Pen.of(stored).write(store, worker) is None

    async def test_a_poisoned_run_that_is_tried_again_has_its_deaths_forgiven(self, store: Store) -> None:
        await store.start(new_run("killer"))
        for _ in range(POISON_DEATHS):
            victim = await live_worker(store)
            await claim_one(store, victim)
            await outlive_lease(store)
            await beat(store, await live_worker(store), reap=True)
        run = await store.get("killer")
        assert (run.state, run.deaths) == (RunState.POISONED, POISON_DEATHS)
        assert await store.unpark(run.run_id)
        assert (await store.get("killer")).deaths == 0
        worker = await live_worker(store)
        other, _ = await store.start(new_run())
        deaths = {stored.run.run_id: stored.run.deaths for stored in await claimed(store, worker, 10)}
        assert deaths == {run.run_id: 0, other.run_id: 0}

    async def test_what_is_not_parked_is_not_unparked(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        pending, _ = await store.start(new_run(delay=9 * SECOND))
        closed = await start_owned(store, worker)
        await closed.write(store, worker, move=Move(RunState.FAILED))
        for run_id in (pen.run_id, pending.run_id, closed.run_id):
            before = await store.get_run(run_id)
            assert not await store.unpark(run_id)
            assert await store.get_run(run_id) == before
        with pytest.raises(UnknownRun):
            await store.unpark(new_run().run_id)

    async def test_a_run_is_unparked_in_its_own_namespace_alone(self, store: Store, make_store: MakeStore) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        with pytest.raises(UnknownRun):
            await (await make_store(namespace="other")).unpark(pen.run_id)
        assert (await store.get_run(pen.run_id)).state is RunState.NEEDS_CODE

    async def test_a_run_that_is_taken_up_again_has_no_old_reason(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.WAITING, await store.now(), "an activity is lacking"))
        assert (await store.get_run(pen.run_id)).reason == "an activity is lacking"
        stored = await claim_one(store, worker)
        assert stored.run == await store.get_run(pen.run_id)
        assert stored.run.reason == ""
        await Pen.of(stored).write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason="differs", fingerprint="v1"))
        await beat(store, await live_worker(store, code={"flow": "v2"}))
        revived = await store.get_run(pen.run_id)
        assert (revived.state, revived.reason) == (RunState.WAITING, "")

    async def test_a_run_can_be_parked_with_its_entries(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run())
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, 2, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        assert (await store.get_run(pen.run_id)).head == 1
        assert len(await store.journal(pen.run_id)) == 2

    async def test_code_is_compared_for_the_code_that_a_run_needs(self, store: Store) -> None:
        worker = await live_worker(store, code={"flow": "v1", "flow@2": "v2"})
        pen = await start_owned(store, worker, code="flow@2")
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, fingerprint="v2"))
        await beat(store, worker)
        assert (await store.get_run(pen.run_id)).state is RunState.NEEDS_CODE
        other = await live_worker(store, code={"flow": "v1", "flow@2": "v3"})
        await beat(store, other)
        assert await claimed(store, worker, 10) == []
        assert (await claim_one(store, other)).run.run_id == pen.run_id
