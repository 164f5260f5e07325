"""Through a pooler that gives each transaction another session: with a direct address for the heart, and without."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

from batuta import Batuta, RunCancelled, activity, connect, workflow
from batuta.clock import SECOND
from batuta.errors import StoreError, StoreUnavailable
from batuta.stores.postgres import PostgresStore
from batuta.testing import conformance
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import beat, ended_process, live_worker, making, outlive_lease, start_owned
from batuta.testing.databases import DatabaseMaker
from tests.extra.pooler import Pooler
from tests.stores.postgres.stores import long_up

pytestmark = pytest.mark.extra

PATIENCE = 30.0


@pytest.fixture(scope="module")
def pooler(postgres_server: DatabaseMaker) -> Iterator[Pooler]:
    with Pooler(postgres_server.url) as started:
        yield started


@pytest.fixture
def pooled_url(pooler: Pooler, postgres_url: str) -> str:
    """Only the pooler."""
    return pooler.url(postgres_url, statement_cache_size="0")


@pytest.fixture
def both_url(pooler: Pooler, postgres_url: str) -> str:
    """The pooler, and the server for what needs a session."""
    return pooler.url(postgres_url, direct_url=postgres_url)


class _Pooled:
    @pytest.fixture
    def address(self, both_url: str) -> str:
        return both_url

    @pytest.fixture
    async def make_store(self, address: str) -> AsyncIterator[MakeStore]:
        async with making(long_up(address)) as make:
            yield make

    @pytest.fixture
    async def store(self, make_store: MakeStore) -> PostgresStore:
        new = await make_store()
        assert isinstance(new, PostgresStore)
        return new


class _Alone(_Pooled):
    """Without a session nobody holds a lock; all else is the same."""

    @pytest.fixture
    def address(self, pooled_url: str) -> str:
        return pooled_url


globals().update(conformance.suite(_Pooled))
# Who is alive is told by locks; where nobody holds one, tests of its own below say what is so.
ALONE = conformance.suite(_Alone, without=[conformance.LeaseReapConformance])
globals().update({f"{name}Alone": law for name, law in ALONE.items()})


@activity
async def add(a: int, b: int) -> int:
    return a + b


@activity
async def block() -> None:
    await asyncio.Event().wait()


@workflow
async def total(numbers: list[int]) -> int:
    result = 0
    for number in numbers:
        result = await add(result, number)
    await asyncio.sleep(0.01)
    return result


@workflow
async def waits() -> None:
    await block()


@pytest.mark.parametrize("address", ["pooled_url", "both_url"])
async def test_runs_go_from_start_to_result(address: str, request: pytest.FixtureRequest) -> None:
    url = request.getfixturevalue(address)
    async with connect(url) as client, connect(url) as other, _worker(client), _worker(other):
        handles = await asyncio.gather(*(client.start(total, [n, 1, 2], id=str(n)) for n in range(100)))
        results = await asyncio.gather(*(handle.result(PATIENCE) for handle in handles))
        assert results == [n + 3 for n in range(100)]
        assert await (await other.get("7", total)).result(PATIENCE) == 10
        waiting = await client.start(waits, id="w")
        await (await other.get("w")).cancel("enough")
        with pytest.raises(RunCancelled):
            await waiting.result(PATIENCE)


def _worker(client: Batuta) -> AbstractAsyncContextManager[Any]:
    return client.worker(workflows=[total, waits], activities=[add, block], heartbeat=0.2, grace=1.0)


async def test_the_tables_can_be_made_through_the_pooler(pooler: Pooler, empty_postgres_url: str) -> None:
    async with connect(pooler.url(empty_postgres_url, statement_cache_size="0")) as client:
        assert await client.count() == 0


async def test_without_a_direct_address_no_worker_is_taken_for_dead_before_its_lease_is_over(
    pooled_url: str, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with making(long_up(pooled_url)) as make, making(long_up(postgres_url)) as make_direct:
            behind, direct = await make(), await make_direct()
            hidden, seen = await live_worker(behind), await live_worker(direct)
            pen = await start_owned(behind, hidden)
            assert hidden.worker_id not in (await beat(direct, seen)).peers
            assert (await beat(behind, hidden)).alive
            await outlive_lease(behind, direct)
            await direct.register(seen)
            assert (await beat(direct, seen, reap=True)).reaped == 1
            assert (await direct.get_run(pen.run_id)).owner is None
    assert "is a pooler (statement_cache_size=0) and there is no direct_url" in caplog.text


async def test_with_a_direct_address_a_worker_that_is_gone_is_seen_at_once(both_url: str) -> None:
    async with making(long_up(both_url)) as make:
        one, two = await make(), await make()
        dead = await live_worker(one, lease=1_000 * SECOND, process=ended_process())
        seen = await live_worker(two)
        async with one.heartbeat(dead.worker_id):
            assert dead.worker_id not in (await beat(two, seen)).peers
        assert dead.worker_id in (await beat(two, seen)).peers


async def test_a_url_that_does_not_say_that_it_is_a_pooler_gets_advice(pooler: Pooler, postgres_url: str) -> None:
    store = PostgresStore(pooler.url(postgres_url))
    with pytest.raises(StoreUnavailable, match=r"is a pooler.*statement_cache_size=0.*direct_url"):
        await store.open()
    await store.close()


async def test_a_pooler_that_restarts_is_found_again(postgres_server: DatabaseMaker, postgres_url: str) -> None:
    with Pooler(postgres_server.url) as first:
        url = first.url(postgres_url, statement_cache_size="0")
        async with connect(url) as client, _worker(client):
            assert await (await client.start(total, [1])).result(PATIENCE) == 1
            first.restart()
            handle = None
            async with asyncio.timeout(PATIENCE):
                while handle is None:
                    try:
                        handle = await client.start(total, [2], id="again")
                    except StoreError:
                        await asyncio.sleep(0.05)
            assert await handle.result(PATIENCE) == 2


async def test_a_database_is_migrated_through_the_pooler(pooler: Pooler, empty_postgres_url: str) -> None:
    stores = [PostgresStore(pooler.url(empty_postgres_url, statement_cache_size="0")) for _ in range(3)]
    applied = await asyncio.gather(*(store.migrate(repair=True) for store in stores))
    *others, whole = sorted(applied)
    assert others == [[], []]
    assert (whole[0], whole[-1]) == ("0001_baseline", "functions")
    for store in stores:
        await store.open()
        await store.close()
