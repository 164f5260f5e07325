"""Migrations of a SQLite file, its views, and the plans of its statements."""

from __future__ import annotations

import asyncio
import re
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from batuta.errors import SchemaMismatch
from batuta.stores.sqlite import schema
from batuta.stores.sqlite.claimed import BY_ROWID, DUE, DUE_SUSPECT
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import new_run

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
    with pytest.raises(SchemaMismatch, match="another text"):
        await store.open()


async def test_an_empty_file_is_not_opened(path: Path) -> None:
    path.touch()
    with pytest.raises(SchemaMismatch, match="no tables"):
        await SqliteStore(path).open()


SORTED = {"list_children", "child_chains", "group_letters"}
"""Children of one parent only: their index is in the order that its end needs. Groups by what nothing counts by: all
letters are looked through."""
WITHOUT_INDEX = {"create_migrations", "applied_migrations", "has_migrations"}


CLAIMED = {"due, claimed": DUE, "due_suspect, claimed": DUE_SUSPECT, "runs_by_rowid, claimed": BY_ROWID}
"""With what a claim brings besides."""
STATEMENTS = {**Q, **CLAIMED}


@pytest.mark.parametrize("name", sorted(set(STATEMENTS) - WITHOUT_INDEX))
def test_every_statement_finds_its_rows_by_an_index(name: str) -> None:
    """On an empty, unanalysed file: that is what a new installation has."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection.cursor(), now=1)
    plan = _plan(connection, STATEMENTS[name])
    connection.close()
    scans = [
        step
        for step in plan
        if re.match(r"SCAN (runs|journal|inbox|attempts|outputs|workers|queues|begun|r|j)\b", step)
    ]
    assert scans == []
    assert name in SORTED or not [step for step in plan if "TEMP B-TREE" in step]


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


@pytest.mark.parametrize("name", sorted(Q))
def test_parameters_are_plain_or_named(name: str) -> None:
    """Numbered ones, bound by a tuple, are deprecated on some Pythons; both kinds in one statement can't be bound."""
    assert not re.search(r"\?\d", Q[name])
    assert not ("?" in Q[name] and re.search(r":\w+", Q[name]))
