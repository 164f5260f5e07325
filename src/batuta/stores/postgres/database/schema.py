"""The schema of the database: checked when a store opens, and brought up to date by `migrate`.

Tables change by numbered files in `schema/`; functions, triggers and views are replaced as a whole from the files in
`functions/`: see repeatable.py. A database older than the baseline gets `schema/adopt.sql` instead of the baseline.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

import asyncpg
from msgspec import Struct, json

from batuta.errors import SchemaMismatch, StoreUnavailable
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
from batuta.stores.postgres.database.address import Address
from batuta.stores.postgres.database.connection import DRIVER_ERRORS, Session
from batuta.stores.postgres.database.errors import RowLocked, translate
from batuta.stores.postgres.database.repeatable import (
    Connection,
    Fetch,
    Shipped,
    edited,
    load_repeatable,
    read_installed,
    replace_all,
)

PACKAGE = "batuta.stores.postgres"
PATIENCE_SECONDS = 86_400.0
"""For a migration: not the timeout of statements, which is for work."""
VERSIONS = Versions(schema=1, oldest_code=1, oldest_schema=1)
FUNCTIONS = "functions"
"""How `migrate` calls the replacement of all functions, triggers and views."""
_COMMENTS = re.compile(r"^COMMENT ON .*?';$", re.MULTILINE | re.DOTALL)


class Code(Struct, frozen=True):
    """The schema that this version of Batuta ships."""

    versions: Versions
    migrations: list[Migration]
    repeatable: Shipped
    older: frozenset[str]


@cache
def load_code() -> Code:
    """The files of this package."""
    return Code(VERSIONS, load_migrations(PACKAGE), load_repeatable(PACKAGE), load_older(PACKAGE))


class Found(Struct, frozen=True):
    """A database, with its facts about functions, triggers and views."""

    database: Database
    functions: str = ""
    """Digest of the files that they came from."""
    recorded: dict[str, str] = {}
    """Digests of them as `migrate` left them."""


async def check(session: Session, address: Address, sql: Mapping[str, str]) -> None:
    """Raise SchemaMismatch unless this code works with the schema as it is."""
    code, found = load_code(), await _look(session.read, address, sql)
    require_current(code.migrations, code.older, code.versions, found.database)
    if found.database.schema == code.versions.schema and found.functions != code.repeatable.digest:
        raise SchemaMismatch("the functions in the database are not those of this Batuta: run `batuta migrate`")


async def migrate(session: Session, address: Address, sql: Mapping[str, str], *, plan: bool, repair: bool) -> list[str]:
    """Apply missing changes, all in one transaction and under a lock; returns their names.

    With `plan` nothing is done.
    """
    code = load_code()
    steps = await _steps(session.read, code, address, sql, repair)
    if plan or not steps:
        return steps
    try:
        return await _apply(await session.connect(), code, address, sql, repair)
    except asyncpg.InsufficientPrivilegeError as error:
        raise _not_the_owner(address, str(error)) from error
    except DRIVER_ERRORS as error:
        session.drop()
        fault = translate(error, address.place, writing=True)
        if isinstance(fault, RowLocked):
            raise RowLocked(
                f"another transaction held a table for longer than lock_timeout={address.lock_timeout:g} seconds; "
                f"nothing was changed: end that transaction, or run `batuta migrate` again"
            ) from error
        raise fault from error


async def _steps(read: Fetch, code: Code, address: Address, sql: Mapping[str, str], repair: bool) -> list[str]:
    """The steps of `migrate`, in words."""
    found = await _look(read, address, sql)
    if is_newer(code.versions, found.database):
        return []
    steps = [migration.name for migration in pending(code.migrations, code.older, found.database)]
    if found.database.is_older_than_baseline:
        applied = found.database.applied
        steps.insert(0, f"{BASELINE} (adopting {min(applied)} to {max(applied)})")
    if found.functions != code.repeatable.digest:
        return [*steps, FUNCTIONS]
    if repair and (names := edited(found.recorded, await read_installed(read, address.schema, sql))):
        return [*steps, f"{FUNCTIONS} (edited in the database: {', '.join(names)})"]
    is_recorded = (found.database.schema, found.database.oldest_code) == (
        code.versions.schema,
        code.versions.oldest_code,
    )
    return steps if steps or is_recorded else [f"schema version {code.versions.schema}"]


async def _look(read: Fetch, address: Address, sql: Mapping[str, str]) -> Found:
    there = (await read(sql["migrations_exist"], address.schema))[0]
    if not there["migrations"]:
        return Found(Database({}))
    applied = {row["name"]: row["checksum"] for row in await read(sql["applied_migrations"])}
    if not there["version"] or not (rows := await read(sql["schema_version"])):
        return Found(Database(applied))
    version, oldest_code, functions, installed = rows[0]
    return Found(Database(applied, version, oldest_code), functions, json.decode(installed, type=dict[str, str]))


async def _apply(
    connection: Connection, code: Code, address: Address, sql: Mapping[str, str], repair: bool
) -> list[str]:
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = 0")
        await connection.fetch(sql["migrate_lock"], address.schema, timeout=PATIENCE_SECONDS)
        # From here on a wait for a table makes all others wait that come later.
        await connection.execute(f"SET LOCAL lock_timeout = '{round(address.lock_timeout * 1000)}ms'")
        steps = await _steps(connection.fetch, code, address, sql, repair)
        if not steps:  # another one did it while this one waited
            return []
        if foreign := await connection.fetch(sql["foreign_objects"], address.schema):
            owners = ", ".join(sorted({f'"{row["owner"]}"' for row in foreign}))
            raise _not_the_owner(address, f"{foreign[0]['name']!r} and {len(foreign) - 1} more belong to {owners}")
        await connection.execute(sql["create_migrations"])
        await _change_tables(connection, code, address, sql)
        found = await _look(connection.fetch, address, sql)
        gone = (set(found.recorded) or _older_objects()) - code.repeatable.objects
        installed = await replace_all(connection, code.repeatable, gone, address.schema, sql, address.qualify)
        await connection.execute(sql["forget_version"])
        await connection.execute(
            sql["record_version"],
            code.versions.schema,
            code.versions.oldest_code,
            code.repeatable.digest,
            json.encode(installed).decode(),
        )
    return steps


async def _change_tables(connection: Connection, code: Code, address: Address, sql: Mapping[str, str]) -> None:
    found = await _look(connection.fetch, address, sql)
    missing = pending(code.migrations, code.older, found.database)
    if found.database.is_older_than_baseline:
        baseline = code.migrations[0]
        await connection.execute(address.qualify(_read("adopt.sql")), timeout=PATIENCE_SECONDS)
        await connection.execute(address.qualify("\n".join(_COMMENTS.findall(baseline.sql))))
        await connection.execute(sql["forget_migrations"])
        await connection.execute(sql["record_migration"], baseline.name, baseline.checksum)
    for migration in missing:
        await connection.execute(address.qualify(migration.sql), timeout=PATIENCE_SECONDS)
        await connection.execute(sql["record_migration"], migration.name, migration.checksum)


def _older_objects() -> set[str]:
    """Functions and views that databases older than the baseline may have."""
    return {line for line in _read("older_objects.txt").split("\n") if line and not line.startswith("#")}


def _read(name: str) -> str:
    return files(PACKAGE).joinpath("schema").joinpath(name).read_text("utf-8")


def _not_the_owner(address: Address, why: str) -> StoreUnavailable:
    return StoreUnavailable(
        f'cannot migrate schema "{address.schema}" of PostgreSQL at {address.place} as this user ({why}): '
        f"nothing was changed; run `batuta migrate` as the owner of the schema"
    )
