"""What people read with SQL is the same in both databases: tables, columns, words and values."""

from __future__ import annotations

import re
import sqlite3
from datetime import datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import Raw

from batuta.clock import SECOND
from batuta.connect import store_for
from batuta.ids import new_run_id
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, encode_entry
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt, Change, Move
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.testing.conformance.kit import live_worker, new_run, start_owned
from tests.stores.postgres.raw import connection

AT = 1_700_000_000 * SECOND

PAGE = Path(__file__).parents[2] / "docs" / "concepts" / "stores.md"


async def read(url: str, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Names of the columns, and the rows with ids and times as text."""
    if url.startswith("sqlite"):
        file = sqlite3.connect(Path(url.removeprefix("sqlite:///")))
        cursor = file.execute(sql)
        names, rows = [column[0] for column in cursor.description], cursor.fetchall()
        file.close()
        return names, rows
    async with connection(url) as raw:
        await raw.execute("SET search_path = batuta")
        await raw.execute("SET timezone = 'UTC'")
        statement = await raw.prepare(sql)
        names = [attribute.name for attribute in statement.get_attributes()]
        return names, [tuple(map(_text, row)) for row in await statement.fetch()]


def _text(value: object) -> object:
    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.") + f"{value.microsecond // 1_000:03}"
    return str(value) if isinstance(value, UUID) else value


SHORTCUTS = {"signalled", "keyed", "limited", "over_at", "start"}
"""Columns that one database alone needs to be fast."""
FUNCTIONS = {"functions", "installed"}
"""Columns about functions, which SQLite has not."""
COMPARED = {"partners": {"version"}}
"""Columns by which PostgreSQL notices that a row changed meanwhile. SQLite has one writer."""
SLICES = [("leftovers",)]
"""What is deleted in slices where a writer keeps others waiting: in SQLite."""


def moment(second: int) -> str:
    return f"2023-11-14 22:13:{20 + second}.000"


async def test_both_databases_have_the_same_tables_and_views(sqlite_url: str, postgres_url: str) -> None:
    await store_for(sqlite_url).migrate()
    tables = "SELECT name FROM sqlite_master WHERE type = '{}' AND name NOT LIKE 'sqlite%' ORDER BY name"
    relations = "SELECT relname FROM pg_class WHERE relnamespace = 'batuta'::regnamespace AND relkind = '{}' ORDER BY 1"
    for ours, theirs in [("table", "r"), ("view", "v")]:
        found = (await read(sqlite_url, tables.format(ours)))[1]
        assert len(found) >= 2
        shared = [name for name in found if name not in SLICES]
        assert (await read(postgres_url, relations.format(theirs)))[1] == shared
        for (name,) in shared:
            columns = [(await read(each, f"SELECT * FROM {name}"))[0] for each in (sqlite_url, postgres_url)]
            # The order in a table is each store's own; in a view it is what people see.
            theirs_only = SHORTCUTS | FUNCTIONS | COMPARED.get(name, set())
            same = set(columns[0]) - SHORTCUTS == set(columns[1]) - theirs_only
            assert columns[0] == columns[1] or (ours == "table" and same), name


@pytest.mark.parametrize("view", ["batuta_runs", "batuta_audit", "batuta_activities", "batuta_dead_letters"])
async def test_the_columns_of_a_view_are_a_promise(url: str, store: Store, view: str) -> None:
    [row] = [line for line in PAGE.read_text("utf-8").splitlines() if line.startswith(f"| `{view}` |")]
    promised = re.findall(r"`(\w+)`", row)[1:]
    assert len(promised) > 10
    assert (await read(url, f"SELECT * FROM {view}"))[0] == promised


async def test_runs_are_shown_with_ids_and_times_that_people_can_read(url: str, store: Store) -> None:
    parent = new_run_id()
    worker = await live_worker(store)
    pen = await start_owned(store, worker, "order-1", tags='{"bank":"b1"}', memo='"m"', parent_run_id=parent)
    await pen.write(store, worker, 2, move=Move(RunState.TERMINATED, reason="enough"))
    waiting, _ = await store.start(new_run("order-2", priority=3, delay=SECOND))
    _, rows = await read(
        url,
        "SELECT id, run_id, chain_id, parent_run_id, kind, name, queue, priority, state, reason, epoch, entries, tags, "
        "memo FROM batuta_runs ORDER BY id",
    )
    mine, other, kind = str(pen.run_id), str(waiting.run_id), ("workflow", "flow", "default")
    assert rows == [
        ("order-1", mine, mine, str(parent), *kind, 0, "terminated", "enough", 1, 3, '{"bank":"b1"}', '"m"'),
        ("order-2", other, other, None, *kind, 3, "pending", "", 0, 0, "{}", "null"),
    ]
    _, times = await read(url, "SELECT created_at, closed_at, wake_at, deadline FROM batuta_runs ORDER BY id")
    assert [[time is not None for time in row] for row in times] == [
        [True, True, False, False],
        [True, False, True, False],
    ]


async def test_activities_are_shown_with_their_input_outcome_attempts_and_times(url: str, store: Store) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker, "order-1")
    commands = [
        Command(seq=1, kind=CommandKind.ACTIVITY, name="reserve", value=Raw(b'["sku",2]')),
        Command(seq=2, kind=CommandKind.TIMER, value=Raw(b"5")),
        Command(seq=3, kind=CommandKind.ACTIVITY, name="charge", value=Raw(b"[1]")),
        Command(seq=4, kind=CommandKind.ACTIVITY, name="ship", value=Raw(b"[]")),
        Command(seq=5, kind=CommandKind.ACTIVITY, name="tell", value=Raw(b"[]")),
    ]
    done = Body(seq=1, value=Raw(b'{"hold":7}'), attempts=2, started_at=AT + SECOND)
    failed = Body(seq=3, error=Failure("CardDeclined", "no money"), attempts=1, started_at=AT)
    entries = [
        encode_entry(1, EntryKind.TIMER_FIRED, AT, Body(commands=commands), 0),
        encode_entry(2, EntryKind.ACTIVITY_DONE, AT + 2 * SECOND, done, 0),
        encode_entry(3, EntryKind.ACTIVITY_FAILED, AT + 2 * SECOND, failed, 0),
    ]
    attempts = [
        Attempt(seq=1, number=1, started_at=AT, error='{"type":"Busy"}'),
        Attempt(seq=4, number=1, started_at=AT, error='{"type":"Busy"}'),
        Attempt(seq=4, number=2, started_at=AT + 3 * SECOND, error='{"type":"Timeout"}'),
    ]
    change = Change(run_id=pen.run_id, epoch=1, head=0, entries=entries, attempts=tuple(attempts))
    assert await store.commit(worker.worker_id, [change]) == {}
    _, rows = await read(url, "SELECT * FROM batuta_activities ORDER BY seq")
    assert {row[:3] for row in rows} == {("default", "order-1", str(pen.run_id))}
    error = '{"type":"CardDeclined","message":"no money"}'
    assert [row[3:] for row in rows] == [
        (1, "reserve", "completed", '["sku",2]', '{"hold":7}', None, 2, moment(0), moment(1), moment(2)),
        (3, "charge", "failed", "[1]", None, error, 1, moment(0), moment(0), moment(2)),
        (4, "ship", "pending", "[]", None, '{"type":"Timeout"}', 2, moment(0), moment(3), None),
        (5, "tell", "pending", "[]", None, None, 0, moment(0), None, None),
    ]


@pytest.mark.parametrize(
    "output",
    [
        "null",
        "true",
        "7",
        "0.30000000000000004",
        "123456789012345678901234567890",
        '"é \\" x"',
        '""',
        "[]",
        '{"a":[1]}',
    ],
)
async def test_an_output_is_the_json_that_was_written(url: str, store: Store, output: str) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    asked = Body(commands=[Command(seq=1, kind=CommandKind.ACTIVITY, name="ask", value=Raw(b"[]"))])
    answer = Body(seq=1, value=Raw(output.encode()), attempts=1, started_at=AT)
    entries = [
        encode_entry(1, EntryKind.TIMER_FIRED, AT, asked, 0),
        encode_entry(2, EntryKind.ACTIVITY_DONE, AT, answer, 0),
    ]
    change = Change(run_id=pen.run_id, epoch=1, head=0, entries=entries)
    assert await store.commit(worker.worker_id, [change]) == {}
    assert (await read(url, "SELECT output FROM batuta_activities"))[1] == [(output,)]


async def test_a_nul_in_a_payload_does_not_spoil_the_view(url: str, store: Store) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    commands = [Command(seq=1, kind=CommandKind.ACTIVITY, name="ask", value=Raw(b'["a\\u0000b"]'))]
    failed = Body(seq=1, error=Failure("ValueError", "no\x00"), attempts=1, started_at=AT)
    entries = [
        encode_entry(1, EntryKind.TIMER_FIRED, AT, Body(commands=commands), 0),
        encode_entry(2, EntryKind.ACTIVITY_FAILED, AT, failed, 0),
    ]
    change = Change(run_id=pen.run_id, epoch=1, head=0, entries=entries)
    assert await store.commit(worker.worker_id, [change]) == {}
    assert (await read(url, "SELECT name, state FROM batuta_activities"))[1] == [("ask", "failed")]
