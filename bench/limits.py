"""The bare limits: what the database alone does for rows like those of a journal. `python -m bench.limits TASK`.

W1 and W3: one row, one commit, which is measured beside them (`beside`). W2: 100 rows, one commit. PostgreSQL through
asyncpg; SQLite through the standard library with WAL and synchronous=FULL. The table has the primary key of a journal,
and nothing else.
"""

import contextlib
import sqlite3
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Final

from bench.child import Figures, Task, answer

BATCH: Final = 100
BATCHES: Final = 20
WARM_UP: Final = 100
BODY: Final = '{"seq":1,"name":"step","value":1,"commands":[{"seq":2,"kind":"activity","name":"step","value":[1]}]}'
BODY_150: Final = BODY.ljust(150)

Row = tuple[uuid.UUID, int, str, int, str]
Write = Callable[[list[Row]], Awaitable[None]]

TABLE_PG: Final = "CREATE TABLE bare (run_id uuid, ord int, kind text, at bigint, body text, PRIMARY KEY (run_id, ord))"
ONE_PG: Final = "INSERT INTO bare VALUES ($1, $2, $3, $4, $5)"
MANY_PG: Final = "INSERT INTO bare SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[], $4::bigint[], $5::text[])"
TABLE_SQLITE: Final = (
    "CREATE TABLE bare (run_id BLOB, ord INTEGER, kind TEXT, at INTEGER, body TEXT, PRIMARY KEY (run_id, ord)) "
    "WITHOUT ROWID"
)
INSERT_SQLITE: Final = "INSERT INTO bare VALUES (?, ?, ?, ?, ?)"


class Rows:
    """Rows in the order a worker writes them: a new run every ten entries, ids growing with time."""

    def __init__(self) -> None:
        self._written = 0
        self._run = _ordered_id()

    def take(self, count: int) -> list[Row]:
        return [self._next() for _ in range(count)]

    def _next(self) -> Row:
        place = self._written % 10
        if place == 0:
            self._run = _ordered_id()
        self._written += 1
        return (self._run, place, "activity_done", time.time_ns() // 1000, BODY_150)


def _ordered_id() -> uuid.UUID:
    return uuid.UUID(int=((time.time_ns() // 1_000_000) << 80) | (uuid.uuid4().int & ((1 << 80) - 1)))


@contextlib.asynccontextmanager
async def bare(url: str) -> AsyncIterator[Write]:
    """A table in the database at `url`; gives what writes rows to it, durably, in one commit a call."""
    if url.startswith("sqlite:///"):
        with contextlib.closing(sqlite3.connect(url.removeprefix("sqlite:///"), isolation_level=None)) as file:
            yield _sqlite(file)
        return
    async with _postgres(url) as write:
        yield write


def _sqlite(file: sqlite3.Connection) -> Write:
    file.execute("PRAGMA journal_mode=WAL")
    file.execute("PRAGMA synchronous=FULL")
    file.execute(TABLE_SQLITE)

    async def write(rows: list[Row]) -> None:
        file.execute("BEGIN IMMEDIATE")
        file.executemany(INSERT_SQLITE, [(run.bytes, *rest) for run, *rest in rows])
        file.execute("COMMIT")

    return write


@contextlib.asynccontextmanager
async def _postgres(url: str) -> AsyncIterator[Write]:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        await connection.execute(TABLE_PG)
        one, many = await connection.prepare(ONE_PG), await connection.prepare(MANY_PG)

        async def write(rows: list[Row]) -> None:
            if len(rows) == 1:
                await one.fetch(*rows[0])
            else:
                await many.fetch(*map(list, zip(*rows, strict=True)))

        yield write
    finally:
        await connection.close()


async def batched(task: Task) -> Figures:
    """100 rows a commit; making the rows is not counted, sending them is."""
    async with bare(task.url) as write:
        rows = Rows()
        await write(rows.take(BATCH))
        spent, written, end = 0.0, 0, time.perf_counter() + task.seconds
        while time.perf_counter() < end:
            batches = [rows.take(BATCH) for _ in range(BATCHES)]
            begun = time.perf_counter()
            for batch in batches:
                await write(batch)
            spent += time.perf_counter() - begun
            written += BATCH * BATCHES
    return {"steps_per_s": written / spent}


if __name__ == "__main__":
    answer({"W2": batched})
