"""Clocks that are wrong, and clocks that jump."""

from __future__ import annotations

import asyncio
from itertools import chain

from chaos.case import LEASE_S, Case
from chaos.outages import load
from chaos.places import StoreKind
from chaos.report import Tally
from chaos.stage import Stage, finish

SKEWS_S = (-300.0, 0.0, 300.0)
FORWARD_S, BACK_S = 600.0, -2.0
"""Forward, all leases are over at once. Back, timers come later by as much: kept short for the test's sake."""
PATIENCE_S = 60.0


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


async def jumped(stage: Stage, kind: StoreKind, seconds: float, tally: Tally) -> None:
    """The store's clock jumps for everybody, in the middle of work."""
    case = Case(f"{kind}-jump-{seconds:g}", await stage.places.fresh(kind), stage.crew)
    async with case:
        loads = [load(f"j{number}", 9) for number in range(2)]
        workers = [case.worker(begin=begin, jump=seconds) for begin in loads]
        for worker in workers:
            await worker.ready()
        await asyncio.sleep(LEASE_S)
        for worker in workers:
            worker.jump()
        case.store.shift_clock(seconds)
        await case.settled([begin.id for begin in chain(*loads)], seconds=PATIENCE_S)
        for worker in workers:
            code = await worker.stop()
            if code != 0:
                tally.violate(case.name, f"a worker did not survive the jump: {code}\n{worker.log()}")
        await finish(case, tally, one_clock=False)
