"""What a store object hears of what another process, which is another store object, has written."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batuta.journal.records import Message, MessageKind
from batuta.journal.schedules import ScheduleRow
from batuta.journal.states import RunState
from batuta.stores.sqlite.database.rows import Row
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork, Values
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import live_worker, new_run, start_owned
from batuta.testing.conformance.runs.close import last_word


@pytest.fixture
async def stores(tmp_path: Path) -> AsyncIterator[list[SqliteStore]]:
    made = [SqliteStore(tmp_path / "batuta.db") for _ in range(2)]
    for store in made:
        await store.migrate()
        await store.open()
    yield made
    for store in made:
        await store.close()


async def test_a_message_to_a_run_that_is_owned_here_is_heard_by_its_name(stores: list[SqliteStore]) -> None:
    here, far = stores
    pen = await start_owned(here, await live_worker(here))
    ear = Ear(here)
    await far.send(pen.run_id, Message(message_id="m", kind=MessageKind.CANCEL))
    await ear.hears(lambda hint: pen.run_id in hint.messages)


async def test_a_close_from_outside_is_heard_by_its_name(stores: list[SqliteStore]) -> None:
    here, far = stores
    pen = await start_owned(here, await live_worker(here))
    ear = Ear(here)
    await far.close_run(pen.run_id, pen.head, last_word(pen), RunState.TERMINATED, "enough")
    await ear.hears(lambda hint: pen.run_id in hint.messages and hint.closed is None)


async def test_the_watcher_reports_no_old_changes(stores: list[SqliteStore]) -> None:
    here, far = stores
    pen = await start_owned(here, await live_worker(here))
    ear = Ear(here)
    await far.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
    await ear.hears(lambda hint: pen.run_id in hint.messages)
    ear.hints.clear()
    await far.start(new_run())
    await ear.hears(lambda hint: hint.due and not hint.messages)


async def test_a_new_listener_is_told_of_earlier_changes(stores: list[SqliteStore]) -> None:
    here, far = stores
    pen = await start_owned(here, await live_worker(here))
    await far.send(pen.run_id, Message(message_id="m", kind=MessageKind.SIGNAL))
    ear = Ear(here)
    await ear.hears(lambda hint: pen.run_id in hint.messages)


async def test_own_writes_are_no_news_from_others(stores: list[SqliteStore]) -> None:
    here, far = stores
    worker = await live_worker(here)
    pen = await start_owned(here, worker)
    ear = Ear(here)
    for _ in range(20):
        assert await pen.write(here, worker) is None
    await far.start(new_run())
    await ear.hears(lambda hint: hint.due and hint.closed is None)
    assert all(hint.messages == [] for hint in ear.hints)


async def test_a_schedule_is_heard_of_although_the_look_before_failed(
    stores: list[SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    here, far = stores
    ear = Ear(here)
    rows, failed = UnitOfWork.rows, 0

    def fail_once(unit: UnitOfWork, name: str, values: Values = ()) -> list[Row]:
        nonlocal failed
        if name == "messages_after" and not failed:
            failed += 1
            raise sqlite3.OperationalError("injected")
        return rows(unit, name, values)

    monkeypatch.setattr(UnitOfWork, "rows", fail_once)
    await far.put_schedule(ScheduleRow(id="s", spec="{}", state="{}", next_at=await far.now()))
    await ear.hears(lambda hint: hint.due)
    assert failed
    assert any(hint.schedules for hint in ear.hints)
