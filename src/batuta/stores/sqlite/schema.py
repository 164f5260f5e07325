"""Bringing the file's tables up to date."""

from __future__ import annotations

import sqlite3

from batuta.stores.migrations import load_migrations, pending, require_current
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.rows import one

MIGRATIONS = load_migrations("batuta.stores.sqlite")


def applied(cursor: sqlite3.Cursor) -> dict[str, str]:
    """Names and checksums of what the file has."""
    row = one(cursor.execute(Q["has_migrations"]))
    if row is None or not row[0]:
        return {}
    return dict(cursor.execute(Q["applied_migrations"]).fetchall())


def check(cursor: sqlite3.Cursor) -> None:
    """Raise SchemaMismatch unless the file has exactly the tables that this code knows."""
    require_current(MIGRATIONS, applied(cursor))


def plan(cursor: sqlite3.Cursor) -> list[str]:
    """Names of what `migrate` would apply."""
    return [migration.name for migration in pending(MIGRATIONS, applied(cursor))]


def migrate(cursor: sqlite3.Cursor, now: int) -> list[str]:
    """Apply what is missing, inside the caller's transaction: all of it or nothing."""
    missing = pending(MIGRATIONS, applied(cursor))
    if missing:
        cursor.execute(Q["create_migrations"])
    for migration in missing:
        for statement in statements(migration.sql):
            cursor.execute(statement)
        cursor.execute(Q["record_migration"], (migration.name, migration.checksum, now))
    return [migration.name for migration in missing]


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
