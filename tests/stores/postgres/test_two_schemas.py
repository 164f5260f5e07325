"""Two installations in one database, each in a schema of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from batuta import RunState, activity, connect, workflow
from batuta.errors import SchemaMismatch, UnknownRun
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import live_worker, new_run
from tests.stores.postgres.raw import connection
from tests.stores.postgres.test_heart import OUR_LOCKS

PATIENCE = 30.0


@pytest.fixture
async def stores(empty_postgres_url: str) -> AsyncIterator[list[PostgresStore]]:
    made = [PostgresStore(f"{empty_postgres_url}?schema={name}") for name in ("shop", "Bank_2")]
    for store in made:
        await store.migrate()
        await store.open()
    yield made
    for store in made:
        await store.close()


async def test_all_that_is_made_is_made_in_the_schema(stores: list[PostgresStore], empty_postgres_url: str) -> None:
    async with connection(empty_postgres_url) as raw:
        found = await raw.fetch(
            """
            SELECT n.nspname AS schema, count(*) AS things FROM (
                SELECT relnamespace AS oid FROM pg_class UNION ALL SELECT pronamespace FROM pg_proc
            ) t JOIN pg_namespace n ON n.oid = t.oid
            WHERE n.nspname NOT IN ('pg_catalog', 'information_schema', 'pg_toast')
            GROUP BY n.nspname
            """
        )
    assert {row["schema"] for row in found} == {"shop", "Bank_2"}
    assert len({row["things"] for row in found}) == 1


async def test_ids_and_runs_of_one_are_unknown_to_the_other(stores: list[PostgresStore]) -> None:
    shop, bank = stores
    first, second = [(await store.start(new_run("same")))[0] for store in stores]
    assert first.run_id != second.run_id
    with pytest.raises(UnknownRun):
        await bank.get_run(first.run_id)
    assert len((await shop.claim(await live_worker(shop), 10)).stored_runs) == 1
    assert (await bank.get("same")).state is RunState.PENDING


async def test_hints_of_one_are_not_heard_in_the_other(stores: list[PostgresStore], empty_postgres_url: str) -> None:
    shop, bank = stores
    same = PostgresStore(f"{empty_postgres_url}?schema=shop")
    await same.open()
    near, far = Ear(same), Ear(bank)
    for ear in (near, far):
        await ear.hears(lambda hint: hint.closed is None)
        ear.hints.clear()
    await shop.start(new_run())
    await near.hears(lambda hint: hint.due)
    assert far.hints == []
    await same.close()


async def test_the_lock_of_a_worker_is_not_that_of_its_namesake(
    stores: list[PostgresStore], empty_postgres_url: str
) -> None:
    shop, bank = stores
    worker = await live_worker(shop)
    await bank.register(worker)
    async with (
        shop.heartbeat(worker.worker_id),
        bank.heartbeat(worker.worker_id),
        connection(empty_postgres_url) as raw,
    ):
        assert await raw.fetchval(OUR_LOCKS) == 2


async def test_a_schema_without_tables_is_named_and_not_used(
    stores: list[PostgresStore], empty_postgres_url: str
) -> None:
    other = PostgresStore(f"{empty_postgres_url}?schema=nothing")
    with pytest.raises(SchemaMismatch, match="batuta migrate"):
        await other.open()
    await other.close()


@activity
async def add(a: int, b: int) -> int:
    return a + b


@workflow
async def total(n: int) -> int:
    return await add(n, 1)


async def test_runs_of_both_go_on_side_by_side(empty_postgres_url: str) -> None:
    urls = [f"{empty_postgres_url}?schema={name}" for name in ("shop", "bank")]
    async with connect(urls[0]) as shop, connect(urls[1]) as bank:
        async with (
            shop.worker(workflows=[total], activities=[add], grace=1.0),
            bank.worker(workflows=[total], activities=[add], grace=1.0),
        ):
            for number, client in enumerate((shop, bank)):
                handle = await client.start(total, number, id="same")
                assert await handle.result(PATIENCE) == number + 1
                assert await client.count() == 1
