"""Databases as Batuta made them before there was a baseline, with open runs; and what a database consists of."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

from batuta.stores.contract.migrations import checksum
from tests.stores.postgres.raw import connection

OLDER = Path(__file__).parent / "older"
COMMITS = ("9b058beb", "12b62f04")
"""Commits whose numbered files, and runs, are in `older/`."""

POSTGRES_MIGRATIONS = """
    CREATE TABLE batuta.migrations (
        name text COLLATE "C" NOT NULL PRIMARY KEY, checksum text NOT NULL, applied_at bigint NOT NULL)
"""
SQLITE_MIGRATIONS = """
    CREATE TABLE migrations (
        name TEXT PRIMARY KEY, checksum TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT, WITHOUT ROWID
"""

TABLES = """
    SELECT c.relname, c.relkind::text, c.reloptions::text, obj_description(c.oid), a.attname,
           format_type(a.atttypid, a.atttypmod), a.attnotnull, a.attidentity::text, a.attgenerated::text,
           a.attstorage::text, l.collname, pg_get_expr(d.adbin, d.adrelid), col_description(c.oid, a.attnum)
    FROM pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
    LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
    LEFT JOIN pg_collation l ON l.oid = a.attcollation
    WHERE c.relnamespace = 'batuta'::regnamespace AND c.relkind IN ('r', 'v', 'c')
"""
INDEXES = "SELECT indexdef FROM pg_indexes WHERE schemaname = 'batuta'"
CONSTRAINTS = """
    SELECT conrelid::regclass::text, conname, pg_get_constraintdef(oid) FROM pg_constraint
    WHERE connamespace = 'batuta'::regnamespace
"""
FUNCTIONS = """
    SELECT pg_get_functiondef(oid), obj_description(oid) FROM pg_proc WHERE pronamespace = 'batuta'::regnamespace
"""
VIEWS = "SELECT viewname, definition FROM pg_views WHERE schemaname = 'batuta'"
TRIGGERS = """
    SELECT pg_get_triggerdef(t.oid), t.tgenabled::text FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid
    WHERE c.relnamespace = 'batuta'::regnamespace
"""


async def make_older_postgres(url: str, commit: str, *, runs: str = "") -> None:
    """`runs`: the file with what lies in it."""
    folder = OLDER / "postgres" / commit
    async with connection(url) as raw, raw.transaction():
        await raw.execute("CREATE SCHEMA batuta")
        await raw.execute(POSTGRES_MIGRATIONS)
        for name, sql in _files(folder):
            await raw.execute(sql)
            await raw.execute("INSERT INTO batuta.migrations VALUES ($1, $2, 0)", name, checksum(sql))
        if runs:
            await raw.execute((folder / runs).read_text())


def make_older_sqlite(path: Path, commit: str, *, runs: str = "") -> None:
    folder = OLDER / "sqlite" / commit
    raw = sqlite3.connect(path)
    raw.executescript(SQLITE_MIGRATIONS)
    for name, sql in _files(folder):
        raw.executescript(sql)
        raw.execute("INSERT INTO migrations VALUES (?, ?, 0)", (name, checksum(sql)))
    if runs:
        raw.executescript((folder / runs).read_text())
    raw.commit()
    raw.close()


async def catalog(url: str) -> dict[str, set[tuple[Any, ...]]]:
    """All that a PostgreSQL database has: but for the order of columns, which nothing relies on."""
    async with connection(url) as raw:
        names = ("TABLES", "INDEXES", "CONSTRAINTS", "FUNCTIONS", "VIEWS", "TRIGGERS")
        return {name: {tuple(row) for row in await raw.fetch(globals()[name])} for name in names}


def objects(path: Path) -> dict[str, Any]:
    """All that a SQLite file has: columns in their order, and the texts of the rest."""
    raw = sqlite3.connect(path)
    rows = raw.execute("SELECT name, type, sql FROM sqlite_master").fetchall()
    tables = {
        name: raw.execute('SELECT name, type, "notnull", dflt_value, pk FROM pragma_table_info(?)', (name,)).fetchall()
        for name, kind, _ in rows
        if kind == "table"
    }
    raw.close()
    return {name: sql for name, kind, sql in rows if kind != "table"} | tables


def _files(folder: Path) -> list[tuple[str, str]]:
    return [(file.stem, file.read_text("utf-8")) for file in sorted(folder.glob("0*.sql"))]
