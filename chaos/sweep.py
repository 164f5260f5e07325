"""Kill a worker at every failpoint it passes; another takes over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from batuta.failpoints import SITES
from batuta.ids import RunId
from chaos.case import PATIENCE_S, Case, reference_begin, reference_tail
from chaos.checker import read_journals
from chaos.journals import Journal
from chaos.places import StoreKind
from chaos.process import TooSlow, WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish

QUEUED, ORPHAN = "queued", "orphan"
FOUND = [QUEUED, ORPHAN]
CANCEL = ["held"]

Point = tuple[str, int]


def ids() -> list[str]:
    return [*FOUND, *(begin.id for begin in reference_begin())]


async def prepare(case: Case) -> None:
    """Work that a worker finds: a run in the queue, and one whose owner is gone."""
    await case.leave_orphan(ORPHAN)
    await case.start("order", QUEUED, QUEUED)


def victim(case: Case, under: Sequence[str] = (), **env: str) -> WorkerProcess:
    """A worker that meets everything, and leaves by itself. It does not leave before it took over the orphan."""
    job = {"begin": reference_begin(), "cancel": CANCEL, "found": FOUND, "tail": reference_tail(), "leave": True}
    return case.worker(env, under=under, **job)


def successor(case: Case) -> WorkerProcess:
    """Another worker; its client starts the same runs again, as a caller without an answer would."""
    return case.worker(begin=reference_begin())


# -- which points there are


async def count_points(stage: Stage, kind: StoreKind, tally: Tally) -> Counter[str]:
    """How often each site is passed when nothing goes wrong."""
    name = f"{kind}-dry-{tally.scenario.split()[0]}"  # each sweep counts for itself
    case = Case(name, await stage.places.fresh(kind), stage.crew)
    counts = stage.crew.directory / f"{name}.counts"
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
        raise TooSlow(f"a worker that nobody disturbed ended with {code}:\n{process.log()}")


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
            tally.unreached[site] += 1
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
