"""Whatever lies in the database in place of a kind, a state, a number or a time: clients and commands are told, and
workers go on with everything else."""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import asyncpg
import pytest

from batuta import Batuta, BatutaError, Handle, RunState, Signal, activity, connect, workflow
from tests.engine.arena import PATIENCE, until
from tests.engine.forging import Forger
from tests.engine.test_damaged_rows import LEFT_ALONE, WORK, furnish, look_at_all, ticks

pytestmark = pytest.mark.usefixtures("real_time")

go = Signal("go", str)
KEYS = {"namespace", "run_id", "id", "ord", "number", "seq", "message_id", "worker_id", "name", "slot", "queue"}
"""They say which row it is. Another one is another row."""
PAYLOADS = {"body", "start", "memo", "tags", "value", "error", "details", "tokens", "spec", "message"}
"""See the other tests of damages."""
TEXTS = ("", "?", '{"a":', "[1]")
NUMBERS = (-1, 2**31 - 1)


class Damage(NamedTuple):
    table: str
    column: str
    value: Any


@activity
async def act(name: str) -> str:
    return name


@workflow
async def waits(name: str) -> str:
    await act(name)
    return await act(await go.wait())


@pytest.fixture
async def forger(url: str) -> AsyncIterator[Forger]:
    made = Forger(url)
    yield made
    await made.close()


async def damages(
    forger: Forger, tables: Sequence[str], texts: Sequence[str] = TEXTS, numbers: Sequence[int] = NUMBERS
) -> list[Damage]:
    """All that can be done to the bookkeeping of these tables."""
    found: list[Damage] = []
    for table in tables:
        for column, type_ in await columns(forger, table):
            if column in KEYS | PAYLOADS:
                continue
            if type_ in ("TEXT", "text"):
                found += [Damage(table, column, text) for text in texts]
            elif type_ in ("INTEGER", "integer", "bigint", "smallint"):
                found += [Damage(table, column, number) for number in numbers]
            elif type_ == "BLOB":
                found += [Damage(table, column, b"\1\2\3")]
    return found


async def columns(forger: Forger, table: str) -> list[tuple[str, str]]:
    if forger.is_sqlite:
        rows = await forger.sql(f"SELECT name, type FROM pragma_table_info('{table}')")
    else:
        query = "SELECT column_name, data_type FROM information_schema.columns WHERE table_schema = 'batuta'"
        rows = await forger.sql(f"{query} AND table_name = $1", table)
    return [(name, type_) for name, type_ in rows]


async def do(forger: Forger, damage: Damage, where: str, *values: Any) -> bool:
    """Whether the database took it."""
    table, column, value = damage
    marks = [forger.mark(number) for number in range(2, len(values) + 2)]
    try:
        sql = f"UPDATE {forger.schema}{table} SET {column} = {forger.mark(1)} WHERE {where.format(*marks)}"
        await forger.sql(sql, value, *values)
    except (asyncpg.PostgresError, asyncpg.InterfaceError, sqlite3.IntegrityError):
        return False
    return True


async def test_runs_whose_rows_are_damaged_do_not_keep_others_from_going_on(
    url: str, forger: Forger, caplog: pytest.LogCaptureFixture
) -> None:
    settings: dict[str, Any] = {"workflows": [waits], "activities": [act], "heartbeat": 0.1}
    async with connect(url) as client:
        todo = await damages(forger, ["runs", "journal", "inbox", "attempts"])
        async with client.worker(**settings):
            handles = [await client.start(waits, "a", id=f"run-{number}") for number in range(len(todo) + 1)]
            for handle in handles:
                await until(lambda: waiting(handle))  # noqa: B023 - awaited here
        for handle in handles:
            await handle.signal(go, "b")
        for handle, damage in zip(handles, todo, strict=False):
            key = "chain_id" if damage.table == "inbox" else "run_id"
            more = " AND ord = 1" if damage.table == "journal" else ""
            await do(forger, damage, f"{key} = {{}}{more}", forger.as_id(handle.run_id))
        with caplog.at_level(logging.INFO, "batuta"):
            async with client.worker(**settings):
                assert await handles[-1].result(PATIENCE) == "b"
                late = await client.start(waits, "late")
                await late.signal(go, "later")
                assert await late.result(PATIENCE) == "later"
        assert not [record.getMessage() for record in caplog.records if record.exc_info]
        assert "will be read again" not in caplog.text
        assert "its turn failed" not in caplog.text
        for handle in handles:
            await look_at(handle)
        listed = {run.id for run in (await client.list(limit=500)).runs}
        assert [damage for handle, damage in zip(handles, todo, strict=False) if handle.id not in listed] == [
            damage for damage in todo if (damage.table, damage.column) == ("runs", "kind")
        ]


async def waiting(handle: Handle[Any]) -> bool:
    return (await handle.describe()).state is RunState.WAITING


async def look_at(handle: Handle[Any]) -> None:
    for call in (handle.describe, handle.journal, handle.attempts, handle.timeline):
        with suppress(BatutaError):
            await call()


OTHERS = ("outputs", "workers", "queues", "schedules", "dead_letters", "quotas", "retention", "marks", "api_keys")
LOOKS: list[Callable[[Batuta], Awaitable[object]]] = [
    lambda client: client.quotas.list(),
    lambda client: client.retention.list(),
    lambda client: client.api_keys.list(),
    lambda client: client.audit(),
    lambda client: client.workers.list(),
]


async def test_clients_are_told_of_damaged_bookkeeping_and_workers_go_on(
    url: str, forger: Forger, caplog: pytest.LogCaptureFixture
) -> None:
    async with connect(url) as client, connect(url) as second, client.worker(**WORK, queues=["default", "other"]):
        await furnish(client)
        await client.limit_queue("other", concurrency=3)
        await client.quotas.set("open_runs", 1_000)
        await client.retention.set("30d", workflow="never_run")
        await client.api_keys.create("ann", scope="viewer")
        async with second.worker(jobs=[ticks], queues=["other"]):
            others = [row for row in await client.workers.list() if row.queues == ["other"]]
            rows = {table: await rows_of(forger, table) for table in OTHERS}
        assert others
        caplog.clear()
        with caplog.at_level(logging.INFO, "batuta"):
            for damage in await damages(forger, OTHERS, TEXTS[2:3], NUMBERS[:1]):
                async with done(forger, damage, rows[damage.table]):
                    await look_at_all(client)
                    for look in LOOKS:
                        with suppress(BatutaError):
                            await look(client)
            assert await (await client.enqueue(ticks, "at the end")).result(PATIENCE) == "at the end"
        assert not [record.getMessage() for record in caplog.records if record.exc_info]


async def rows_of(forger: Forger, table: str) -> list[dict[str, Any]]:
    names = [name for name, _ in await columns(forger, table)]
    found = await forger.sql(f"SELECT {', '.join(names)} FROM {forger.schema}{table}")
    return [dict(zip(names, row, strict=True)) for row in found if LEFT_ALONE not in row]


@asynccontextmanager
async def done(forger: Forger, damage: Damage, rows: list[dict[str, Any]]) -> AsyncIterator[None]:
    """For a while."""
    keys = [(row, {key: row[key] for key in KEYS | {"kind"} if key in row and key != damage.column}) for row in rows]
    for _, key in keys:
        await do(forger, damage, *where(key))
    yield
    for row, key in keys:
        await do(forger, damage._replace(value=row[damage.column]), *where(key))


def where(key: dict[str, Any]) -> tuple[Any, ...]:
    return " AND ".join(f"{name} = {{}}" for name in key), *key.values()
