"""The database URL: what is ours in it, what is the driver's, and what nobody may see."""

from __future__ import annotations

import subprocess
import sys
from io import StringIO
from urllib.parse import quote

import pytest
from rich.console import Console

from batuta import connect
from batuta.connect import store_for
from batuta.errors import InvalidURL
from batuta.settings import Settings
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.database.address import parse_address
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
        "postgresql://u:hush@db/shop?lock_timeout=soon",
        "postgresql://u:hush@db/shop?statement_timeout=0",
        "postgresql://u:hush@db/shop?lock_timeout=nan",
        "postgresql://u:hush@db/shop?busy_wait=-0.001",
        "postgresql://u:hush@db/shop?busy_wait=1",
        "postgresql://u@pooler/shop?direct_url=mysql%3A%2F%2Fu%3Ahush%40db%2Fshop",
        "postgresql://u@pooler/shop?direct_url=postgresql%3A%2F%2Fu%3Ahush%40db%2Fshop%3Fstatement_cache_size%3D0",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_the_password(url: str) -> None:
    with pytest.raises(InvalidURL) as caught:
        PostgresStore(url)
    assert "hush" not in str(caught.value)


def test_timeouts_are_seconds_and_have_defaults() -> None:
    plain = parse_address("postgresql://db/shop")
    assert (plain.statement_timeout, plain.lock_timeout) == (30.0, 10.0)
    chosen = parse_address("postgresql://db/shop?statement_timeout=2.5&lock_timeout=0.5")
    assert (chosen.statement_timeout, chosen.lock_timeout) == (2.5, 0.5)
    assert plain.busy_wait == 0.001
    assert parse_address("postgresql://db/shop?busy_wait=0").busy_wait == 0


def test_a_direct_address_makes_the_url_a_poolers() -> None:
    direct = "postgresql://owner:p@db:5432/shop"
    address = parse_address(f"postgresql://u@pooler:6432/shop?schema=work&lock_timeout=1&direct_url={quote(direct)}")
    assert address.is_pooled
    assert address.for_sessions is address.direct
    assert address.direct is not None
    assert (address.direct.dsn, address.direct.schema, address.direct.lock_timeout) == (direct, "work", 1.0)
    alone = parse_address("postgresql://u@pooler:6432/shop?statement_cache_size=0")
    assert (alone.is_pooled, alone.for_sessions) == (True, None)
    plain = parse_address("postgresql://u@db/shop")
    assert plain.for_sessions is plain


def test_the_environment_fills_in_what_the_url_leaves_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_DATABASE_SCHEMA", "work")
    monkeypatch.setenv("BATUTA_DATABASE_LOCK_TIMEOUT", "3")
    monkeypatch.setenv("BATUTA_DATABASE_BUSY_WAIT", "0.002")
    monkeypatch.setenv("BATUTA_DATABASE_STATEMENT_TIMEOUT", "9")
    monkeypatch.setenv("BATUTA_DATABASE_DIRECT_URL", "postgresql://db/shop")
    store = store_for("postgresql://pooler/shop?statement_timeout=5")
    assert isinstance(store, PostgresStore)
    assert (store.address.schema, store.address.lock_timeout, store.address.statement_timeout) == ("work", 3.0, 5.0)
    assert store.address.direct is not None
    assert store.address.busy_wait == 0.002
    assert Settings.strange_variables() == []


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


@pytest.mark.parametrize("option", ["no_such_setting=1", "sslmode=perhaps", "work_mem=much"])
async def test_an_option_that_driver_or_server_does_not_take_is_named(postgres_url: str, option: str) -> None:
    with pytest.raises(InvalidURL, match=option.partition("=")[0]):
        await PostgresStore(f"{postgres_url}?{option}").open()


def test_an_address_shows_no_password_to_anybody() -> None:
    address = parse_address(
        "postgresql://ada:hunter2@pool/shop?direct_url=postgresql%3A%2F%2Fada%3Ahunter2%40db%2Fshop"
    )
    assert "hunter2" in address.dsn
    rich = StringIO()
    Console(file=rich, width=200).print([address])
    for shown in (repr(address), str(address), f"{[address]}", repr(address.direct), rich.getvalue()):
        assert "hunter2" not in shown
        assert "shop" in shown


def test_a_url_that_names_no_store_is_not_quoted() -> None:
    with pytest.raises(InvalidURL) as raised:
        connect("//ada:hunter2@db/shop")
    assert "hunter2" not in str(raised.value)
