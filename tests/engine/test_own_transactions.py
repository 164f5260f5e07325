"""Jobs and workflows in the caller's own transaction: on PostgreSQL and SQLite, awaited and blocking."""

# covers B-11
from __future__ import annotations

import asyncio
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from sqlalchemy.orm import Session

from batuta import (
    AlreadyStarted,
    QuotaExceeded,
    RunFailed,
    RunState,
    TransactionFailed,
    UnknownRun,
    WrongTransaction,
    WrongWorkflow,
    batch_info,
    connect,
    job,
    start_child,
    sync,
    workflow,
)
from batuta.codecs import Encryption, Keys
from batuta.engine.backend import quotas
from tests.engine.arena import until_state
from tests.stores.postgres.callers import ASYNC, BLOCKING, dialect

PATIENCE = 30.0
pytestmark = pytest.mark.usefixtures("real_time")


@job
async def double(number: int) -> int:
    return 2 * number


@job
async def told(what: str) -> str:
    batch = await batch_info()
    return f"{what}: {batch.completed} of {batch.total}"


@workflow
async def wait_and_double(number: int) -> int:
    await asyncio.sleep(0.01)
    return 2 * number


def worker(client: Any) -> Any:
    return client.worker(jobs=[double, told], workflows=[wait_and_double], grace=1.0)


@pytest.mark.parametrize("driver", ASYNC)
async def test_it_runs_when_the_transaction_commits(postgres_url: str, driver: str) -> None:
    async with connect(postgres_url) as client, worker(client), ASYNC[driver](postgres_url) as caller:
        await caller.begin()
        handle = await client.enqueue(double, 21, transaction=caller.given)
        with pytest.raises(UnknownRun):
            await client.get(handle.id)
        await caller.commit()
        assert await handle.result(PATIENCE) == 42


@pytest.mark.parametrize("driver", BLOCKING)
def test_it_runs_when_the_transaction_of_blocking_code_commits(postgres_url: str, driver: str) -> None:
    def caller() -> Iterator[Any]:
        """Made and used in this thread, which has no event loop."""
        context = BLOCKING[driver](postgres_url)
        yield _step(context.__aenter__())
        _step(context.__aexit__(None, None, None))

    with sync.connect(postgres_url) as client, worker(client):
        for made in caller():
            handle = client.enqueue(double, 21, transaction=made.given)
            with pytest.raises(UnknownRun):
                client.get(handle.id)
            _step(made.commit())
            assert handle.result(PATIENCE) == 42
            started = client.start(wait_and_double, 4, transaction=made.given)
            batch = client.enqueue_many([double.call(1)], on_done=told.call("all"), transaction=made.given)
            _step(made.commit())
            assert started.result(PATIENCE) == 8
            assert batch.done is not None
            assert batch.done.result(PATIENCE) == "all: 1 of 1"


def _step(coroutine: Any) -> Any:
    """Go through what never waits."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("it waits")


async def test_workflows_and_batches_too(postgres_url: str) -> None:
    async with connect(postgres_url) as client, worker(client), ASYNC["asyncpg"](postgres_url) as caller:
        async with caller.given.transaction():
            started = await client.start(wait_and_double, 4, id="w", tags={"a": "b"}, transaction=caller.given)
            calls = [double.call(number) for number in range(3)]
            batch = await client.enqueue_many(calls, on_done=told.call("all"), transaction=caller.given)
            alone = await client.enqueue_many([], on_done=told.call("none"), transaction=caller.given)
            nothing = await client.enqueue_many([], transaction=caller.given)
        assert await started.result(PATIENCE) == 8
        assert [await one.result(PATIENCE) for one in batch] == [0, 2, 4]
        assert await batch.done.result(PATIENCE) == "all: 3 of 3"  # type: ignore[union-attr]  # on_done was given
        assert await alone.done.result(PATIENCE) == "none: 0 of 0"  # type: ignore[union-attr]  # the same
        assert list(nothing) == []


async def test_a_taken_id_is_judged_by_what_the_transaction_sees(postgres_url: str) -> None:
    async with connect(postgres_url) as client, ASYNC["psycopg"](postgres_url) as caller:
        given = caller.given
        first = await client.start(wait_and_double, 4, id="w", if_exists="same", transaction=given)
        again = await client.start(wait_and_double, 4, id="w", if_exists="same", transaction=given)
        assert (first.is_new, again.is_new, again.run_id) == (True, False, first.run_id)
        with pytest.raises(AlreadyStarted, match="other arguments"):
            await client.start(wait_and_double, 5, id="w", if_exists="same", transaction=given)
        with pytest.raises(WrongWorkflow):
            await client.enqueue(double, 4, id="w", transaction=given)
        await caller.commit()
        async with worker(client):
            assert await first.result(PATIENCE) == 8
        with pytest.raises(AlreadyStarted, match="other arguments"):
            await client.start(wait_and_double, 5, id="w", if_exists="same", transaction=given)


@pytest.mark.parametrize("codec", [None, Encryption(Keys.new("k1"))])
def test_on_sqlite_too_also_for_blocking_code(sqlite_url: str, tmp_path: Path, codec: Any) -> None:
    file = tmp_path / "batuta.db"
    with sync.connect(sqlite_url, codec=codec) as client, closing(sqlite3.connect(file)) as connection:
        with client.transaction(connection):
            first = client.start(wait_and_double, 4, id="w", transaction=connection)
            assert first.is_new
            assert not client.start(wait_and_double, 4, id="w", if_exists="same", transaction=connection).is_new
            with pytest.raises(AlreadyStarted, match="other arguments"):
                client.start(wait_and_double, 5, id="w", if_exists="same", transaction=connection)
            with pytest.raises(WrongWorkflow):
                client.enqueue(double, 4, id="w", transaction=connection)
        with worker(client):
            assert first.result(PATIENCE) == 8
        with client.transaction(connection), pytest.raises(AlreadyStarted, match="other arguments"):
            client.start(wait_and_double, 5, id="w", if_exists="same", transaction=connection)
        with pytest.raises(WrongWorkflow):
            client.get("w", double)


class Broken(Exception):
    """Until it is mended."""


async def _retried_child(client: Any) -> None:
    """A child "child" that failed, and that was retried without its parent. It waits."""
    broken = True

    @workflow(name="child", fails=[Broken])
    async def child() -> None:
        if broken:
            raise Broken
        await asyncio.sleep(3600)

    @workflow
    async def parent() -> None:
        await (await start_child(child, id="child")).result()

    async with client.worker(workflows=[parent, child], grace=1.0):
        with pytest.raises(RunFailed):
            await (await client.start(parent)).result(PATIENCE)
        broken = False
        await (await client.get("child")).reset(-1)
        await until_state(await client.get("child"), RunState.WAITING)


@workflow(name="child")
async def a_child() -> None: ...


@pytest.mark.parametrize("codec", [None, Encryption(Keys.new("k1"))])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_the_id_of_a_child_that_was_retried_alone_is_judged_too(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, codec: Any
) -> None:
    """Also where its start is encrypted, which belongs to the run that its parent began."""
    url = request.getfixturevalue(f"{kind}_url")
    async with connect(url, codec=codec) as client:
        await _retried_child(client)
    async with connect(url, codec=codec) as client:  # it remembers nothing
        if kind == "postgres":
            async with ASYNC["asyncpg"](url) as caller, caller.given.transaction():
                again = await client.start(a_child, id="child", if_exists="same", transaction=caller.given)
        else:
            with closing(sqlite3.connect(tmp_path / "batuta.db")) as connection:
                async with client.transaction(connection):
                    again = await client.start(a_child, id="child", if_exists="same", transaction=connection)
        assert not again.is_new


async def test_nothing_runs_of_what_was_rolled_back(postgres_url: str) -> None:
    async with connect(postgres_url) as client, worker(client), ASYNC["asyncpg"](postgres_url) as caller:
        transaction = caller.given.transaction()
        await transaction.start()
        lost = await client.enqueue(double, 1, unique="k", transaction=caller.given)
        await transaction.rollback()
        async with caller.given.transaction():
            kept = await client.enqueue(double, 2, unique="k", transaction=caller.given)
        assert await kept.result(PATIENCE) == 4
        with pytest.raises(UnknownRun):
            await lost.describe()
        assert await client.count(kind="job") == 1


async def test_a_failed_transaction_is_named_and_nothing_runs(postgres_url: str) -> None:
    async with connect(postgres_url) as client, ASYNC["asyncpg"](postgres_url) as caller:
        await caller.begin()
        with pytest.raises(asyncpg.PostgresError):
            await caller.execute("SELECT 1 / 0")
        with pytest.raises(TransactionFailed, match="roll it back"):
            await client.enqueue(double, 1, transaction=caller.given)
        await caller.commit()
        assert await client.count(kind="any") == 0


async def test_a_unique_job_that_waits_is_given_back(postgres_url: str) -> None:
    async with connect(postgres_url) as client, ASYNC["asyncpg"](postgres_url) as caller:
        first = await client.enqueue(double, 1, unique="k", delay=3600)
        async with caller.given.transaction():
            again = await client.enqueue(double, 1, unique="k", transaction=caller.given)
        assert again.run_id == first.run_id


async def test_a_debounced_job_says_what_the_last_call_said(postgres_url: str) -> None:
    async with connect(postgres_url) as client, ASYNC["asyncpg"](postgres_url) as caller:
        first = await client.enqueue(double, 1, unique="k", debounce=0.2)
        async with caller.given.transaction():
            last = await client.enqueue(double, 5, unique="k", debounce=0.2, transaction=caller.given)
        async with worker(client):
            assert await last.result(PATIENCE) == 10
        assert last.run_id == first.run_id


async def test_a_job_with_a_key_in_an_open_transaction_does_not_hold_up_others(postgres_url: str) -> None:
    async with connect(postgres_url) as client, worker(client), ASYNC["asyncpg"](postgres_url) as caller:
        async with caller.given.transaction():
            mine = await client.enqueue(double, 1, key="a", transaction=caller.given)
            theirs = await client.enqueue(double, 2, key="a")
            assert await theirs.result(PATIENCE) == 4
        assert await mine.result(PATIENCE) == 2


def test_blocking_connections_belong_to_blocking_clients_and_async_ones_to_async_ones(postgres_url: str) -> None:
    async def main() -> None:
        async with connect(postgres_url) as client:
            with psycopg.connect(postgres_url) as blocking:
                with pytest.raises(WrongTransaction, match="would hold up this event loop"):
                    await client.enqueue(double, 1, transaction=blocking)
        other = await asyncpg.connect(postgres_url)
        await asyncio.to_thread(refused, other)
        await other.close()

    def refused(connection: Any) -> None:
        with sync.connect(postgres_url) as client:
            with pytest.raises(WrongTransaction, match="belongs to an event loop"):
                client.enqueue(double, 1, transaction=connection)
            assert client.count(kind="any") == 0

    asyncio.run(main())


def test_memory_has_no_transactions_for_others() -> None:
    with sync.connect("memory://") as client, closing(sqlite3.connect(":memory:")) as connection:
        with pytest.raises(WrongTransaction, match="memory://"):
            client.enqueue(double, 1, transaction=connection)
        with pytest.raises(WrongTransaction, match="memory://"), client.transaction(connection):
            pass


def test_on_postgresql_callers_begin_their_transactions_themselves(postgres_url: str) -> None:
    with sync.connect(postgres_url) as client, psycopg.connect(postgres_url) as connection:
        with pytest.raises(WrongTransaction, match="begin the transaction yourself"), client.transaction(connection):
            pass


def test_a_session_that_lost_its_flush_is_named(postgres_url: str) -> None:
    engine = sqlalchemy.create_engine(dialect(postgres_url, "psycopg"))
    with sync.connect(postgres_url) as client, Session(engine) as session:
        with pytest.raises(sqlalchemy.exc.DBAPIError):
            session.execute(sqlalchemy.text("SELECT 1 / 0"))
        with pytest.raises(TransactionFailed):
            client.enqueue(double, 1, transaction=session)
        session.rollback()
        handle = client.enqueue(double, 1, transaction=session)
        session.commit()
        assert client.get(handle.id).describe().state == "pending"
    engine.dispose()


# -- SQLite


async def test_on_sqlite_a_job_and_the_callers_rows_are_there_together(sqlite_url: str, tmp_path: Path) -> None:
    async with connect(sqlite_url) as client, worker(client):
        with closing(sqlite3.connect(tmp_path / "batuta.db")) as connection:
            async with client.transaction(connection):
                connection.execute("CREATE TABLE orders (id INTEGER)")
                connection.execute("INSERT INTO orders VALUES (1)")
                handle = await client.enqueue(double, 21, key="a", transaction=connection)
                batch = await client.enqueue_many([double.call(1)], on_done=told.call("all"), transaction=connection)
            assert await handle.result(PATIENCE) == 42
            assert await batch.done.result(PATIENCE) == "all: 1 of 1"  # type: ignore[union-attr]  # on_done was given
            try:
                async with client.transaction(connection):
                    connection.execute("INSERT INTO orders VALUES (2)")
                    await client.enqueue(double, 1, id="lost", transaction=connection)
                    raise LookupError
            except LookupError:
                pass
            assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
            with pytest.raises(UnknownRun):
                await client.get("lost")


def test_on_sqlite_blocking_code_does_the_same(sqlite_url: str, tmp_path: Path) -> None:
    with sync.connect(sqlite_url) as client, worker(client):
        with closing(sqlite3.connect(tmp_path / "batuta.db")) as connection:
            with client.transaction(connection):
                connection.execute("CREATE TABLE orders (id INTEGER)")
                handle = client.enqueue(double, 21, transaction=connection)
            assert handle.result(PATIENCE) == 42


# -- quotas hold there, too


@pytest.mark.parametrize("driver", ASYNC)
async def test_a_start_over_a_quota_leaves_the_transaction_as_it_was(postgres_url: str, driver: str) -> None:
    async with connect(postgres_url) as client, ASYNC[driver](postgres_url) as caller:
        await client.quotas.set("starts_per_second", 0.001, burst=2)
        await caller.begin()
        handle = await client.enqueue(double, 21, transaction=caller.given)
        with pytest.raises(QuotaExceeded):
            await client.enqueue_many([double.call(1)] * 2, transaction=caller.given)
        await client.start(wait_and_double, 4, id="w", transaction=caller.given)
        with pytest.raises(QuotaExceeded):
            await client.start(wait_and_double, 4, transaction=caller.given)
        await caller.commit()
        assert {run.id for run in (await client.list(kind="any")).runs} == {handle.id, "w"}


async def test_quotas_need_no_lock_that_the_transaction_holds(
    sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "_SOON", 0.0)  # as if much time had passed after each start
    monkeypatch.setattr(quotas, "_EVERY", 0.0)
    async with connect(sqlite_url) as client:
        await client.quotas.set("starts_per_second", 0.001, burst=20)
        await client.quotas.set("open_runs", 20)
        with closing(sqlite3.connect(tmp_path / "batuta.db")) as connection:
            async with asyncio.timeout(PATIENCE), client.transaction(connection):
                for number in range(20):
                    await client.enqueue(double, number, transaction=connection)
                with pytest.raises(QuotaExceeded):
                    await client.enqueue(double, 20, transaction=connection)
        assert await client.count(kind="job") == 20
    async with connect(sqlite_url) as client:
        assert [round(quota.used or 0) for quota in await client.quotas.list()] == [20, 20]


# -- nothing is imported for it


def test_a_driver_the_caller_has_not_imported_is_not_imported(postgres_url: str) -> None:
    program = (
        "import asyncio, sys, asyncpg, batuta\n"
        "async def main(url):\n"
        "    async with batuta.connect(url) as client:\n"
        "        connection = await asyncpg.connect(url)\n"
        "        async with connection.transaction():\n"
        "            await client.enqueue('x', transaction=connection)\n"
        "        await connection.close()\n"
        "        assert await client.count(kind='job') == 1\n"
        "asyncio.run(main(sys.argv[1]))\n"
        "print(*sys.modules)\n"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", program, postgres_url], capture_output=True, text=True, check=True, timeout=30
    )
    assert not {"psycopg", "sqlalchemy"} & {name.split(".")[0] for name in outcome.stdout.split()}
