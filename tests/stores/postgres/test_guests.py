"""Runs started inside a transaction of the caller's own exist if, and only if, it commits: with every driver."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy

from batuta.errors import AlreadyStarted, TransactionFailed, UnknownRun, WrongTransaction
from batuta.journal.records import IfExists, NewRun, StartOutcome
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import claim_one, live_worker, new_run
from tests.stores.postgres.callers import ASYNC, BLOCKING, EVERY, Caller, dialect, with_asyncpg, with_session
from tests.stores.postgres.raw import connection, until_blocked


@pytest.fixture(params=EVERY)
async def caller(request: pytest.FixtureRequest, postgres_url: str) -> AsyncIterator[Caller]:
    async with EVERY[request.param](postgres_url) as made:
        yield made


async def start(store: PostgresStore, given: Any, *runs: NewRun, after: NewRun | None = None) -> list[StartOutcome]:
    caller = await store.enter(given, runs)
    return await caller.start_many(runs, after)


async def exists(store: PostgresStore, run: NewRun) -> bool:
    try:
        await store.get_run(run.run_id)
    except UnknownRun:
        return False
    return True


async def test_a_run_exists_when_the_transaction_commits_and_not_before(store: PostgresStore, caller: Caller) -> None:
    worker, run = await live_worker(store), new_run("a", priority=3, tags='{"k":"v"}', start='{"value":["\\u0000é"]}')
    await caller.begin()
    [(started, is_new)] = await start(store, caller.given, run)  # type: ignore[misc]  # it is no error
    assert is_new
    assert not await exists(store, run)
    assert (await store.claim(worker, 10)).stored_runs == []
    await caller.commit()
    stored = await claim_one(store, worker)
    assert (started.run_id, started.tags, started.priority) == (run.run_id, '{"k":"v"}', 3)
    assert stored.run.run_id == run.run_id
    assert [message.body for message in stored.messages] == [run.start]


async def test_nothing_is_left_of_a_transaction_that_is_rolled_back(store: PostgresStore, caller: Caller) -> None:
    run = new_run("a")
    await caller.begin()
    await start(store, caller.given, run)
    await caller.rollback()
    assert not await exists(store, run)
    assert (await store.start(new_run("a")))[1], "its id is free"


async def test_a_savepoint_takes_back_what_was_started_after_it(store: PostgresStore, caller: Caller) -> None:
    before, within = new_run(), new_run()
    await caller.begin()
    await start(store, caller.given, before)
    await caller.execute("SAVEPOINT here")
    await start(store, caller.given, within)
    await caller.execute("ROLLBACK TO here")
    await caller.commit()
    assert await exists(store, before)
    assert not await exists(store, within)


async def test_a_transaction_that_has_failed_is_named_and_nothing_runs(store: PostgresStore, caller: Caller) -> None:
    run = new_run()
    await caller.begin()
    with pytest.raises((asyncpg.PostgresError, psycopg.Error, sqlalchemy.exc.DBAPIError)):
        await caller.execute("SELECT 1 / 0")
    with pytest.raises(TransactionFailed, match="roll it back"):
        await start(store, caller.given, run)
    await caller.rollback()
    assert not await exists(store, run)


async def test_an_id_that_is_taken_does_not_harm_the_transaction(store: PostgresStore, caller: Caller) -> None:
    taken, _ = await store.start(new_run("a"))
    refused, other = new_run("a", if_exists=IfExists.REJECT), new_run("b")
    await caller.begin()
    outcomes = await start(store, caller.given, refused, new_run("a"), other)
    await caller.commit()
    assert isinstance(outcomes[0], AlreadyStarted)
    assert outcomes[1] == (taken, False)
    assert await exists(store, other)


async def test_what_is_told_of_a_start_is_what_is_there(store: PostgresStore, postgres_url: str) -> None:
    """The same as a start without a transaction tells, whatever becomes of it."""
    (taken, _), (waiting, _) = await store.start(new_run("taken")), await store.start(new_run(debounce="k", delay=1))
    runs = [
        new_run("new", timeout=5, expires=7, flow_key='"{\\,}'),
        new_run("new"),
        new_run("taken", if_exists=IfExists.RENEW),
        new_run(debounce="k", delay=60_000_000, tags='{"a":"b"}'),
    ]
    async with with_asyncpg(postgres_url) as caller:
        await caller.begin()
        outcomes = await start(store, caller.given, *runs, after=new_run("after"))
        others = await start(store, caller.given, new_run("last"), after=new_run("taken"))
        await caller.commit()
    told = [outcome for outcome in (*outcomes, *others) if isinstance(outcome, tuple)]
    assert [is_new for _, is_new in told] == [True, False, False, False, True, True, False]
    assert [run for run, _ in told] == [await store.get_run(run.run_id) for run, _ in told]
    assert told[2][0].run_id == told[6][0].run_id == taken.run_id
    assert told[3][0].run_id == waiting.run_id
    assert (told[4][0].awaits, told[5][0].parent_run_id) == (1, None)


async def test_the_callers_own_rows_and_the_run_are_one(
    store: PostgresStore, caller: Caller, postgres_url: str
) -> None:
    run = new_run()
    await caller.begin()
    await caller.execute("CREATE TABLE orders (id int)")
    await caller.execute("INSERT INTO orders VALUES (17)")
    await start(store, caller.given, run)
    await caller.commit()
    async with connection(postgres_url) as raw:
        assert await raw.fetchval("SELECT id FROM orders") == 17
    assert await exists(store, run)


async def test_a_worker_elsewhere_is_told_at_the_commit_and_not_before(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    near, far, other = [Ear(each) for each in (store, await make_store(), await make_store(namespace="other"))]
    for ear in (near, far, other):
        await ear.hears(lambda hint: hint.closed is None)
        ear.hints.clear()
    async with with_asyncpg(postgres_url) as caller:
        async with caller.given.transaction():
            await start(store, caller.given, new_run())
            await caller.execute("SELECT 1")
            assert near.hints == far.hints == []
        await far.hears(lambda hint: hint.due)
        await near.hears(lambda hint: hint.due)
    assert other.hints == []


async def test_listeners_hear_nothing_of_a_rollback(store: PostgresStore, postgres_url: str) -> None:
    ear = Ear(store)
    await ear.hears(lambda hint: hint.closed is None)
    ear.hints.clear()
    async with with_asyncpg(postgres_url) as caller:
        await caller.begin()
        await start(store, caller.given, new_run())
        await caller.rollback()
        await caller.begin()
        known = new_run()
        await start(store, caller.given, known)
        await caller.commit()
    await ear.hears(lambda hint: hint.due)
    assert len(ear.hints) == 1


@pytest.mark.parametrize("isolation", ["read_committed", "repeatable_read", "serializable"])
async def test_any_isolation_will_do(store: PostgresStore, postgres_url: str, isolation: Any) -> None:
    run = new_run()
    async with connection(postgres_url) as raw:
        async with raw.transaction(isolation=isolation):
            await raw.fetchval("SELECT 1")
            [(found, is_new)] = await start(store, raw, run)  # type: ignore[misc]  # it is no error
    assert (found.run_id, is_new) == (run.run_id, True)
    assert await exists(store, run)


@pytest.mark.parametrize("commits", [True, False])
async def test_two_transactions_with_one_id_take_turns(store: PostgresStore, postgres_url: str, commits: bool) -> None:
    first, second = new_run("same"), new_run("same")
    async with connection(postgres_url) as one, connection(postgres_url) as other, connection(postgres_url) as watcher:
        begun = one.transaction()
        await begun.start()
        await start(store, one, first)
        async with other.transaction():
            waiting = asyncio.create_task(start(store, other, second))
            await until_blocked(watcher)
            await (begun.commit() if commits else begun.rollback())
            [(found, is_new)] = await waiting  # type: ignore[misc]  # it is no error
    assert (found.run_id, is_new) == ((first.run_id, False) if commits else (second.run_id, True))
    assert (await store.get("same")).run_id == found.run_id


async def test_each_namespace_gets_its_own(store: PostgresStore, make_store: MakeStore, postgres_url: str) -> None:
    other = await make_store(namespace="other")
    assert isinstance(other, PostgresStore)
    mine, theirs = new_run("same"), new_run("same")
    async with with_asyncpg(postgres_url) as caller:
        await caller.begin()
        await start(store, caller.given, mine)
        await start(other, caller.given, theirs)
        await caller.commit()
    assert (await store.get("same")).run_id == mine.run_id
    assert (await other.get("same")).run_id == theirs.run_id


async def test_many_are_started_at_once(store: PostgresStore, postgres_url: str) -> None:
    runs = [new_run(start='{"value":["' + "x" * 100 + '"]}') for _ in range(2_000)]
    async with with_session(postgres_url) as caller:
        outcomes = await start(store, caller.given, *runs)
        await caller.commit()
    assert [outcome[0].run_id for outcome in outcomes if isinstance(outcome, tuple)] == [run.run_id for run in runs]


@pytest.mark.parametrize("driver", EVERY)
async def test_a_connection_to_another_database_is_refused(
    store: PostgresStore, postgres_server: Any, postgres_template: str, driver: str
) -> None:
    copy, empty = postgres_server.create_database(template=postgres_template), postgres_server.create_database()
    for url in (copy, empty):
        async with EVERY[driver](url) as caller:
            await caller.begin()
            with pytest.raises(WrongTransaction, match="another database"):
                await start(store, caller.given, new_run())
            await caller.rollback()
        postgres_server.drop_database(url)


async def test_a_run_goes_to_the_schema_of_the_client(postgres_url: str) -> None:
    shop, run = PostgresStore(f"{postgres_url}?schema=shop"), new_run("a")
    await shop.migrate()
    await shop.open()
    first = PostgresStore(postgres_url)
    await first.open()
    async with with_asyncpg(postgres_url) as caller:
        await caller.begin()
        await start(shop, caller.given, run)
        await caller.commit()
    assert await exists(shop, run)
    assert not await exists(first, run)
    await shop.close()
    await first.close()


async def test_a_connection_without_a_transaction_is_refused(store: PostgresStore, postgres_url: str) -> None:
    engine = sqlalchemy.create_engine(dialect(postgres_url, "psycopg"), isolation_level="AUTOCOMMIT")
    async with connection(postgres_url) as raw:
        with psycopg.connect(postgres_url, autocommit=True) as blocking, engine.connect() as alchemy:
            for given in (raw, blocking, alchemy):
                with pytest.raises(WrongTransaction, match="no transaction is open"):
                    await start(store, given, new_run())
            with blocking.transaction():
                run = new_run()
                await start(store, blocking, run)
    engine.dispose()
    assert await exists(store, run)


@pytest.mark.parametrize("given", [None, "postgresql://localhost", 7, {}], ids=repr)
async def test_an_object_that_is_no_connection_is_refused_with_the_supported_ones(
    store: PostgresStore, given: object
) -> None:
    with pytest.raises(WrongTransaction, match=r"asyncpg connection, a psycopg \(3\) connection, or a SQLAlchemy"):
        await store.enter(given, [])


async def test_a_session_of_another_database_system_is_refused(store: PostgresStore) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with engine.connect() as alchemy, pytest.raises(WrongTransaction, match="the session uses sqlite"):
        await start(store, alchemy, new_run())
    engine.dispose()


@pytest.mark.parametrize("driver", EVERY)
async def test_a_guest_says_whether_its_connection_blocks(store: PostgresStore, postgres_url: str, driver: str) -> None:
    assert ASYNC.keys() | BLOCKING.keys() == EVERY.keys()
    async with EVERY[driver](postgres_url) as caller:
        assert (await store.enter(caller.given, [])).blocking is (driver in BLOCKING)
