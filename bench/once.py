"""W1 for transactional activities: what a step costs that writes a row in one commit with its result, against a plain
activity that writes nothing.

Both in one process, in short blocks in turns, each kind first in every other pair. Two blocks that follow each other
see the same disk, and the figure is the median over such pairs: a sum would be that of the few blocks in which the
disk was slow, which says little about either.
"""

import sqlite3
import statistics
import time
from contextlib import closing
from typing import Any, Final

import asyncpg

from batuta import Activity, activity, connect, transaction, workflow
from bench.batuta_run import WARM_UP_STEPS, outcome
from bench.batuta_run import step as plain
from bench.child import Figures, Task, repeat

BLOCK: Final = 25
"""Steps of one kind before those of the other come."""
TABLE: Final = "CREATE TABLE IF NOT EXISTS written (number INTEGER)"


@activity(name="write", transactional=True)
async def write_on_postgres(number: int) -> int:
    await transaction().connection.execute("INSERT INTO written VALUES ($1)", number)
    return number + 1


@activity(name="write", transactional=True)
def write_on_sqlite(number: int) -> int:
    transaction().connection.execute("INSERT INTO written VALUES (?)", (number,))
    return number + 1


@workflow
async def in_turns(count: int, is_sqlite: bool) -> list[tuple[float, float]]:
    """The seconds that blocks of plain activities took, and of transactional ones, pair by pair."""
    write: Activity[[int], int] = write_on_sqlite if is_sqlite else write_on_postgres
    pairs: list[tuple[float, float]] = []
    for pair in range(count // BLOCK):
        plain_s = written_s = 0.0
        for one in (plain, write) if pair % 2 else (write, plain):
            begun = time.perf_counter()
            for number in range(BLOCK):
                await one(number)
            took = time.perf_counter() - begun
            if one is plain:
                plain_s = took
            else:
                written_s = took
        pairs.append((plain_s, written_s))
    return pairs


async def exactly_once(task: Task) -> Figures:
    """Milliseconds of a transactional step, and over those of a plain one; rows that are missing or too many."""
    is_sqlite = task.url.startswith("sqlite")
    own: Any = write_on_sqlite if is_sqlite else write_on_postgres
    pairs: list[tuple[float, float]] = []
    async with connect(task.url) as batuta, batuta.worker(workflows=[in_turns], activities=[plain, own]):
        await _rows(task.url, TABLE)
        await outcome(batuta, in_turns, WARM_UP_STEPS, is_sqlite)

        async def once() -> None:
            found = await outcome(batuta, in_turns, task.steps, is_sqlite)
            pairs.extend(found)

        await repeat(task.seconds, once)
        rows = await _rows(task.url, "SELECT count(*) FROM written")
    return {
        "ms_per_step": statistics.median(written_s for _, written_s in pairs) * 1000 / BLOCK,
        "over_plain": statistics.median(written_s / plain_s for plain_s, written_s in pairs),
        "not_once": abs(rows - len(pairs) * BLOCK - WARM_UP_STEPS),
    }


async def _rows(url: str, query: str) -> int:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            found = file.execute(query).fetchone()
    else:
        connection = await asyncpg.connect(url)
        found = await connection.fetchrow(query)
        await connection.close()
    return int(found[0]) if found else 0
