"""What all scenarios stand on, and how every case ends."""

from __future__ import annotations

import asyncio
import itertools
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct, field

from batuta.errors import RunClosed
from batuta.journal.records import Message, MessageKind, RunFilter
from batuta.journal.states import CLOSED, RunState
from batuta.verify import verify as audit
from chaos import talks
from chaos.case import Case
from chaos.checker import Checker, read_journals
from chaos.places import Places
from chaos.process import Crew
from chaos.report import Tally

LATE = 12
"""Closed runs of a case that are sent a message."""


class Stage(Struct):
    """Processes, places, and how much of everything."""

    crew: Crew
    places: Places
    jobs: int = 4
    """Cases at once."""
    long: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def folder(self, name: str) -> Path:
        """A new one beside the logs."""
        made = self.crew.directory / f"{name}-{self.number()}"
        made.mkdir()
        return made

    def number(self) -> int:
        return int(next(self._numbers))


async def finish(
    case: Case,
    tally: Tally,
    *,
    parked: frozenset[str] = frozenset(),
    one_clock: bool = True,
    exact: bool = True,
    deaths: int = 0,
) -> None:
    """Check the case against its ledger, then let `verify` look at the store. `deaths`: times that something else took
    runs from their workers, beside kills and stops."""
    tally.cases += 1
    deaths += sum(process.deaths for process in case.processes)
    if storms := case.account.storms(deaths):
        tally.storms += len(storms)
        tally.violate(case.name, f"executed more often than attempts and {deaths} deaths allow: {storms}")
    await _refuse_the_late(case, tally)
    Checker(case, tally, await read_journals(case)).check(parked=parked, one_clock=one_clock, exact=exact)
    complaints = await verify(case)
    if complaints:
        tally.unverified += 1
        tally.violate(case.name, f"verify: {complaints[:3]}")
    else:
        tally.verified += 1


async def _refuse_the_late(case: Case, tally: Tally) -> None:
    """A closed run takes no message, also by the name of an earlier run of its chain."""
    runs = await case.runs()
    closed = {run.id for run in runs if run.state in CLOSED and run.state is not RunState.CONTINUED}
    for run in [run for run in runs if run.id in closed][:LATE]:
        message = Message(message_id=f"late:{run.run_id}", kind=MessageKind.SIGNAL, name="note", body="0")
        try:
            await case.store.send(run.run_id, message)
            tally.violate(case.name, f"{run.id} is closed, and took a message (run {run.run_id})")
        except RunClosed:
            tally.refused += 1


async def poisoned(case: Case, tally: Tally) -> frozenset[str]:
    """Runs with which five workers were killed: they look just like one that kills its workers."""
    parked = await case.runs(RunFilter(states=(RunState.POISONED,)))
    if parked:
        tally.note(f"parked as poisoned, since five workers were killed with them: {len(parked)} runs")
    return frozenset(run.id for run in parked)


async def verify(case: Case) -> list[str]:
    """What the store's own check of its invariants says; every run is replayed, too."""
    report = await audit(case.store, talks.ALL)
    return [f"{one.invariant} {one.id}: {one.what}" for one in report.violations]


async def each(stage: Stage, tally: Tally, cases: Sequence[Callable[[], Awaitable[Any]]]) -> None:
    """Run cases, some at a time. One that fails is a violation; the others go on."""
    room = asyncio.Semaphore(stage.jobs)

    async def one(case: Callable[[], Awaitable[Any]]) -> None:
        async with room:
            try:
                await case()
            except Exception as error:  # noqa: BLE001 - one case must not end the campaign
                told = getattr(case, "args", ())[1:-1]
                where = traceback.extract_tb(error.__traceback__)[-1]
                tally.violate(f"{told}", f"{type(error).__name__} at {where.filename}:{where.lineno}: {error}")

    await asyncio.gather(*(one(case) for case in cases))
