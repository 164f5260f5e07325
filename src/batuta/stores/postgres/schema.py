"""The schema of the database: is it the one this code knows, and how it becomes so."""

from __future__ import annotations

from collections.abc import Mapping

import asyncpg

from batuta.stores.migrations import Migration, load_migrations, pending, require_current
from batuta.stores.postgres.address import Address
from batuta.stores.postgres.faults import translate
from batuta.stores.postgres.session import DRIVER_ERRORS, Session

PACKAGE = "batuta.stores.postgres"
PATIENCE_SECONDS = 86_400.0
"""For a migration: not the timeout of statements, which is for work."""


async def check(session: Session, address: Address, sql: Mapping[str, str]) -> None:
    """Raise SchemaMismatch unless the schema is the one this code knows."""
    require_current(load_migrations(PACKAGE), await _applied(session, address, sql))


async def migrate(session: Session, address: Address, sql: Mapping[str, str], *, plan: bool) -> list[str]:
    """Apply what is missing, all in one transaction and under a lock; names of it. With `plan` nothing is done."""
    known = load_migrations(PACKAGE)
    missing = pending(known, await _applied(session, address, sql))
    if plan or not missing:
        return [migration.name for migration in missing]
    try:
        return await _apply(await session.connect(), known, address, sql)
    except DRIVER_ERRORS as error:
        session.drop()
        raise translate(error, address.place, writing=True) from error


async def _applied(session: Session, address: Address, sql: Mapping[str, str]) -> dict[str, str]:
    there = await session.read(sql["migrations_exist"], f'"{address.schema}".migrations')
    if not there[0]["there"]:
        return {}
    return {row["name"]: row["checksum"] for row in await session.read(sql["applied_migrations"])}


async def _apply(
    connection: asyncpg.Connection[asyncpg.Record],
    known: list[Migration],
    address: Address,
    sql: Mapping[str, str],
) -> list[str]:
    async with connection.transaction():
        await connection.execute("SET LOCAL statement_timeout = 0")  # an index of a large table takes its time
        await connection.fetch(sql["migrations_lock"], address.schema)
        await connection.execute(sql["create_migrations"])
        applied = {row["name"]: row["checksum"] for row in await connection.fetch(sql["applied_migrations"])}
        missing = pending(known, applied)
        for migration in missing:
            await connection.execute(address.qualify(migration.sql), timeout=PATIENCE_SECONDS)
            await connection.execute(sql["record_migration"], migration.name, migration.checksum)
    return [migration.name for migration in missing]
