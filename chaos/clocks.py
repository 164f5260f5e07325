"""Clocks that are wrong, and clocks that are set."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import chain

from chaos.case import HEARTBEAT_S, LEASE_S, Case
from chaos.outages import load
from chaos.places import StoreKind
from chaos.process import WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish

SKEWS_S = (-300.0, 0.0, 300.0)
HOUR_S = 3_600.0
STEPS_S = ((HOUR_S,), (-HOUR_S,), (-HOUR_S, HOUR_S), (HOUR_S, -HOUR_S))
"""Forward, all leases are over at once. Back, all that is written lies in the future."""
PATIENCE_S = 60.0
REST_S = 2.0


async def skewed(stage: Stage, kind: StoreKind, tally: Tally) -> None:
    """Workers whose wall clocks differ by minutes take over from each other."""
    case = Case(f"{kind}-skew", await stage.places.fresh(kind), stage.crew)
    async with case:
        loads = [load(f"s{number}", 9) for number in range(len(SKEWS_S))]
        workers = [case.worker(begin=begin, skew=skew) for begin, skew in zip(loads, SKEWS_S, strict=True)]
        for worker in workers:
            await worker.ready()
        await asyncio.sleep(0.6)
        dead = workers.pop(stage.chance.randrange(len(workers)))
        dead.kill()
        tally.kills += 1
        workers.append(case.worker(begin=dead.job.begin, skew=SKEWS_S[0]))
        await case.settled([begin.id for begin in chain(*loads)], seconds=PATIENCE_S)
        for worker in workers:
            await worker.stop()
        await finish(case, tally)


async def stepped(stage: Stage, kind: StoreKind, steps: Sequence[float], tally: Tally) -> None:
    """The store's clock is set by an hour for everybody, in the middle of work, once or more often."""
    case = Case(f"{kind}-step-{'-'.join(f'{step:g}' for step in steps)}", await stage.places.fresh(kind), stage.crew)
    async with case:
        loads = [load(f"j{number}", 9) for number in range(2)]
        workers = [case.worker(begin=begin) for begin in loads]
        ids = [begin.id for begin in chain(*loads)]
        for worker in workers:
            await worker.ready()
        await asyncio.sleep(LEASE_S)
        for number, step in enumerate(steps):
            for worker in workers:
                worker.set_clock(step)
            case.store.shift_clock(step)
            for one in range(3):  # what begins before anybody has noticed, and a little later
                ids.append(f"after-{number}-{one}")
                await case.start("order", ids[-1], ids[-1])
                await asyncio.sleep(HEARTBEAT_S / 2)
        await case.settled(ids, seconds=PATIENCE_S)
        await _rest(case, workers, tally)
        for worker in workers:
            code = await worker.stop()
            if code != 0:
                tally.violate(case.name, f"a worker did not survive the step: {code}\n{worker.log()}")
        if again := case.account.executed_again().total():
            tally.violate(case.name, f"nobody was killed, and {again} activities were executed again")
        await finish(case, tally, one_clock=False)


async def _rest(case: Case, workers: Sequence[WorkerProcess], tally: Tally) -> None:
    """There is nothing left to do: a worker that is busy all the same spins."""
    before = [worker.cpu_seconds() for worker in workers]
    await asyncio.sleep(REST_S)
    for worker, used in zip(workers, before, strict=True):
        if (spent := worker.cpu_seconds() - used) > REST_S / 2:
            tally.violate(case.name, f"an idle worker spent {spent:.1f} of {REST_S:g} s:\n{worker.log()}")
