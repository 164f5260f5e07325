"""A database full of finished runs: one real run of W2, copied with its journal under new ids.

Copying rows instead of running them only saves time. The ids are in order of time, as those of real runs are.
"""

import asyncio
import sqlite3
import time
import uuid
from collections.abc import Sequence
from typing import Any, Final

from bench.child import Task
from bench.systems import run_once

CHUNK: Final = 20_000
STEPS: Final = 5
DAY: Final = 86_400_000_000

Row = Sequence[Any]


def fill(url: str, runs: int) -> float:
    """Put `runs` finished runs into an empty database; returns how many seconds it took."""
    begun = time.monotonic()
    run_once(Task("fill", url, runs=1, steps=STEPS))
    if url.startswith("sqlite:///"):
        _fill_sqlite(url.removeprefix("sqlite:///"), runs)
    else:
        asyncio.run(_fill_postgres(url, runs))
    return time.monotonic() - begun


def _old_id(number: int) -> uuid.UUID:
    """An id as the engine makes them (UUIDv7), of a run a day ago."""
    moment = time.time_ns() // 1_000_000 - 86_400_000 + number // 100
    return uuid.UUID(int=moment << 80 | 7 << 76 | 2 << 62 | number)


class Copies:
    """Rows of the one real run under other ids: runs and journal entries, a chunk at a time."""

    def __init__(self, run: Row, columns: Sequence[str], entries: Sequence[Row], entry_columns: Sequence[str]) -> None:
        self._run, self._entries = list(run), [list(entry) for entry in entries]
        self._places = {name: columns.index(name) for name in ("run_id", "chain_id", "id")}
        for name in ("created_at", "closed_at"):
            self._run[columns.index(name)] -= DAY
        self._run_id_of_entry = entry_columns.index("run_id")

    def runs(self, ids: dict[int, Any]) -> list[Row]:
        return [self._copy_run(number, run_id) for number, run_id in ids.items()]

    def entries(self, ids: dict[int, Any]) -> list[Row]:
        return [self._copy_entry(entry, run_id) for run_id in ids.values() for entry in self._entries]

    def _copy_run(self, number: int, run_id: object) -> Row:
        row = self._run.copy()
        row[self._places["run_id"]] = row[self._places["chain_id"]] = run_id
        row[self._places["id"]] = f"old-{number}"
        return tuple(row)

    def _copy_entry(self, entry: list[Any], run_id: object) -> Row:
        row = entry.copy()
        row[self._run_id_of_entry] = run_id
        return tuple(row)


def _fill_sqlite(path: str, runs: int) -> None:
    file = sqlite3.connect(path, isolation_level=None)
    file.execute("PRAGMA synchronous=OFF")  # of this connection only
    (run,), columns = _read_sqlite(file, "SELECT * FROM runs LIMIT 1")
    entries, entry_columns = _read_sqlite(file, "SELECT * FROM journal ORDER BY ord")
    copies = Copies(run, columns, entries, entry_columns)
    for first in range(0, runs, CHUNK):
        ids = {number: _old_id(number).bytes for number in range(first, min(runs, first + CHUNK))}
        file.execute("BEGIN IMMEDIATE")
        file.executemany(_insert("runs", len(columns)), copies.runs(ids))
        file.executemany(_insert("journal", len(entry_columns)), copies.entries(ids))
        file.execute("COMMIT")
    file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    file.close()


def _read_sqlite(file: sqlite3.Connection, query: str) -> tuple[list[Row], list[str]]:
    cursor = file.execute(query)
    rows = cursor.fetchall()
    return rows, [column[0] for column in cursor.description]


def _insert(table: str, columns: int) -> str:
    return f"INSERT INTO {table} VALUES ({', '.join('?' * columns)})"


async def _fill_postgres(url: str, runs: int) -> None:
    import asyncpg

    connection = await asyncpg.connect(url)
    try:
        run = await connection.fetchrow("SELECT * FROM batuta.runs LIMIT 1")
        entries = await connection.fetch("SELECT * FROM batuta.journal ORDER BY ord")
        if run is None:
            raise ValueError("the run to copy is not there")
        columns, entry_columns = list(run.keys()), list(entries[0].keys())
        copies = Copies(tuple(run), columns, [tuple(entry) for entry in entries], entry_columns)
        for first in range(0, runs, CHUNK):
            ids = {number: _old_id(number) for number in range(first, min(runs, first + CHUNK))}
            await _copy(connection, "runs", copies.runs(ids), columns)
            await _copy(connection, "journal", copies.entries(ids), entry_columns)
        # In production autovacuum has long been there; here it would come in the middle of a measurement.
        await connection.execute("VACUUM (ANALYZE) batuta.runs")
        await connection.execute("VACUUM (ANALYZE) batuta.journal")
    finally:
        await connection.close()


async def _copy(connection: Any, table: str, rows: list[Row], columns: list[str]) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=columns, schema_name="batuta")
