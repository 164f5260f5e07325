"""What both SQL stores do about schemas: numbered files, applied in order, once, and never changed afterwards."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

from msgspec import Struct

from batuta.errors import SchemaMismatch


class Migration(Struct, frozen=True):
    """One numbered file."""

    name: str
    """Such as "0001_first"."""
    sql: str
    checksum: str


def load_migrations(package: str) -> list[Migration]:
    """The `.sql` files in the package's `migrations` folder, in order."""
    found = [item for item in files(package).joinpath("migrations").iterdir() if item.name.endswith(".sql")]
    return [
        Migration(item.name.removesuffix(".sql"), text, checksum(text))
        for item in sorted(found, key=lambda item: item.name)
        for text in [item.read_text("utf-8")]
    ]


def checksum(sql: str) -> str:
    """Names the text of a migration. Line ends do not count: a checkout may change them."""
    return hashlib.sha256(sql.replace("\r\n", "\n").encode()).hexdigest()


def pending(known: Sequence[Migration], applied: Mapping[str, str]) -> list[Migration]:
    """What is to be applied to a database that has `applied` (name to checksum).

    Raises SchemaMismatch when the database has a migration that this code does not know, or another text of one, or
    lacks one before the last it has: nothing may be done to it then.
    """
    names = [migration.name for migration in known]
    for name in sorted(applied):
        if name not in names:
            raise SchemaMismatch(
                f"the database has migration {name!r}, which this version of Batuta does not know: upgrade Batuta"
            )
    for migration in known:
        if applied.get(migration.name, migration.checksum) != migration.checksum:
            raise SchemaMismatch(
                f"migration {migration.name!r} was applied with another text than this version of Batuta has: "
                f"install the version that the database was migrated with, or restore a backup"
            )
    missing = [migration for migration in known if migration.name not in applied]
    if missing and applied and missing[0].name < max(applied):
        raise SchemaMismatch(f"migration {missing[0].name!r} was left out: restore a backup and migrate again")
    return missing


def require_current(known: Sequence[Migration], applied: Mapping[str, str]) -> None:
    """Raise SchemaMismatch unless the database has all of `known` and nothing else."""
    missing = pending(known, applied)
    if missing:
        state = "has no tables" if not applied else "is of an older version"
        raise SchemaMismatch(
            f"the database {state} (missing: {', '.join(m.name for m in missing)}): run `batuta migrate`"
        )
