"""Functions, triggers and views: replaced as a whole, never without need, and while workers work."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

import batuta.stores.postgres as package
from batuta.errors import SchemaMismatch, StoreUnavailable
from batuta.stores.contract.migrations import Migration, Versions
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.database import schema
from batuta.stores.postgres.database.errors import RowLocked
from batuta.stores.postgres.database.repeatable import Shipped, Statement, load_repeatable, parse_statements
from batuta.stores.postgres.database.schema import PACKAGE, load_code
from batuta.testing.conformance.kit import live_worker, new_run, start_owned
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection

FOLDER = Path(str(package.__file__)).parent
TEXT = "SELECT prosrc FROM pg_proc WHERE proname = $1 AND pronamespace = 'batuta'::regnamespace"
COUNT = "SELECT count(*) FROM pg_proc WHERE proname = $1 AND pronamespace = 'batuta'::regnamespace"
EDIT = """
    CREATE OR REPLACE FUNCTION batuta.is_suspect(deaths integer, head integer, claimed_head integer)
    RETURNS boolean LANGUAGE sql IMMUTABLE AS 'SELECT false'
"""
WAITING = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND wait_event_type = 'Lock' AND clock_timestamp() - query_start > '100ms'
"""
FIRST = """CREATE OR REPLACE FUNCTION batuta.sample(a integer) RETURNS integer LANGUAGE sql AS $$
SELECT 1
$$;"""


def ship(monkeypatch: pytest.MonkeyPatch, *texts: str, **changes: Any) -> None:
    """Let the code ship these statements besides, in place of shipped ones of the same name."""
    more = [statement for text in texts for statement in parse_statements(text)]
    kept = [one for one in load_repeatable(PACKAGE).statements if one.makes not in {other.makes for other in more}]
    made, comments = [one for one in kept if one.makes], [one for one in kept if not one.makes]
    code = replace(load_code(), repeatable=Shipped(repr(texts), [*made, *more, *comments]), **changes)
    monkeypatch.setattr(schema, "load_code", lambda: code)


@pytest.fixture
async def fresh(postgres_url: str) -> AsyncIterator[PostgresStore]:
    """A store that is not open, on a migrated database."""
    store = PostgresStore(postgres_url)
    yield store
    await store.close()


@pytest.fixture
async def raw(postgres_url: str) -> AsyncIterator[Any]:
    async with connection(postgres_url) as made:
        yield made


async def test_a_changed_function_is_replaced_and_keeps_its_grants(
    fresh: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(monkeypatch, FIRST)
    assert await fresh.migrate(plan=True) == ["functions"]
    assert await fresh.migrate() == ["functions"]
    await raw.execute("REVOKE EXECUTE ON FUNCTION batuta.sample FROM PUBLIC")
    oid = await raw.fetchval("SELECT 'batuta.sample'::regproc::oid")
    ship(monkeypatch, FIRST.replace("SELECT 1", "SELECT 2"))
    assert await fresh.migrate() == ["functions"]
    assert await raw.fetchval("SELECT batuta.sample(0)") == 2
    assert await raw.fetchval("SELECT 'batuta.sample'::regproc::oid") == oid
    assert "=X/" not in str(await raw.fetchval("SELECT proacl FROM pg_proc WHERE oid = $1", oid)).replace(
        "postgres=", ""
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("a integer", "a bigint, b text DEFAULT ''"),
        ("a integer", "b integer"),
        ("RETURNS integer", "RETURNS bigint"),
        ("a integer", "a integer, OUT sample integer"),
    ],
)
async def test_a_function_with_another_signature_takes_the_place_of_the_old_one(
    fresh: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    ship(monkeypatch, FIRST)
    await fresh.migrate()
    ship(monkeypatch, FIRST.replace(old, new) + "\nCOMMENT ON FUNCTION batuta.sample IS 'one of its name';")
    await fresh.migrate()
    assert await raw.fetchval(COUNT, "sample") == 1
    assert await raw.fetchval("SELECT batuta.sample(0)") == 1
    assert await fresh.migrate(repair=True) == []


async def test_a_function_that_is_not_shipped_any_more_is_dropped_and_those_of_others_stay(
    fresh: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    await raw.execute(FIRST.replace("sample", "of_others"))
    ship(monkeypatch, FIRST)
    await fresh.migrate()
    ship(monkeypatch)
    await fresh.migrate()
    assert [await raw.fetchval(COUNT, name) for name in ("sample", "of_others")] == [0, 1]


async def test_a_view_may_lose_a_column(fresh: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for columns in ("namespace, name", "namespace"):
        ship(monkeypatch, f"CREATE OR REPLACE VIEW batuta.few AS SELECT {columns} FROM batuta.marks;")
        assert await fresh.migrate() == ["functions"]
    assert await raw.fetchval("SELECT count(*) FROM pg_attribute WHERE attrelid = 'batuta.few'::regclass") == 1


@pytest.mark.parametrize(
    ("edit", "named"),
    [
        (EDIT, "function is_suspect"),
        ("ALTER FUNCTION batuta.is_suspect SET work_mem = '1MB'", "function is_suspect"),
        ("DROP FUNCTION batuta.is_suspect", "function is_suspect"),
        ("ALTER TABLE batuta.audit DISABLE TRIGGER audit_stays", "trigger audit_stays"),
        ("DROP TRIGGER audit_stays ON batuta.audit", "trigger audit_stays"),
        ("CREATE OR REPLACE VIEW batuta.batuta_audit AS SELECT *, 1 AS one FROM batuta.audit", "view batuta_audit"),
    ],
)
async def test_an_edit_in_the_database_is_named_and_undone(
    fresh: PostgresStore, raw: Any, edit: str, named: str
) -> None:
    if "VIEW" in edit:
        await raw.execute("DROP VIEW batuta.batuta_audit")
    await raw.execute(edit)
    said = [f"functions (edited in the database: {named})"]
    assert await fresh.migrate() == []  # as `connect` does: an operator's emergency fix stays until `batuta migrate`
    assert await fresh.migrate(plan=True, repair=True) == said
    assert await fresh.migrate(repair=True) == said
    assert await fresh.migrate(repair=True) == []
    assert await raw.fetchval("SELECT tgenabled FROM pg_trigger WHERE tgname = 'audit_stays'") == b"O"


async def test_the_search_path_does_not_look_like_an_edit(postgres_url: str, raw: Any) -> None:
    name = await raw.fetchval("SELECT current_database()")
    await raw.execute(f"ALTER DATABASE {name} SET search_path = batuta, public")
    store = PostgresStore(postgres_url)
    assert await store.migrate(repair=True) == []
    await store.close()


async def test_a_store_refuses_functions_of_another_build(
    fresh: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(monkeypatch, FIRST)
    with pytest.raises(SchemaMismatch, match=r"functions in the database are not those of this Batuta.*batuta migrate"):
        await fresh.open()


async def test_functions_are_replaced_while_a_worker_holds_rows(
    store: PostgresStore, postgres_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither `migrate` nor a transaction that has called functions and locked runs waits for the other."""
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    ship(monkeypatch, FIRST)
    other = PostgresStore(f"{postgres_url}?lock_timeout=1")
    async with raw.transaction():
        await raw.fetch("SELECT batuta.lock_runs('default', ARRAY(SELECT run_id FROM batuta.runs))")
        assert await other.migrate() == ["functions"]
    assert await pen.write(store, worker) is None
    await store.start(new_run())
    assert len((await store.claim(worker, 10)).stored_runs) == 1
    await other.close()


async def test_a_table_that_is_held_is_named_and_nothing_is_changed(
    postgres_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = Migration("0099_more", "ALTER TABLE batuta.runs ADD COLUMN more text", "x")
    ship(monkeypatch, FIRST, migrations=[*load_code().migrations, add])
    store = PostgresStore(f"{postgres_url}?lock_timeout=0.2")
    async with raw.transaction():
        await raw.execute("LOCK TABLE batuta.runs IN ROW SHARE MODE")
        with pytest.raises(RowLocked, match=r"lock_timeout=0.2 seconds; nothing was changed: .*batuta migrate"):
            await store.migrate()
    assert await raw.fetchval(COUNT, "sample") == 0
    assert await store.migrate() == ["0099_more", "functions"]
    await store.close()


async def test_a_second_migration_waits_for_the_first_and_does_nothing(
    postgres_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(monkeypatch, FIRST)
    stores = [PostgresStore(f"{postgres_url}?lock_timeout=0.05") for _ in range(2)]
    async with raw.transaction():
        await raw.execute("SELECT pg_advisory_xact_lock(hashtextextended('batuta', 11))")
        both = [asyncio.ensure_future(store.migrate()) for store in stores]
        async with connection(postgres_url) as watcher, asyncio.timeout(DEADLINE_SECONDS):
            while await watcher.fetchval(WAITING) < 2:  # for longer than lock_timeout, which is for tables
                await asyncio.sleep(0.01)
    assert sorted(await asyncio.gather(*both)) == [[], ["functions"]]
    for store in stores:
        await store.close()


async def test_a_user_who_does_not_own_the_schema_cannot_migrate(
    postgres_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    role = f"stranger_{postgres_url.rpartition('_')[2]}"
    await raw.execute(f"CREATE ROLE {role} LOGIN PASSWORD 'x'; GRANT USAGE ON SCHEMA batuta TO {role}")
    await raw.execute(f"GRANT SELECT ON ALL TABLES IN SCHEMA batuta TO {role}")
    try:
        host = postgres_url.rpartition("@")[2]
        store = PostgresStore(f"postgresql://{role}:x@{host}")
        assert await store.migrate(repair=True) == []  # nothing is to be done
        ship(monkeypatch, FIRST)
        assert await store.migrate(plan=True) == ["functions"]
        with pytest.raises(StoreUnavailable, match=r"'allowances' and \d+ more belong to .*as the owner of the schema"):
            await store.migrate()
        await store.close()
        nowhere = PostgresStore(f"postgresql://{role}:x@{host}", schema="elsewhere")
        with pytest.raises(StoreUnavailable, match=r'schema "elsewhere".*permission denied.*nothing was changed'):
            await nowhere.migrate()
        await nowhere.close()
    finally:
        await raw.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


# -- versions


NEWER = Migration("0099_more", "ALTER TABLE batuta.runs ADD COLUMN more text NOT NULL DEFAULT ''", "x")


async def test_code_one_version_back_works_on_a_newer_schema_and_newer_code_on_an_older_one(
    store: PostgresStore, postgres_url: str, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await live_worker(store)
    old = await start_owned(store, worker, "old")
    with monkeypatch.context() as newer:
        ship(
            newer,
            FIRST,
            migrations=[*load_code().migrations, NEWER],
            versions=Versions(schema=2, oldest_code=1, oldest_schema=1),
        )
        ahead = PostgresStore(postgres_url)
        await ahead.open()  # newer code, older schema
        other = await live_worker(ahead)
        new = await start_owned(ahead, other, "new")
        assert await ahead.migrate() == ["0099_more", "functions"]
    behind = PostgresStore(postgres_url)
    await behind.open()  # older code, newer schema
    assert await behind.migrate(repair=True) == []  # which it leaves alone
    assert await raw.fetchval("SELECT version FROM batuta.schema_version") == 2
    for pen, owner in ((old, worker), (new, other)):
        for one in (store, ahead, behind):
            assert await pen.write(one, owner) is None
    await behind.start(new_run())
    assert len((await behind.claim(worker, 10)).stored_runs) == 1
    async with behind.heartbeat(worker.worker_id) as heartbeat:
        assert (await heartbeat.beat(worker, reap=False)).alive
    await behind.close()
    await ahead.close()


async def test_code_that_is_too_old_is_refused_at_open_at_migrate_and_at_its_next_heartbeat(
    store: PostgresStore, postgres_url: str, raw: Any
) -> None:
    worker = await live_worker(store)
    until = await raw.fetchval("SELECT lease_until FROM batuta.workers")
    await raw.execute("UPDATE batuta.schema_version SET version = 3, oldest_code = 2")
    other = PostgresStore(postgres_url)
    async with store.heartbeat(worker.worker_id) as heartbeat:
        for call in (other.open, other.migrate, lambda: heartbeat.beat(worker, reap=True)):
            with pytest.raises(
                SchemaMismatch, match=r"version 3, .* version 2 or later; this Batuta has version 1: deploy"
            ):
                await call()
    assert await raw.fetchval("SELECT lease_until FROM batuta.workers") == until
    await other.close()


async def test_a_schema_that_is_too_old_is_refused_until_it_is_migrated(
    fresh: PostgresStore, raw: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    ship(monkeypatch, versions=Versions(schema=3, oldest_code=3, oldest_schema=2))
    with pytest.raises(SchemaMismatch, match=r"schema version 1; this Batuta has version 3 .*run `batuta migrate`"):
        await fresh.open()
    await fresh.migrate()
    await fresh.open()
    assert tuple(await raw.fetchrow("SELECT version, oldest_code FROM batuta.schema_version")) == (3, 3)


# -- the files


async def test_the_server_finds_no_fault_in_any_function(postgres_url: str, raw: Any) -> None:
    """`migrate` makes them without that check: they call each other."""
    await raw.execute("SET check_function_bodies = on")
    for statement in load_repeatable(PACKAGE).statements:
        await raw.execute(statement.sql)


def test_numbered_files_keep_to_tables() -> None:
    texts = {file.name: file.read_text() for file in (FOLDER / "schema").glob("*.sql")}
    assert set(texts) >= {"0001_baseline.sql", "adopt.sql"}
    assert not [
        name for name, text in texts.items() if re.search(r"(?i)^CREATE.*(FUNCTION|VIEW|TRIGGER)\b", text, re.M)
    ]


def test_a_name_stands_once() -> None:
    made = [one.makes for one in load_repeatable(PACKAGE).statements if one.makes]
    assert len(made) > 100
    assert len(set(made)) == len(made)


@pytest.mark.parametrize(
    "text", ["CREATE TABLE batuta.runs (a int);", "CREATE FUNCTION batuta.f() RETURNS int;", "DROP VIEW batuta.v;"]
)
def test_other_statements_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="only CREATE OR REPLACE"):
        parse_statements(text)
    assert parse_statements("-- nothing\n\n") == []
    assert parse_statements("COMMENT ON VIEW batuta.v IS\n'x';") == [
        Statement("view", "v", "COMMENT ON VIEW batuta.v IS\n'x';")
    ]
