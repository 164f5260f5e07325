"""Runs that only one of the two has, the store for this worker's or the worker in memory."""

import asyncio
from copy import deepcopy

from batuta import activity, workflow
from batuta.ids import RunId
from batuta.journal.records import Pulse, StoredRun
from batuta.testing import Environment
from tests.engine.kit import world

begun: list[str] = []


@activity
async def act() -> str:
    begun.append("act")
    await asyncio.sleep(5)
    return "done"


@workflow
async def works() -> str:
    return await act()


class SlowReads:
    """Each tape is read at once, and comes when it is let through."""

    def __init__(self, env: Environment) -> None:
        self._load = env.store.load
        env.store.load = self.load  # type: ignore[method-assign]
        self.gates: list[asyncio.Event] = []

    async def load(self, run_id: RunId) -> StoredRun:
        journal_of = deepcopy(await self._load(run_id))
        self.gates.append(asyncio.Event())
        await self.gates[-1].wait()
        return journal_of


async def test_a_tape_that_comes_late_does_not_bring_back_what_has_ended_meanwhile() -> None:
    begun.clear()
    async with world(works, act) as env:
        handle = await env.start(works)
        await env.settle()
        session = env.worker.session
        assert session is not None
        run = session.runs[handle.run_id.int]
        asyncio.get_running_loop().call_soon(run.drop)  # as after a claim whose reply was lost
        await env.settle()
        reads = SlowReads(env)
        pulse = Pulse(now=session.clock.now(), alive=True, owned={run.run_id: run.epoch})
        for _ in range(3):
            session._reconciler.reconcile(pulse, session.clock.monotonic())
            await env.settle()
        reads.gates[0].set()
        await env.advance(10)
        assert await handle.result() == "done"
        for gate in reads.gates:
            gate.set()
        await env.advance(10)
        assert begun == ["act", "act"]  # once more, since its first call was dropped


async def test_pulses_that_are_older_than_a_start_do_not_take_the_run_away() -> None:
    """As after a pause of the event loop, in which the heartbeat's thread went on."""
    begun.clear()
    async with world(works, act) as env:
        session = env.worker.session
        assert session is not None
        before, pulse = session.clock.monotonic(), Pulse(now=session.clock.now(), alive=True)
        await env.advance(0.1)
        handle = await env.start(works)
        await env.settle()
        for late in (0.0, 0.01, 0.02):
            session._reconciler.reconcile(pulse, before + late)
        assert handle.run_id.int in session.runs
        await env.advance(10)
        assert await handle.result() == "done"
        assert begun == ["act"]


async def test_a_run_that_is_missing_in_a_pulse_asked_for_after_another_is_dropped() -> None:
    async with world(works, act) as env:
        session = env.worker.session
        assert session is not None
        handle = await env.start(works)
        await env.settle()
        pulse = Pulse(now=session.clock.now(), alive=True)
        session._reconciler.reconcile(pulse, session.clock.monotonic())
        assert handle.run_id.int in session.runs
        session._reconciler.reconcile(pulse, session.clock.monotonic() + 0.01)
        assert handle.run_id.int not in session.runs


async def test_a_run_that_the_store_has_with_another_epoch_is_dropped() -> None:
    """As when the database was restored from before the claim, and the worker has claimed the run anew."""
    async with world(works, act) as env:
        session = env.worker.session
        assert session is not None
        handle = await env.start(works)
        await env.settle()
        run = session.runs[handle.run_id.int]
        pulse = Pulse(now=session.clock.now(), alive=True, owned={run.run_id: run.epoch - 1})
        session._reconciler.reconcile(pulse, session.clock.monotonic())
        assert session.runs.get(handle.run_id.int) is run
        session._reconciler.reconcile(pulse, session.clock.monotonic() + 0.01)
        assert session.runs.get(handle.run_id.int) is not run
