"""Old and new workers side by side: draining, killed while draining, with other code, with a run that kills."""

from __future__ import annotations

import asyncio
import time

from batuta.journal.records import RunFilter
from batuta.journal.states import OPEN, RunState
from chaos.calls import Begin
from chaos.case import Case
from chaos.places import StoreKind
from chaos.process import TooSlow, WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish

RUNS, STEPS, STEP_S = 30, 15, 0.1
PATIENCE_S = 100.0
DRAIN_S = 5.0
"""Much less than the grace and than what a run has left to do: only the activity in flight is waited for."""


def _begin(name: str, count: int) -> list[Begin]:
    return [Begin("steps", f"{name}-{n}", [f"{name}-{n}", STEPS, STEP_S]) for n in range(count)]


async def drained(stage: Stage, kind: StoreKind, tally: Tally) -> None:
    """A worker is told to stop under load while the next one starts: nothing is executed twice."""
    case = Case(f"{kind}-drained", await stage.places.fresh(kind), stage.crew)
    async with case:
        begin = _begin("d", RUNS)
        old = case.worker(begin=begin)
        await case.until_recorded("begin", RUNS * 3)
        new = case.worker()
        await new.ready()
        asked = time.monotonic()
        code = await old.stop()
        took = time.monotonic() - asked
        if code != 0 or took > DRAIN_S:
            tally.violate(case.name, f"the drained worker ended with {code} after {took:.1f} s")
        await case.settled([b.id for b in begin], seconds=PATIENCE_S)
        await new.stop()
        await finish(case, tally)
        if again := case.account.executed_again():
            tally.violate(case.name, f"drained in time, yet {again.total()} activities were executed again")


async def killed_while_draining(stage: Stage, kind: StoreKind, tally: Tally) -> None:
    """A worker is told to stop, another one starts, and the first is killed before it is done."""
    case = Case(f"{kind}-killed-draining", await stage.places.fresh(kind), stage.crew)
    async with case:
        begin = _begin("k", RUNS)
        begin += [Begin("steps", f"slow-{n}", [f"slow-{n}", 2, 2.0]) for n in range(5)]
        old = case.worker(begin=begin)
        await case.until_recorded("begin", RUNS * 3)
        new = case.worker()
        old.terminate()
        await new.ready()
        await asyncio.sleep(stage.chance.uniform(0.0, 0.4))
        old.kill()
        tally.kills += 1
        await case.settled([b.id for b in begin], seconds=PATIENCE_S)
        await new.stop()
        await finish(case, tally)


async def changed_code(stage: Stage, kind: StoreKind, tally: Tally) -> None:
    """Code that does not replay parks what it claims; the right code goes on by itself."""
    case = Case(f"{kind}-changed", await stage.places.fresh(kind), stage.crew)
    async with case:
        parked = [f"c-{n}" for n in range(4)]
        begin = [Begin("waits", id, [id, 1.5]) for id in parked]
        begin.append(Begin("steps", "same", ["same", 8, 0.2]))
        old = case.worker(begin=begin)
        await case.until_recorded("begin", len(begin) + 1)
        await old.stop()
        new = case.worker(code="changed")
        await _until_parked(case, len(parked))
        await new.stop()
        if begun := [r.key for r in case.account.effects("begin") if r.pid == new.pid and r.run in parked]:
            tally.violate(case.name, f"the changed code began {begun} of runs that it does not replay")
        right = case.worker()
        await case.settled([b.id for b in begin], seconds=PATIENCE_S, states=tuple(sorted(OPEN)))
        await right.stop()
        await finish(case, tally)


async def _until_parked(case: Case, count: int) -> None:
    deadline = time.monotonic() + 20
    while True:
        parked = await case.runs(RunFilter(states=(RunState.NEEDS_CODE,)))
        if len(parked) == count and all(run.reason and run.failed_code for run in parked):
            return
        if time.monotonic() > deadline:
            raise TooSlow(f"{len(parked)} of {count} runs are parked: {await case.runs()}")
        await asyncio.sleep(0.05)


async def poison(stage: Stage, kind: StoreKind, tally: Tally) -> None:
    """A run that kills every worker is parked after five deaths, and all others finish."""
    case = Case(f"{kind}-poison", await stage.places.fresh(kind), stage.crew)
    async with case:
        healthy = _begin("h", 20) + [Begin("order", f"o-{n}", [f"o-{n}"]) for n in range(5)]
        await case.start("poison", "bad", "bad")
        for begin in healthy:
            await case.start(begin.workflow, begin.id, *begin.args)
        workers: list[WorkerProcess] = []
        await asyncio.gather(
            case.settled(["bad", *(b.id for b in healthy)], seconds=PATIENCE_S), _supervise(case, workers, tally)
        )
        for worker in workers:
            worker.kill()
        run = await case.store.get("bad")
        if (run.state, run.deaths) != (RunState.POISONED, 5):
            tally.violate(case.name, f"the poison run is {run.state} after {run.deaths} deaths")
        await finish(case, tally, parked=frozenset({"bad"}))


async def _supervise(case: Case, workers: list[WorkerProcess], tally: Tally) -> None:
    """Start a worker whenever one died, until everything has ended."""
    deadline = time.monotonic() + PATIENCE_S
    workers += [case.worker(), case.worker()]
    while time.monotonic() < deadline:
        for place, worker in enumerate(workers):
            if worker.code is not None:
                tally.kills += 1
                workers[place] = case.worker()
        open_states = (RunState.PENDING, RunState.RUNNING, RunState.WAITING)
        if not await case.store.count_runs(RunFilter(states=open_states)):
            return
        await asyncio.sleep(0.05)
