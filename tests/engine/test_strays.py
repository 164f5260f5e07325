"""Runs that the store says are this worker's, and that it does not have: they are read once at a time."""

import asyncio
from copy import deepcopy

from batuta import activity, workflow
from batuta.ids import RunId
from batuta.journal.records import Pulse, Tape
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

    async def load(self, run_id: RunId) -> Tape:
        tape = deepcopy(await self._load(run_id))
        self.gates.append(asyncio.Event())
        await self.gates[-1].wait()
        return tape


async def test_a_tape_that_comes_late_does_not_bring_back_what_has_ended_meanwhile() -> None:
    begun.clear()
    async with world(works, act) as env:
        handle = await env.start(works)
        await env.settle()
        session = env.worker.session
        assert session is not None
        run = session.runs[handle.run_id]
        asyncio.get_running_loop().call_soon(run.drop)  # as after a claim whose reply was lost
        await env.settle()
        reads = SlowReads(env)
        pulse = Pulse(now=session.clock.now(), alive=True, owned={run.run_id: run.epoch})
        for _ in range(3):
            session._strays.reconcile(pulse)
            await env.settle()
        reads.gates[0].set()
        await env.advance(10)
        assert await handle.result() == "done"
        for gate in reads.gates:
            gate.set()
        await env.advance(10)
        assert begun == ["act", "act"]  # once more, since its first call was dropped
