"""Databases older than the baseline are adopted: their tables become those of a new one, and their runs go on."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from batuta import connect
from batuta.errors import SchemaMismatch
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.database.schema import load_code
from batuta.stores.sqlite.store import SqliteStore
from batuta.verify import verify
from tests.stores.older.flows import add, die_in_triple, double, go, triple, wait_for_go
from tests.stores.older_databases import COMMITS, catalog, make_older_postgres, make_older_sqlite, objects
from tests.stores.postgres.raw import connection

Store = PostgresStore | SqliteStore


@pytest.fixture(params=COMMITS)
def commit(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["sqlite", "postgres"])
async def older_url(request: pytest.FixtureRequest, commit: str, tmp_path: Path) -> str:
    """A database as it was left at a commit, with runs."""
    if request.param == "sqlite":
        make_older_sqlite(tmp_path / "batuta.db", commit, runs="runs.sql")
        return f"sqlite:///{tmp_path / 'batuta.db'}"
    url = str(request.getfixturevalue("empty_postgres_url"))
    await make_older_postgres(url, commit, runs="runs.sql")
    return url


def store_at(url: str) -> Store:
    return SqliteStore(Path(url.removeprefix("sqlite:///"))) if url.startswith("sqlite") else PostgresStore(url)


async def test_an_adopted_postgresql_database_equals_a_new_one(
    empty_postgres_url: str, postgres_url: str, commit: str
) -> None:
    await make_older_postgres(empty_postgres_url, commit)
    store = PostgresStore(empty_postgres_url)
    await store.migrate()
    await store.close()
    adopted, new = await catalog(empty_postgres_url), await catalog(postgres_url)
    for kind in new:
        assert len(new[kind]) > 3
        assert adopted[kind] == new[kind]
    async with connection(empty_postgres_url) as raw:
        applied = [row["name"] for row in await raw.fetch("SELECT name FROM batuta.migrations ORDER BY name")]
    assert applied == [migration.name for migration in load_code().migrations]


async def test_an_adopted_sqlite_file_equals_a_new_one(tmp_path: Path, commit: str) -> None:
    older, new = tmp_path / "older.db", tmp_path / "new.db"
    make_older_sqlite(older, commit)
    for path in (older, new):
        await SqliteStore(path).migrate()
    assert len(objects(new)) > 30
    assert objects(older) == objects(new)


async def test_the_plan_names_what_is_adopted(older_url: str) -> None:
    store = store_at(older_url)
    plan = await store.migrate(plan=True)
    assert plan[0].startswith("0001_baseline (adopting 0001_")
    assert await store.migrate() == plan
    assert await store.migrate(repair=True) == []
    await store.close()


async def test_an_older_database_is_not_opened_before_it_is_migrated(older_url: str) -> None:
    store = store_at(older_url)
    with pytest.raises(SchemaMismatch, match=r"older Batuta .*run `batuta migrate`, which keeps all runs"):
        await store.open()
    await store.close()


async def test_runs_of_an_older_database_go_on(older_url: str) -> None:
    async with connect(older_url) as batuta:
        assert await (await batuta.get("done")).result() == 7
        await (await batuta.get("waiting")).signal(go, 10)
        await (await batuta.get("begun-never")).signal(go, 100)
        async with batuta.worker(
            workflows=[wait_for_go, die_in_triple], activities=[add, triple], jobs=[double], queues=["default", "later"]
        ):
            ids = ("waiting", "begun-never", "dying", "enqueued")
            results = {id: await (await batuta.get(id)).result() for id in ids}
    assert results == {"waiting": 13, "begun-never": 103, "dying": 9, "enqueued": 42}
    store = store_at(older_url)
    await store.open()
    report = await verify(store, [wait_for_go, die_in_triple])
    await store.close()
    assert report.violations == []


async def test_an_unknown_older_database_is_refused_and_not_changed(empty_postgres_url: str, tmp_path: Path) -> None:
    await make_older_postgres(empty_postgres_url, COMMITS[0])
    make_older_sqlite(tmp_path / "batuta.db", COMMITS[0])
    async with connection(empty_postgres_url) as raw:
        await raw.execute("DELETE FROM batuta.migrations WHERE name > '0012'")
        before = await catalog(empty_postgres_url)
    with closing(sqlite3.connect(tmp_path / "batuta.db")) as file, file:
        file.execute("UPDATE migrations SET checksum = 'x' WHERE name LIKE '0002%'")
    for store in (PostgresStore(empty_postgres_url), SqliteStore(tmp_path / "batuta.db")):
        for plan in (True, False):
            with pytest.raises(SchemaMismatch, match="cannot adopt: install the version"):
                await store.migrate(plan=plan)
        await store.close()
    assert await catalog(empty_postgres_url) == before
