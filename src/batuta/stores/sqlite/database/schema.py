"""The tables of the file: checked when a store opens, and brought up to date by `migrate`."""

from __future__ import annotations

import sqlite3
from contextlib import closing

from batuta.stores.contract.migrations import (
    BASELINE,
    Database,
    Migration,
    Versions,
    is_newer,
    load_migrations,
    load_older,
    pending,
    require_current,
)
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import one

MIGRATIONS = load_migrations("batuta.stores.sqlite")
OLDER = load_older("batuta.stores.sqlite")
VERSIONS = Versions(schema=1, oldest_code=1, oldest_schema=1)


def look(cursor: sqlite3.Cursor) -> Database:
    """The schema facts of the file."""
    tables = {name for (name,) in cursor.execute(Q["schema_tables"])}
    if "migrations" not in tables:
        return Database({})
    applied = dict(cursor.execute(Q["applied_migrations"]).fetchall())
    row = one(cursor.execute(Q["schema_version"])) if "schema_version" in tables else None
    return Database(applied) if row is None else Database(applied, *row)


def check(cursor: sqlite3.Cursor) -> None:
    """Raise SchemaMismatch unless this code works with the file's tables."""
    require_current(MIGRATIONS, OLDER, VERSIONS, look(cursor))


def plan(cursor: sqlite3.Cursor) -> list[str]:
    """Names of what `migrate` would apply."""
    database = look(cursor)
    if is_newer(VERSIONS, database):
        return []
    steps = [migration.name for migration in pending(MIGRATIONS, OLDER, database)]
    if database.is_older_than_baseline:
        steps.insert(0, f"{BASELINE} (adopting {min(database.applied)} to {max(database.applied)})")
    is_recorded = (database.schema, database.oldest_code) == (VERSIONS.schema, VERSIONS.oldest_code)
    return steps if steps or is_recorded else [f"schema version {VERSIONS.schema}"]


def migrate(cursor: sqlite3.Cursor, now: int) -> list[str]:
    """Apply missing changes, inside the caller's transaction: all or nothing."""
    steps = plan(cursor)
    if not steps:
        return []
    database = look(cursor)
    cursor.execute(Q["create_migrations"])
    cursor.execute(Q["create_version"])
    if database.is_older_than_baseline:
        adopt(cursor, MIGRATIONS[0])
        cursor.execute(Q["forget_migrations"])
        cursor.execute(Q["record_migration"], (MIGRATIONS[0].name, MIGRATIONS[0].checksum, now))
    for migration in pending(MIGRATIONS, OLDER, database):
        for statement in statements(migration.sql):
            cursor.execute(statement)
        cursor.execute(Q["record_migration"], (migration.name, migration.checksum, now))
    cursor.execute(Q["forget_version"])
    cursor.execute(Q["record_version"], (VERSIONS.schema, VERSIONS.oldest_code, now))
    return steps


def adopt(cursor: sqlite3.Cursor, baseline: Migration) -> None:
    """Bring the tables of a file older than the baseline to it: adds tables, columns and indexes, remakes the rest."""
    with closing(sqlite3.connect(":memory:")) as fresh:
        fresh.executescript(baseline.sql)
        there = {name for _, name, _ in cursor.execute(Q["schema_objects"])}
        for kind, name, sql in fresh.execute(Q["schema_objects"]).fetchall():
            if kind in ("view", "trigger"):
                cursor.execute(f"DROP {kind} IF EXISTS {name}")
                cursor.execute(sql)
            elif name not in there:
                cursor.execute(sql)
            elif kind == "table":
                _add_columns(cursor, fresh, name)


def _add_columns(cursor: sqlite3.Cursor, fresh: sqlite3.Connection, table: str) -> None:
    has = {name for (name, *_) in cursor.execute(Q["table_columns"], (table,))}
    for name, kind, is_required, default in fresh.execute(Q["table_columns"], (table,)).fetchall():
        if name not in has:
            rest = (" NOT NULL" if is_required else "") + (f" DEFAULT {default}" if default is not None else "")
            cursor.execute(f"ALTER TABLE {table} ADD COLUMN {name} {kind}{rest}")


def statements(sql: str) -> list[str]:
    """A script's statements. `executescript` is of no use: it commits first."""
    found: list[str] = []
    rest = ""
    for line in sql.splitlines(keepends=True):
        rest += line
        if line.rstrip().endswith(";") and sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    return found
