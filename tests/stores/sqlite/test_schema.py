"""Migrations of a SQLite file, its views, and the plans of its statements."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batuta.errors import SchemaMismatch
from batuta.stores.contract.migrations import Migration, Versions
from batuta.stores.sqlite.database import schema
from batuta.stores.sqlite.database.claimed_rows import BY_ROWID, DUE, DUE_SUSPECT
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import live_worker, new_run, start_owned

NAMES = [migration.name for migration in schema.MIGRATIONS]


def query(path: Path, sql: str, *values: object) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(path)
    try:
        rows = connection.execute(sql, values).fetchall()
        connection.commit()
        return rows
    finally:
        connection.close()


async def test_a_plan_changes_nothing(path: Path) -> None:
    assert await SqliteStore(path).migrate(plan=True) == NAMES
    assert not path.exists()


async def test_migrating_twice_applies_once(path: Path) -> None:
    store = SqliteStore(path)
    assert await store.migrate() == NAMES
    assert await store.migrate() == []
    assert await store.migrate(plan=True) == []
    assert query(path, "SELECT name FROM migrations") == [(name,) for name in NAMES]


async def test_of_many_who_migrate_at_once_one_does(path: Path) -> None:
    applied = await asyncio.gather(*(SqliteStore(path).migrate() for _ in range(4)))
    assert sorted(applied) == [[], [], [], NAMES]


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
    with pytest.raises(SchemaMismatch, match="differs from the shipped file"):
        await store.open()


async def test_a_file_of_a_newer_version_is_used_while_it_works_with_this_code(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    query(path, "INSERT INTO migrations VALUES ('0002_future', 'x', 1)")
    query(path, "ALTER TABLE runs ADD COLUMN future TEXT")
    query(path, "UPDATE schema_version SET version = 2")
    assert await store.migrate() == []
    await store.open()
    worker = await live_worker(store)
    pen = await start_owned(store, worker, "same")
    assert await pen.write(store, worker) is None
    assert (await store.get("same")).head == 1
    query(path, "UPDATE schema_version SET version = 3, oldest_code = 2")
    async with store.heartbeat(worker.worker_id) as heartbeat:
        with pytest.raises(SchemaMismatch, match="version 3, which works with code of version 2 or later"):
            await heartbeat.beat(worker, reap=True)
    await store.close()
    for call in (store.open, store.migrate):
        with pytest.raises(SchemaMismatch, match="this Batuta has version 1: deploy workers and clients with a newer"):
            await call()


async def test_newer_code_uses_an_older_file_while_it_works_with_it(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SqliteStore(path)
    await store.migrate()
    monkeypatch.setattr(schema, "VERSIONS", Versions(schema=2, oldest_code=2, oldest_schema=1))
    monkeypatch.setattr(
        schema, "MIGRATIONS", [*schema.MIGRATIONS, Migration("0099_more", "CREATE TABLE more (a);", "x")]
    )
    await store.open()
    assert (await store.start(new_run()))[1]
    monkeypatch.setattr(schema, "VERSIONS", Versions(schema=2, oldest_code=2, oldest_schema=2))
    await store.close()
    with pytest.raises(SchemaMismatch, match="works with 2 or later: run `batuta migrate`"):
        await store.open()
    assert await store.migrate() == ["0099_more"]
    await store.open()
    assert query(path, "SELECT version, oldest_code FROM schema_version") == [(2, 2)]
    await store.close()


async def test_an_empty_file_is_not_opened(path: Path) -> None:
    path.touch()
    with pytest.raises(SchemaMismatch, match="no tables"):
        await SqliteStore(path).open()


SORTED = {
    "list_children",
    "child_chains",
    "count_children",
    "count_retrying",
    "count_runs",
    "counted_runs",
    "flows",
    "gauges",
    "group_letters",
    "hand_out",
    "hasten",
    "list_retrying",
    "most_waiting",
    "schema_objects",
    "subscriptions",
    "topics",
}
"""Children of one parent only: their index is in the order that its end needs. Groups by what nothing counts by: all
letters are looked through. What waits in all queues, after the clock was set. The two rows at most of a quota.
Open runs that try again. Of the bus: messages that one turn hands out, and counts by topic. The objects of the file,
once. Counts by state: a dozen rows. The open runs of one key of a flow."""
WITHOUT_INDEX = {"create_migrations", "create_version"}


CLAIMED = {"due, claimed": DUE, "due_suspect, claimed": DUE_SUSPECT, "runs_by_rowid, claimed": BY_ROWID}
"""With what a claim brings besides."""
STATEMENTS = {**Q, **CLAIMED}


@pytest.fixture(scope="module")
def new_installation() -> Iterator[sqlite3.Connection]:
    """What it has: an empty, unanalysed database."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection.cursor(), now=1)
    yield connection
    connection.close()


def test_every_statement_finds_its_rows_by_an_index(new_installation: sqlite3.Connection) -> None:
    scan = re.compile(r"SCAN (runs|journal|inbox|attempts|outputs|workers|queues|begun|r|j)\b")
    plans = {name: _plan(new_installation, STATEMENTS[name]) for name in STATEMENTS.keys() - WITHOUT_INDEX}
    assert {name: plan for name, plan in plans.items() if any(map(scan.match, plan))} == {}
    assert {name for name, plan in plans.items() if any("TEMP B-TREE" in step for step in plan)} <= SORTED


def _plan(connection: sqlite3.Connection, sql: str) -> list[str]:
    named = dict.fromkeys(re.findall(r":(\w+)", sql))
    for count in range(40):
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


def test_parameters_are_plain_or_named() -> None:
    """Numbered ones, bound by a tuple, are deprecated on some Pythons; both kinds in one statement can't be bound."""
    assert [name for name, sql in Q.items() if re.search(r"\?\d", sql)] == []
    assert [name for name, sql in Q.items() if "?" in sql and re.search(r":\w+", sql)] == []
