"""W1 for transactional activities: what a step costs that writes a row in one commit with its result, against a plain
activity that writes nothing. Both in one process, in turns, so that a busy machine harms both."""

import sqlite3
import time
from contextlib import closing
from typing import Any, Final

import asyncpg

from batuta import Activity, activity, connect, transaction, workflow
from bench.batuta_run import WARM_UP_STEPS, outcome
from bench.batuta_run import step as plain
from bench.child import Figures, Task, repeat

SLICE: Final = 100
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
async def in_turns(count: int, is_sqlite: bool) -> tuple[float, float]:
    """The seconds that plain activities took, and transactional ones."""
    write: Activity[[int], int] = write_on_sqlite if is_sqlite else write_on_postgres
    spent = [0.0, 0.0]
    kinds: tuple[Activity[[int], int], ...] = (plain, write)
    for _ in range(count // SLICE):
        for which, one in enumerate(kinds):
            begun = time.perf_counter()
            for number in range(SLICE):
                await one(number)
            spent[which] += time.perf_counter() - begun
    return spent[0], spent[1]


async def exactly_once(task: Task) -> Figures:
    """Milliseconds of a transactional step, and over those of a plain one; rows that are missing or too many."""
    is_sqlite = task.url.startswith("sqlite")
    own: Any = write_on_sqlite if is_sqlite else write_on_postgres
    plain_s = written_s = steps = 0.0
    async with connect(task.url) as batuta, batuta.worker(workflows=[in_turns], activities=[plain, own]):
        await _rows(task.url, TABLE)
        await outcome(batuta, in_turns, WARM_UP_STEPS, is_sqlite)

        async def once() -> None:
            nonlocal plain_s, written_s, steps
            one, other = await outcome(batuta, in_turns, task.steps, is_sqlite)
            plain_s, written_s, steps = plain_s + one, written_s + other, steps + task.steps

        await repeat(task.seconds, once)
        rows = await _rows(task.url, "SELECT count(*) FROM written")
    not_once = abs(rows - steps - WARM_UP_STEPS)
    return {"ms_per_step": written_s * 1000 / steps, "over_plain": written_s / plain_s, "not_once": not_once}


async def _rows(url: str, query: str) -> int:
    if url.startswith("sqlite"):
        with closing(sqlite3.connect(url.removeprefix("sqlite:///"), timeout=30)) as file:
            found = file.execute(query).fetchone()
    else:
        connection = await asyncpg.connect(url)
        found = await connection.fetchrow(query)
        await connection.close()
    return int(found[0]) if found else 0
