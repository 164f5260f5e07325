"""The schema: made once, by one, never touched when it is not ours."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from batuta.errors import SchemaMismatch
from batuta.stores.contract.migrations import Migration
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.database import schema
from batuta.stores.postgres.database.schema import FUNCTIONS, load_code
from batuta.testing.conformance.kit import live_worker, new_run, start_owned
from tests.stores.postgres.raw import connection

NAMES = [*(migration.name for migration in load_code().migrations), FUNCTIONS]


async def test_a_plan_changes_nothing(empty_postgres_url: str) -> None:
    store = PostgresStore(empty_postgres_url)
    assert await store.migrate(plan=True) == NAMES
    assert await store.migrate(plan=True) == NAMES
    await store.close()


async def test_a_database_without_tables_says_what_to_do(empty_postgres_url: str) -> None:
    store = PostgresStore(empty_postgres_url)
    with pytest.raises(SchemaMismatch, match="batuta migrate"):
        await store.open()
    await store.close()


async def test_migrating_twice_and_at_once_applies_once(empty_postgres_url: str) -> None:
    stores = [PostgresStore(empty_postgres_url) for _ in range(3)]
    applied = await asyncio.gather(*(store.migrate() for store in stores))
    assert sorted(applied, key=len) == [[], [], NAMES]
    assert await stores[0].migrate() == []
    for store in stores:
        await store.open()
        await store.close()


async def test_a_migration_may_take_longer_than_a_statement(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Migration("0099_slow", "SELECT pg_sleep(1.5)", "checksum")
    code = replace(load_code(), migrations=[*load_code().migrations, slow])
    monkeypatch.setattr(schema, "load_code", lambda: code)
    store = PostgresStore(f"{postgres_url}?statement_timeout=1")
    assert await store.migrate() == ["0099_slow"]
    await store.close()


async def test_schemas_live_side_by_side(empty_postgres_url: str) -> None:
    stores = [PostgresStore(empty_postgres_url, schema=name) for name in ("one", "Two")]
    for store in stores:
        assert await store.migrate() == NAMES
        await store.open()
        worker = await live_worker(store)
        pen = await start_owned(store, worker, "same")
        assert await store.commit(worker.worker_id, [pen.change(1, consumed=["none"])]) == {}
        await store.start(new_run())
        assert len((await store.claim(worker, 10)).stored_runs) == 1
    ids = [(await store.get("same")).run_id for store in stores]
    assert ids[0] != ids[1]
    async with connection(empty_postgres_url) as raw:
        assert await raw.fetchval("SELECT count(*) FROM pg_namespace WHERE nspname = 'batuta'") == 0
    for store in stores:
        await store.close()


async def test_a_newer_schema_is_refused(postgres_url: str) -> None:
    async with connection(postgres_url) as raw:
        await raw.execute("INSERT INTO batuta.migrations VALUES ('9999_future', 'x', 0)")
    store = PostgresStore(postgres_url)
    for verb in (store.open, store.migrate):
        with pytest.raises(SchemaMismatch, match="9999_future"):
            await verb()
    await store.close()


async def test_a_migration_that_differs_is_refused(postgres_url: str) -> None:
    async with connection(postgres_url) as raw:
        await raw.execute("UPDATE batuta.migrations SET checksum = 'x' WHERE name = '0001_baseline'")
    store = PostgresStore(postgres_url)
    with pytest.raises(SchemaMismatch, match=r"0001_baseline.*differs from the shipped file"):
        await store.open()
    await store.close()


async def test_a_schema_dropped_under_a_store_is_named(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    async with connection(postgres_url) as raw:
        await raw.execute("DROP SCHEMA batuta CASCADE")
    with pytest.raises(SchemaMismatch, match="batuta migrate"):
        await pen.write(store, worker)


async def test_no_index_knows_the_head(postgres_url: str) -> None:
    async with connection(postgres_url) as raw:
        indexes = await raw.fetch("SELECT indexdef FROM pg_indexes WHERE schemaname = 'batuta' AND tablename = 'runs'")
    assert len(indexes) >= 6
    assert not [row["indexdef"] for row in indexes if "head" in row["indexdef"]]


async def test_every_table_has_a_namespace_but_those_about_the_schema(postgres_url: str) -> None:
    async with connection(postgres_url) as raw:
        rows = await raw.fetch(
            """SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
               WHERE n.nspname = 'batuta' AND c.relkind = 'r' AND NOT EXISTS (
                   SELECT FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attname = 'namespace' AND a.attnotnull)"""
        )
    assert sorted(row["relname"] for row in rows) == ["migrations", "schema_version"]
