"""A second pair of hands: plain connections that hold locks, kill sessions and look at plans."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import asyncpg

from batuta.stores.postgres import PostgresStore

DEADLINE_SECONDS = 30


@asynccontextmanager
async def connection(url: str) -> AsyncIterator[Any]:
    """A connection of the test's own."""
    raw = await asyncpg.connect(url)
    try:
        yield raw
    finally:
        await raw.close()


async def until_blocked(watcher: Any, count: int = 1) -> None:
    """Wait until so many sessions of this database wait for a lock."""
    query = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND wait_event_type = 'Lock' AND state = 'active'
    """
    async with asyncio.timeout(DEADLINE_SECONDS):
        while await watcher.fetchval(query) < count:
            await asyncio.sleep(0.005)


async def flush_statistics(store: PostgresStore) -> None:
    """Let what the pool's sessions have read be counted now. They are taken from it: notices are sent beside us."""
    await store._announcer.close()  # also the session that it has is to be counted
    store._announcer.open()
    async with AsyncExitStack() as taken:
        while store._pool._idle:
            session = await taken.enter_async_context(store._pool.session())
            await session.read("SELECT pg_stat_force_next_flush()")


async def plan_of(raw: Any, query: str) -> dict[str, Any]:
    """The generic plan of a query with parameters, in the session's own settings."""
    count = max(int(number) for number in _parameters(query))
    await raw.execute(f"PREPARE asked AS {query}")
    nulls = ", ".join(["NULL"] * count)
    text = await raw.fetchval(f"EXPLAIN (FORMAT JSON) EXECUTE asked({nulls})")
    await raw.execute("DEALLOCATE asked")
    found: dict[str, Any] = json.loads(text)[0]["Plan"]
    return found


def scans_of(plan: dict[str, Any], relation: str) -> list[dict[str, Any]]:
    """How a plan reads a table."""
    return [node for node in nodes(plan) if node.get("Relation Name") == relation and "Scan" in node["Node Type"]]


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", []):
        yield from nodes(child)


def _parameters(query: str) -> list[str]:
    return re.findall(r"\$(\d+)", query)
