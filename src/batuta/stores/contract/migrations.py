"""Schemas of both SQL stores: numbered files of tables, versions, and databases older than the baseline.

A new database gets the baseline and every numbered file after it. A database remembers the names and checksums of its
files, its schema version, and the oldest version of code that works with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

from msgspec import Struct

from batuta.errors import SchemaMismatch

BASELINE = "0001_baseline"


class Migration(Struct, frozen=True):
    """One numbered file."""

    name: str
    """Such as "0001_baseline"."""
    sql: str
    checksum: str


class Versions(Struct, frozen=True):
    """Which code and which schemas work together. Each store has its own."""

    schema: int
    """The version that this code migrates to. Every release that changes a table or a function raises it."""
    oldest_code: int
    """The oldest code (the `schema` that it migrates to) that works with this schema. Recorded in the database."""
    oldest_schema: int
    """The oldest schema that this code works with."""


class Database(Struct, frozen=True):
    """The schema facts that a database records."""

    applied: Mapping[str, str]
    """Checksums of its numbered files, by name."""
    schema: int = 0
    """0: it has no tables, or is older than the baseline."""
    oldest_code: int = 0

    @property
    def is_older_than_baseline(self) -> bool:
        """Whether it has tables of numbered files that the baseline replaced."""
        return bool(self.applied) and BASELINE not in self.applied


def load_migrations(package: str) -> list[Migration]:
    """The `.sql` files in the package's `schema` folder that begin with a number, in order."""
    found = [item for item in files(package).joinpath("schema").iterdir() if item.name[:4].isdigit()]
    return [
        Migration(item.name.removesuffix(".sql"), text, checksum(text))
        for item in sorted(found, key=lambda item: item.name)
        for text in [item.read_text("utf-8")]
    ]


def load_older(package: str) -> frozenset[str]:
    """Digests of the sets of files that the baseline replaced: see `digest_of`."""
    text = files(package).joinpath("schema").joinpath("older.txt").read_text("utf-8")
    return frozenset(line for line in text.split("\n") if line and not line.startswith("#"))


def checksum(sql: str) -> str:
    """Names the text of a file. Line ends do not count: a checkout may change them."""
    return hashlib.sha256(sql.replace("\r\n", "\n").encode()).hexdigest()


def digest_of(applied: Mapping[str, str]) -> str:
    """Names a set of files: names and checksums."""
    return checksum("".join(f"{name} {applied[name]}\n" for name in sorted(applied)))


def pending(known: Sequence[Migration], older: frozenset[str], database: Database) -> list[Migration]:
    """The files that the database lacks. Of a database older than the baseline: those after the baseline.

    Raises SchemaMismatch, before anything is done, when the database has a file that this code does not know, or a file
    that differs from the shipped one, or lacks a file before its last one.
    """
    applied = database.applied
    if database.is_older_than_baseline:
        if digest_of(applied) not in older:
            raise SchemaMismatch(
                f"the database has the migrations {min(applied)!r} to {max(applied)!r} of a Batuta that this version "
                f"cannot adopt: install the version that the database was migrated with, or start with a new database"
            )
        return [migration for migration in known if migration.name != BASELINE]
    names = [migration.name for migration in known]
    for name in sorted(applied):
        if name not in names:
            raise SchemaMismatch(
                f"the database has migration {name!r}, which this version of Batuta does not know: upgrade Batuta"
            )
    for migration in known:
        if applied.get(migration.name, migration.checksum) != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name!r} in the database differs from the shipped file: "
                f"install the version that the database was migrated with, or restore a backup"
            )
    missing = [migration for migration in known if migration.name not in applied]
    if missing and applied and missing[0].name < max(applied):
        raise SchemaMismatch(f"migration {missing[0].name!r} was left out: restore a backup and migrate again")
    return missing


def require_compatible(ours: Versions, database: Database) -> None:
    """Raise SchemaMismatch unless this code works with the database's schema version."""
    if not database.applied:
        raise SchemaMismatch("the database has no tables: run `batuta migrate`")
    if database.is_older_than_baseline:
        raise SchemaMismatch(
            f"the database has tables of an older Batuta (migrations {min(database.applied)!r} to "
            f"{max(database.applied)!r}): run `batuta migrate`, which keeps all runs"
        )
    if database.schema < ours.oldest_schema:
        raise SchemaMismatch(
            f"the database has schema version {database.schema}; this Batuta has version {ours.schema} and works with "
            f"{ours.oldest_schema} or later: run `batuta migrate`"
        )
    require_new_enough(ours, database.schema, database.oldest_code)


def require_new_enough(ours: Versions, schema: int, oldest_code: int) -> None:
    """Raise SchemaMismatch when the database was migrated past what this code works with."""
    if ours.schema < oldest_code:
        raise SchemaMismatch(
            f"the database has schema version {schema}, which works with code of version {oldest_code} or later; "
            f"this Batuta has version {ours.schema}: deploy workers and clients with a newer Batuta"
        )


def require_current(known: Sequence[Migration], older: frozenset[str], ours: Versions, database: Database) -> None:
    """Raise SchemaMismatch unless this code works with the database as it is."""
    require_compatible(ours, database)
    if database.schema == ours.schema and (missing := pending(known, older, database)):
        names = ", ".join(migration.name for migration in missing)
        raise SchemaMismatch(f"the database is of an older version (missing: {names}): run `batuta migrate`")


def is_newer(ours: Versions, database: Database) -> bool:
    """Whether a newer Batuta has migrated the database: then this one changes nothing. Raises when it is too old."""
    if database.schema > ours.schema:
        require_new_enough(ours, database.schema, database.oldest_code)
        return True
    return False
