"""Transactions of activities that are given up while the server is at work for them."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.database.lent_connection import LentConnection
from tests.engine.arena import until
from tests.stores.postgres.raw import connection

COUNT = """
SELECT count(*) FROM pg_stat_activity
WHERE datname = current_database() AND query LIKE 'SELECT pg_sleep%' AND state = 'active'
"""


async def test_a_rollback_that_is_cancelled_twice_leaves_no_statement_and_no_lock(
    store: PostgresStore, postgres_url: str
) -> None:
    async with connection(postgres_url) as raw:
        await raw.execute("CREATE TABLE orders (id INTEGER)")

        async def at_work(expected: int) -> None:
            async def reached() -> bool:
                return bool(await raw.fetchval(COUNT) == expected)

            await until(reached)

        transactions = [store.transact(10.0) for _ in range(4)]
        sleeping: list[asyncio.Future[Any]] = []
        for transaction in transactions:
            await transaction.begin()
            lent = cast(LentConnection, transaction.connection)
            await lent.execute("LOCK TABLE orders IN ROW EXCLUSIVE MODE")
            sleeping.append(asyncio.ensure_future(lent.execute("SELECT pg_sleep(600)")))
        await at_work(len(transactions))
        for task in sleeping:
            task.cancel()
        await asyncio.gather(*sleeping, return_exceptions=True)
        rolling = [asyncio.ensure_future(one.rollback()) for one in transactions]
        await asyncio.sleep(0)
        for one in rolling:
            one.cancel()
        await asyncio.gather(*rolling, return_exceptions=True)
        await at_work(0)
        await asyncio.gather(*(one.rollback() for one in transactions))
        await raw.execute("SET lock_timeout = '10s'; DROP TABLE orders")
    [pool] = store._activity_pools.values()
    assert len(pool._idle) == len(transactions)
