"""Ten thousand published flows: an event costs what it did with one."""

import json
import sqlite3
from typing import Any

import asyncpg
import pytest

import batuta
from batuta.stores import postgres
from batuta.stores.contract.named_queries import load_queries
from batuta.stores.sqlite.database.connection import Q
from tests.flows.http import SPRINT

MANY = 10_000
LOOK_UPS = ("active_flows", "active_flow_ids")
FILL_SQLITE = """
    WITH RECURSIVE n(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < ?)
    INSERT INTO flows (namespace, workflow_id, name, version, description, trigger_type, document, is_active,
        published_at, revision, created_at, updated_at)
    SELECT namespace, randomblob(16), 'flow ' || n, 1, '', 'type ' || n, document, 1, 1, 1, 1, 1 FROM flows, n
    WHERE name = 'Sprint 1 Test'"""
FILL_POSTGRES = """
    INSERT INTO batuta.flows (namespace, workflow_id, name, version, description, trigger_type, document, is_active,
        published_at, revision, created_at, updated_at)
    SELECT namespace, gen_random_uuid(), 'flow ' || n, 1, '', 'type ' || n, document, true, 1, 1, 1, 1
    FROM batuta.flows, generate_series(1, $1::integer) n WHERE name = 'Sprint 1 Test'"""


async def published(client: batuta.Batuta) -> None:
    draft = await client.flows.create(SPRINT)
    await client.flows.publish(draft.id)


async def begins_one(client: batuta.Batuta) -> None:
    sent = await client.flows.events.send("invoice_overdue", {"amount": 1})
    assert len((await client.flows.runs.of_events([sent.event.id]))[sent.event.id]) == 1


def instructions(database: sqlite3.Connection, statement: str) -> int:
    """How many instructions of its virtual machine SQLite needs: each row that it reads takes some."""
    count = 0

    def tick() -> int:
        nonlocal count
        count += 1
        return 0

    database.set_progress_handler(tick, 1)
    assert len(database.execute(Q[statement], ("default", "invoice_overdue")).fetchall()) == 1
    database.set_progress_handler(None, 0)
    return count


async def test_sqlite_reads_the_flows_of_the_event_alone(sqlite_url: str) -> None:
    file = sqlite_url.removeprefix("sqlite:///")
    async with batuta.connect(sqlite_url) as client:
        await published(client)
        with sqlite3.connect(file) as database:
            instructions(database, LOOK_UPS[0])  # the first one reads the schema, too
            alone = [instructions(database, name) for name in LOOK_UPS]
            database.execute(FILL_SQLITE, (MANY,))
            database.commit()
            among_many = [instructions(database, name) for name in LOOK_UPS]
            assert sum(among_many) <= sum(alone) + 5
        await begins_one(client)


@pytest.mark.usefixtures("new_postgres_url")
async def test_postgres_reads_the_flows_of_the_event_alone(postgres_url: str) -> None:
    async with batuta.connect(postgres_url) as client:
        await published(client)
        session = await asyncpg.connect(postgres_url)
        try:
            await session.execute(FILL_POSTGRES.replace("$1::integer", str(MANY)))
            await session.execute("ANALYZE batuta.flows")
            query = f"EXPLAIN (ANALYZE, FORMAT JSON) {load_queries(postgres.__name__)['active_flows']}"
            [plan] = json.loads(await session.fetchval(query, "default", "invoice_overdue"))
        finally:
            await session.close()
        scans = [node for node in nodes(plan["Plan"]) if "Scan" in node["Node Type"]]
        assert {node.get("Index Name") for node in scans} == {"flows_active"}
        assert sum(node["Actual Rows"] for node in scans) == 1
        assert not any(node.get("Rows Removed by Filter") for node in scans)
        await begins_one(client)


def nodes(plan: dict[str, Any]) -> list[dict[str, Any]]:
    return [plan, *(one for part in plan.get("Plans", ()) for one in nodes(part))]
