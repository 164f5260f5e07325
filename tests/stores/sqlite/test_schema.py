"""Migrations of a SQLite file, its views, and the plans of its statements."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw

from batuta.clock import SECOND
from batuta.errors import SchemaMismatch
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, encode_entry
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt, Change
from batuta.stores.sqlite import schema
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import live_worker, new_run, start_owned


def query(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(sql, values).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


async def test_a_plan_changes_nothing(path: Path) -> None:
    assert await SqliteStore(path).migrate(plan=True) == ["0001_first"]
    assert not path.exists()


async def test_migrating_twice_applies_once(path: Path) -> None:
    store = SqliteStore(path)
    assert await store.migrate() == ["0001_first"]
    assert await store.migrate() == []
    assert await store.migrate(plan=True) == []
    assert query(path, "SELECT name FROM migrations") == [("0001_first",)]


async def test_of_many_who_migrate_at_once_one_does(path: Path) -> None:
    applied = await asyncio.gather(*(SqliteStore(path).migrate() for _ in range(4)))
    assert sorted(applied) == [[], [], [], ["0001_first"]]


async def test_an_open_store_may_be_migrated(store: SqliteStore) -> None:
    assert await store.migrate() == []
    assert (await store.start(new_run()))[1]


async def test_a_newer_file_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    query(path, "INSERT INTO migrations VALUES ('0999_future', 'x', 1)")
    for call in (store.open, store.migrate):
        with pytest.raises(SchemaMismatch, match="0999_future"):
            await call()


async def test_a_changed_migration_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    query(path, "UPDATE migrations SET checksum = 'other'")
    with pytest.raises(SchemaMismatch, match="another text"):
        await store.open()


async def test_an_empty_file_is_not_opened(path: Path) -> None:
    path.touch()
    with pytest.raises(SchemaMismatch, match="no tables"):
        await SqliteStore(path).open()


async def test_the_views_are_for_people(store: SqliteStore, path: Path) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker, "order-1", tags='{"bank":"b1"}')
    asked = Body(
        commands=[
            Command(seq=1, kind=CommandKind.ACTIVITY, name="reserve", value=Raw(b'["sku",2]')),
            Command(seq=2, kind=CommandKind.TIMER, value=Raw(b"5")),
            Command(seq=3, kind=CommandKind.ACTIVITY, name="charge", value=Raw(b"[1]")),
            Command(seq=4, kind=CommandKind.ACTIVITY, name="ship", value=Raw(b"[]")),
        ]
    )
    at = 1_700_000_000 * SECOND
    done = Body(seq=1, value=Raw(b'{"hold":7}'), attempts=2, started_at=at + SECOND)
    failed = Body(seq=3, error=Failure("CardDeclined", "no money"), attempts=1, started_at=at)
    entries = [
        encode_entry(1, EntryKind.TIMER_FIRED, at, asked, 0),
        encode_entry(2, EntryKind.ACTIVITY_DONE, at + 2 * SECOND, done, 0),
        encode_entry(3, EntryKind.ACTIVITY_FAILED, at + 2 * SECOND, failed, 0),
    ]
    attempts = [Attempt(seq=4, number=1, started_at=at, error='{"type":"Timeout"}')]
    change = Change(run_id=pen.run_id, epoch=1, head=0, entries=entries, attempts=attempts)
    assert await store.commit(worker.worker_id, [change]) == {}
    runs = query(path, "SELECT id, run_id, state, entries, owner, tags FROM batuta_runs")
    assert runs == [("order-1", str(pen.run_id), "running", 4, worker.worker_id, '{"bank":"b1"}')]
    activities = query(
        path,
        "SELECT run_id, seq, name, state, input, output, error, attempts, scheduled_at, started_at, ended_at "
        "FROM batuta_activities ORDER BY seq",
    )
    begun, after_one, after_two = (f"2023-11-14 22:13:2{second}.000" for second in (0, 1, 2))
    run_id = str(pen.run_id)
    assert activities == [
        (run_id, 1, "reserve", "completed", '["sku",2]', '{"hold":7}', None, 2, begun, after_one, after_two),
        (
            *(run_id, 3, "charge", "failed", "[1]", None, '{"type":"CardDeclined","message":"no money"}'),
            *(1, begun, begun, after_two),
        ),
        (run_id, 4, "ship", "pending", "[]", None, '{"type":"Timeout"}', 1, begun, None, None),
    ]


@pytest.mark.parametrize("name", sorted(set(Q) - {"create_migrations", "applied_migrations", "has_migrations"}))
def test_every_statement_finds_its_rows_by_an_index(name: str) -> None:
    """On an empty, unanalysed file: that is what a new installation has."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection.cursor(), now=1)
    plan = _plan(connection, Q[name])
    connection.close()
    scans = [step for step in plan if re.match(r"SCAN (runs|journal|inbox|attempts|outputs|workers|r|j)\b", step)]
    assert scans == []
    assert not [step for step in plan if "TEMP B-TREE" in step]


def _plan(connection: sqlite3.Connection, sql: str) -> list[str]:
    named = dict.fromkeys(re.findall(r":(\w+)", sql))
    for count in range(30):
        try:
            rows = connection.execute(f"EXPLAIN QUERY PLAN {sql}", named or (None,) * count).fetchall()
        except sqlite3.ProgrammingError:
            continue  # another number of values
        return [row[3] for row in rows]
    raise AssertionError(sql)


def test_what_a_commit_changes_each_time_is_in_no_index() -> None:
    text = schema.MIGRATIONS[0].sql
    indexes = re.findall(r"CREATE (?:UNIQUE )?INDEX .*?;", text, re.DOTALL)
    assert len(indexes) > 5
    assert not [index for index in indexes if re.search(r"\bhead\b", index)]
