"""The database URL: what is ours in it, what is the driver's, and what nobody may see."""

from __future__ import annotations

import subprocess
import sys

import pytest

from batuta.errors import InvalidURL
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.address import parse_address
from batuta.testing.conformance.kit import live_worker, start_owned


def test_our_options_are_taken_out_and_the_others_stay() -> None:
    address = parse_address(
        "postgres://u:p@db:6432/shop?schema=work&sslmode=require&statement_cache_size=0&pool_size=9"
    )
    assert address.dsn == "postgresql://u:p@db:6432/shop?sslmode=require"
    assert (address.schema, address.statement_cache_size, address.pool_size) == ("work", 0, 9)


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("postgresql://u:p@db:6432/shop", "db:6432/shop"),
        ("postgresql://db/shop", "db:5432/shop"),
        ("postgresql://u:p@[::1]:6432/shop", "[::1]:6432/shop"),
        ("postgresql://u:p@/shop?host=/run/pg&port=7", "/run/pg:7/shop"),
        ("postgresql:///shop", "localhost:5432/shop"),
    ],
)
def test_the_place_is_named_without_user_and_password(url: str, place: str) -> None:
    assert parse_address(url).place == place


@pytest.mark.parametrize(
    "url",
    [
        "mysql://u:hush@db/shop",
        "postgresql://u:hush@db:port/shop",
        "postgresql://u:hush@db/shop?schema=a%22b",
        "postgresql://u:hush@db/shop?schema=",
        "postgresql://u:hush@db/shop?pool_size=0",
        "postgresql://u:hush@db/shop?statement_cache_size=many",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        PostgresStore(url)
    assert "hush" not in str(caught.value)


def test_the_schema_stands_in_every_statement() -> None:
    address = parse_address("postgresql://db/shop", schema="Work")
    text = address.qualify("SELECT batuta.batuta_now(), current_setting('testing.batuta_shift') FROM batuta.runs")
    assert text == 'SELECT "Work".batuta_now(), current_setting(\'testing.batuta_shift\') FROM "Work".runs'


async def test_a_pooler_is_served_without_prepared_statements(postgres_url: str) -> None:
    store = PostgresStore(f"{postgres_url}?statement_cache_size=0")
    await store.open()
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(3)]
    assert await store.commit(worker.worker_id, [pen.change(2) for pen in pens]) == {}
    assert await pens[0].write(store, worker) is not None  # the pen does not know that its change is written
    session = await store._commit_session.connect()
    assert await session.fetchval("SELECT count(*) FROM pg_prepared_statements") == 0
    assert await session.fetchval("SHOW plan_cache_mode") == "auto"
    await store.close()


def test_a_missing_driver_is_named() -> None:
    program = (
        "import sys; sys.modules['asyncpg'] = None\n"
        "from batuta.errors import MissingExtra\n"
        "try:\n    import batuta.stores.postgres\n"
        "except MissingExtra as error:\n    assert 'batuta[postgres]' in str(error), error\n"
        "else:\n    raise SystemExit('not refused')\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
