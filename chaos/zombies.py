"""Workers that were stopped, replaced, and woken up: whatever they still do is refused."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from batuta.authoring.client.handle import Handle
from batuta.journal.states import CLOSED
from chaos.calls import Begin
from chaos.case import LEASE_S, PATIENCE_S, Case
from chaos.checker import read_journals
from chaos.places import StoreKind
from chaos.process import WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish
from chaos.sweep import CANCEL, Point, ids, prepare, successor, victim

HELD_TRIES = 6

EXEMPT: dict[StoreKind, frozenset[str]] = {"sqlite": frozenset({"commit.inside"}), "postgres": frozenset()}
"""A process stopped here is inside a write and holds the SQLite file: nobody can take over until it goes on."""

BEFORE_A_WRITE = ("turn.after", "commit.queued", "commit.before", "activity.after", "timer.fired")


async def stop_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> None:
    """Stop a worker at this point past its lease; another one finishes everything; the first wakes up."""
    site, first = point
    if site in EXEMPT[kind]:
        tally.note(f"exempt, since a process stopped there holds the file: {site}")
        return
    for number in range(HELD_TRIES):  # each passage twice: what is passed once may not be held the next time
        if await _stop_at(stage, kind, (site, first + number // 2), tally):
            return
    tally.note(f"{HELD_TRIES} times stopped at {site}, another thread was inside a write and held the file")


async def _stop_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> bool:
    """False when the stopped process held the SQLite file."""
    site, nth = point
    case = Case(f"{kind}-stop-{site}-{nth}-{stage.number()}", await stage.places.fresh(kind), stage.crew)
    async with case:
        await prepare(case)
        zombie = victim(case, BATUTA_FAILPOINT=f"{site}:{nth}:stop")
        if not await zombie.stopped_or_ended(PATIENCE_S):
            tally.unreached[site] += 1
            return True
        if case.place.is_held():
            zombie.kill()
            return False
        after = successor(case)
        await case.settled(ids(), CANCEL)
        await wake(case, zombie, tally)
        await case.settled(ids(), CANCEL)
        await after.stop()
        await finish(case, tally)
    return True


async def wake(case: Case, zombie: WorkerProcess, tally: Tally, *, lease_over: bool = True) -> None:
    """Let a zombie go on until it leaves by itself: it changes nothing of what others have ended, and begins none of
    their activities once its lease is over."""
    before = {run_id: journal for run_id, journal in (await read_journals(case)).items() if journal.run.state in CLOSED}
    woken = time.time()
    zombie.go_on()
    tally.zombies += 1
    code = await zombie.ended(PATIENCE_S)
    if code != 0:
        tally.violate(case.name, f"the zombie ended with {code}:\n{zombie.log()}")
    after = await read_journals(case)
    for run_id, journal in before.items():
        if after[run_id].entries != journal.entries or after[run_id].run != journal.run:
            tally.violate(case.name, f"{journal.run.id} changed when the zombie woke up")
    known = {journal.key_base for journal in before.values() if lease_over}
    begun = [r.key for r in case.account.effects("begin") if r.at > woken and r.pid == zombie.pid]
    if late := [key for key in begun if key.split(":")[0] in known]:
        tally.violate(case.name, f"the zombie began {late} after its lease")


async def terminated_meanwhile(stage: Stage, kind: StoreKind, site: str, tally: Tally) -> None:
    """A run is terminated while its owner is stopped before a write: nothing follows the termination."""
    for nth in range(3, 3 + HELD_TRIES):
        case = Case(f"{kind}-terminated-{site}-{nth}", await stage.places.fresh(kind), stage.crew)
        async with case:
            owner = case.worker({"BATUTA_FAILPOINT": f"{site}:{nth}:stop"}, begin=_ticks(), leave=True)
            if not await owner.stopped_or_ended(PATIENCE_S):
                tally.unreached[site] += 1
                return
            if case.place.is_held():
                owner.kill()
                continue
            for begin in _ticks():
                await _terminate(case, begin.id)
            await wake(case, owner, tally, lease_over=False)
            await finish(case, tally)
            return
    tally.note(f"{HELD_TRIES} times stopped at {site}, another thread was inside a write and held the file")


def _ticks() -> list[Begin]:
    """Runs that are always about to write something."""
    return [Begin("ticks", f"t-{number}", [f"t-{number}"]) for number in range(3)]


async def _terminate(case: Case, id: str) -> None:
    try:
        handle: Handle[Any] = await case.client.get(id)
    except LookupError:
        return  # its start was not written yet; then its worker starts it, and it goes on
    await handle.terminate("chaos")


async def stopped_before_a_retry(stage: Stage, kind: StoreKind, tally: Tally) -> None:
    """A worker is stopped while a retry waits; another one makes it; the first wakes up when it is long due."""
    for number in range(HELD_TRIES):
        case = Case(f"{kind}-retry-{number}", await stage.places.fresh(kind), stage.crew)
        async with case:
            runs = [Begin("patience", f"p-{n}", [f"p-{n}"]) for n in range(5)]
            owner = case.worker(begin=runs, leave=True)
            await case.until_recorded("fail", len(runs))
            await asyncio.sleep(0.1)
            owner.pause()
            if case.place.is_held():
                owner.kill()
                continue
            await asyncio.sleep(LEASE_S)
            after = case.worker()
            await case.settled([begin.id for begin in runs])
            await wake(case, owner, tally)
            await after.stop()
            await finish(case, tally)
            return
