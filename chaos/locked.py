"""Somebody holds rows of runs in open transactions, while workers work."""

from __future__ import annotations

import asyncio
import time

import asyncpg

from batuta.journal.records import RunFilter
from chaos.case import UNFINISHED, Case
from chaos.outages import PATIENCE_S, all_alive, crew_at_work
from chaos.report import Tally
from chaos.stage import Stage, finish

_HOLD = """
    SELECT run_id FROM batuta.runs WHERE namespace = $1 AND closed_at IS NULL AND id <> $2
    ORDER BY random() LIMIT $3 FOR UPDATE SKIP LOCKED
"""


async def rows(stage: Stage, tally: Tally) -> None:
    """One row is held for as long as anything else goes on, and others for up to two seconds, several at a time."""
    seconds, runs = (30.0, 600) if stage.long else (5.0, 90)
    async with Case("locked", await stage.places.fresh("postgres"), stage.crew) as case:
        await case.start("steps", "held", "held", 3, 0.05)
        connection = await asyncpg.connect(case.place.url)
        try:
            async with connection.transaction():
                await connection.execute("SELECT FROM batuta.runs WHERE id = 'held' FOR UPDATE")
                workers, ids = await crew_at_work(case, runs)
                holds = await _hold_others(case, stage, seconds)
                await _others_end(case)
        finally:
            await connection.close()
        await case.settled([*ids, "held"], seconds=PATIENCE_S)
        await all_alive(case, workers, tally)
        tally.note(f"{holds} rows were held for up to two seconds, and one until all other runs had ended")
        await finish(case, tally)


async def _hold_others(case: Case, stage: Stage, seconds: float) -> int:
    """Hold rows of random runs for a while, again and again. How many it were."""
    end, count = time.monotonic() + seconds, 0

    async def hold() -> None:
        nonlocal count
        connection = await asyncpg.connect(case.place.url)
        try:
            while time.monotonic() < end:
                async with connection.transaction():
                    found = await connection.fetch(_HOLD, case.place.namespace, "held", stage.chance.randint(1, 5))
                    count += len(found)
                    await asyncio.sleep(stage.chance.uniform(0.05, 2.0))
                await asyncio.sleep(stage.chance.uniform(0.0, 0.1))
        finally:
            await connection.close()

    await asyncio.gather(*(hold() for _ in range(3)))
    return count


async def _others_end(case: Case) -> None:
    """Wait until nothing is open but the run whose row is held."""
    async with asyncio.timeout(PATIENCE_S):
        while await case.store.count_runs(RunFilter(states=UNFINISHED)) > 1:
            await asyncio.sleep(0.05)
