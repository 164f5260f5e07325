"""Parked runs: stopped visibly, and taken up again by other code."""

from __future__ import annotations

from batuta.journal.records import Move
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import Pen, beat, claim_one, live_worker, new_run, start_owned


class ParkingConformance:
    """needs_code waits for other code; poisoned waits for a person."""

    async def test_a_parked_run_says_why_and_which_code_failed(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE, reason="differs at 3", fingerprint="v1"))
        run = await store.get_run(pen.run_id)
        assert (run.state, run.owner, run.wake_at, run.epoch) == (RunState.NEEDS_CODE, None, None, 1)
        assert (run.reason, run.failed_code, run.closed_at) == ("differs at 3", ["v1"], None)
        assert await store.claim(worker, 10) == []

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
            await beat(store, await live_worker(store, code={"flow": "v3"}))
            pen = Pen.of(await claim_one(store, worker))
        for code, revived in [("v1", False), ("v2", False), ("v3", True)]:
            await pen.write(store, worker, 0, move=Move(RunState.NEEDS_CODE))
            await beat(store, await live_worker(store, code={"flow": code}))
            assert ((await store.get_run(pen.run_id)).state is RunState.WAITING) is revived

    async def test_a_poisoned_run_is_not_revived_by_other_code(self, store: Store) -> None:
        worker = await live_worker(store)
        pen = await start_owned(store, worker)
        await pen.write(store, worker, 0, move=Move(RunState.POISONED, reason="kills"))
        await beat(store, await live_worker(store, code={"flow": "v2"}))
        assert (await store.get_run(pen.run_id)).state is RunState.POISONED

    async def test_a_run_can_be_parked_with_its_entries(self, store: Store) -> None:
        worker = await live_worker(store)
        await store.start(new_run())
        pen = Pen.of(await claim_one(store, worker))
        await pen.write(store, worker, 2, move=Move(RunState.NEEDS_CODE, fingerprint="v1"))
        assert (await store.get_run(pen.run_id)).head == 1
        assert len(await store.journal(pen.run_id)) == 2
