"""Kill, or stop, a worker at every failpoint it passes; another takes over."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from batuta.failpoints import SITES
from batuta.ids import RunId
from chaos.case import PATIENCE_S, Case, reference_begin, reference_tail
from chaos.checker import Journal, read_journals
from chaos.places import StoreKind
from chaos.process import TooSlow, WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish

QUEUED, ORPHAN = "queued", "orphan"
CANCEL = ["held"]
HELD_TRIES = 6

EXEMPT: dict[StoreKind, frozenset[str]] = {
    "sqlite": frozenset({"commit.inside"}),
    "postgres": frozenset(),
}
"""A process stopped here is inside a write and holds the SQLite file: nobody can take over until it goes on."""

DECIDED = frozenset({"activity.before"})
"""Stopped between the look at its lease and the call: fencing cannot take the call back, its key can."""

Point = tuple[str, int]


def ids() -> list[str]:
    return [QUEUED, ORPHAN, *(begin.id for begin in reference_begin())]


async def prepare(case: Case) -> None:
    """Work that a worker finds: a run in the queue, and one whose owner is gone."""
    await case.leave_orphan(ORPHAN)
    await case.start("order", QUEUED, QUEUED)


def victim(case: Case, **env: str) -> WorkerProcess:
    return case.worker(env, begin=reference_begin(), cancel=CANCEL, tail=reference_tail(), leave=True)


def successor(case: Case) -> WorkerProcess:
    """Another worker; its client starts the same runs again, as a caller without an answer would."""
    return case.worker(begin=reference_begin())


# -- which points there are


async def count_points(stage: Stage, kind: StoreKind, tally: Tally) -> Counter[str]:
    """How often each site is passed when nothing goes wrong."""
    case = Case(f"{kind}-dry", await stage.places.fresh(kind), stage.crew)
    counts = stage.crew.directory / f"{kind}-dry.counts"
    async with case:
        await prepare(case)
        await _ended_well(victim(case, BATUTA_FAILPOINT_COUNTS=str(counts)))
        after = successor(case)
        await case.settled(ids(), CANCEL)
        await after.stop()
        await finish(case, tally)
        if again := case.account.executed_again():
            tally.violate(case.name, f"executed again although nothing went wrong: {dict(again)}")
    return Counter(counts.read_text().split())


async def _ended_well(process: WorkerProcess) -> None:
    code = await process.ended(PATIENCE_S)
    if code != 0:
        raise TooSlow(f"a worker that nobody disturbed ended with {code}:\n{process.log()[-3000:]}")


def points(counts: Counter[str], most: int | None) -> list[Point]:
    """Every site with every occurrence, up to `most` of each, spread over the run."""
    chosen: list[Point] = []
    for site in SITES:
        times = range(1, counts[site] + 1)
        if most is not None and len(times) > most:
            times = range(1, counts[site], max(1, counts[site] // most))[:most]
        chosen += [(site, nth) for nth in times]
    return chosen


# -- kill


async def kill_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> None:
    """Kill a worker at this point; another one must finish everything."""
    site, nth = point
    case = Case(f"{kind}-kill-{site}-{nth}", await stage.places.fresh(kind), stage.crew)
    async with case:
        await prepare(case)
        code = await victim(case, BATUTA_FAILPOINT=f"{site}:{nth}:kill").ended(PATIENCE_S)
        if code == 0:
            tally.note(f"{kind}: {site} was passed fewer than {nth} times this time")
        elif code != -9:
            tally.violate(case.name, f"the victim ended with {code}")
        tally.kills += code == -9
        durable = await read_journals(case)
        mark = len(case.account.records)
        after = successor(case)
        await case.settled([*ids()], CANCEL)
        await after.stop()
        await finish(case, tally)
        _nothing_durable_again(case, tally, durable, mark)


def _nothing_durable_again(case: Case, tally: Tally, durable: dict[RunId, Journal], mark: int) -> None:
    """What had its answer when the worker died is not begun again."""
    answered = {key for journal in durable.values() for key in journal.answers()}
    for record in case.account.records[mark:]:
        if record.what == "begin" and record.key in answered:
            tally.violate(case.name, f"{record.key} was durable at the kill, and was begun again")


# -- stop


async def stop_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> None:
    """Stop a worker at this point past its lease; another one finishes everything; the first wakes up."""
    site, first = point
    if site in EXEMPT[kind]:
        tally.note(f"{kind}: exempt, stopped there a process holds the file: {site}")
        return
    for nth in range(first, first + HELD_TRIES):
        if await _stop_at(stage, kind, (site, nth), tally):
            return
    tally.note(f"{kind}: {HELD_TRIES} times stopped at {site}, another thread was inside a write and held the file")


async def _stop_at(stage: Stage, kind: StoreKind, point: Point, tally: Tally) -> bool:
    """False when the stopped process held the SQLite file."""
    site, nth = point
    place = await stage.places.fresh(kind)
    case = Case(f"{kind}-stop-{site}-{nth}-{place.namespace}-{stage.number()}", place, stage.crew)
    async with case:
        await prepare(case)
        zombie = victim(case, BATUTA_FAILPOINT=f"{site}:{nth}:stop")
        if not await zombie.stopped_or_ended(PATIENCE_S):
            tally.note(f"{kind}: {site} was passed fewer than {nth} times this time")
            return True
        if place.is_held():
            zombie.kill()
            return False
        after = successor(case)
        await case.settled(ids(), CANCEL)
        await wake(case, zombie, tally, may_begin=site in DECIDED)
        await case.settled(ids(), CANCEL)
        await after.stop()
        await finish(case, tally)
    return True


async def wake(case: Case, zombie: WorkerProcess, tally: Tally, *, may_begin: bool) -> None:
    """Let a zombie go on: whatever it does to the runs that others have ended is refused."""
    before = await read_journals(case)
    woken = time.time()
    zombie.go_on()
    tally.zombies += 1
    code = await zombie.ended(PATIENCE_S)
    if code != 0:
        tally.violate(case.name, f"the zombie ended with {code}:\n{zombie.log()[-1500:]}")
    after = await read_journals(case)
    for run_id, journal in before.items():
        if after[run_id].entries != journal.entries or after[run_id].run != journal.run:
            tally.violate(case.name, f"{journal.run.id} changed when the zombie woke up")
    known = {journal.key_base for journal in before.values()}
    begun = [r for r in case.account.effects("begin") if r.at > woken and r.pid == zombie.pid]
    late = [record for record in begun if record.key.split(":")[0] in known]
    if late and not may_begin:
        tally.violate(case.name, f"the zombie began {[record.key for record in late]} after its lease")


# -- many at once


async def each(stage: Stage, tally: Tally, name: str, cases: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Run cases, some at a time. One that fails is a violation; the others go on."""
    places = asyncio.Semaphore(stage.jobs)

    async def one(number: int, case: Callable[[], Awaitable[Any]]) -> None:
        async with places:
            try:
                await case()
            except Exception as error:
                tally.violate(f"{name} {number}", f"{type(error).__name__}: {error}")

    await asyncio.gather(*(one(number, case) for number, case in enumerate(cases)))


