"""What all scenarios stand on, and how every case ends."""

from __future__ import annotations

import asyncio
import itertools
import random
import traceback
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import Struct, field

from batuta.verify import verify as audit
from chaos import flows
from chaos.case import Case
from chaos.checker import Checker, read_journals
from chaos.places import Places
from chaos.process import Crew
from chaos.report import Tally


class Stage(Struct):
    """Processes, places, and how much of everything."""

    crew: Crew
    places: Places
    jobs: int = 4
    """Cases at once."""
    long: bool = False
    chance: random.Random = field(default_factory=lambda: random.Random(1))
    _numbers: Any = field(default_factory=lambda: itertools.count(1))

    def number(self) -> int:
        return int(next(self._numbers))


async def finish(case: Case, tally: Tally, *, parked: frozenset[str] = frozenset(), one_clock: bool = True) -> None:
    """Check the case against its ledger, then let `verify` look at the store."""
    tally.cases += 1
    Checker(case, tally, await read_journals(case)).check(parked=parked, one_clock=one_clock)
    complaints = await verify(case)
    if complaints:
        tally.unverified += 1
        tally.violate(case.name, f"verify: {complaints[:3]}")
    else:
        tally.verified += 1


async def verify(case: Case) -> list[str]:
    """What the store's own check of its invariants says; every run is replayed, too."""
    report = await audit(case.store, flows.ALL)
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
