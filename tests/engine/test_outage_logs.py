"""An outage is logged once when it begins and once when it ends, however often the store was asked meanwhile."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from pathlib import Path

import pytest

from batuta import Signal, connect, workflow
from batuta.engine.worker.outage import BEATING, Outage
from batuta.errors import OutcomeUnknown, SchemaMismatch, StoreUnavailable
from batuta.stores.sqlite.database import connection as connections
from batuta.stores.sqlite.database import writer as writers
from chaos.wire import Wire

PATIENCE = 60.0
go = Signal("go")


@workflow
async def waits() -> str:
    await go.wait()
    return "went"


class Watch:
    """Counts what failed, and shows what was logged of it."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self.failures, self._caplog = 0, caplog

    def lines(self) -> list[str]:
        records = [record for record in self._caplog.records if record.name == "batuta.engine"]
        return [record.getMessage() for record in records if record.levelno >= logging.WARNING]

    async def failed(self, times: int) -> None:
        async with asyncio.timeout(PATIENCE):
            while self.failures < times:
                await asyncio.sleep(0.02)

    async def said(self, text: str) -> None:
        async with asyncio.timeout(PATIENCE):
            while not any(text in line for line in self.lines()):
                await asyncio.sleep(0.02)


@pytest.fixture
def watch(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> Watch:
    made, failed = Watch(caplog), Outage.failed

    def counted(self: Outage, doing: str, error: Exception, *, holds: bool = True) -> None:
        made.failures += 1
        failed(self, doing, error, holds=holds)

    monkeypatch.setattr(Outage, "failed", counted)
    return made


async def test_an_outage_of_postgresql_takes_two_lines(postgres_url: str, watch: Watch, real_time: None) -> None:
    async with Wire(postgres_url) as wire, connect(wire.url) as client:
        async with client.worker(workflows=[waits], heartbeat=0.2):
            handle = await client.start(waits)
            waiting = asyncio.create_task(handle.result())
            wire.cut()
            await watch.failed(8)
            wire.mend()
            await watch.said("answers again")
            await handle.signal(go)
            assert await asyncio.wait_for(waiting, PATIENCE) == "went"
    began, ended = watch.lines()
    assert began.startswith("the store does not answer, and is asked again until it does: ")
    assert "StoreUnavailable: " in began or "OutcomeUnknown: " in began
    assert ended.startswith("the store answers again after ")


async def test_a_sqlite_file_that_another_program_locks_takes_two_lines(
    tmp_path: Path, watch: Watch, real_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (connections, writers):
        monkeypatch.setattr(module, "PATIENCE_SECONDS", 0.05)
    async with connect(f"sqlite:///{tmp_path / 'b.db'}") as client:
        async with client.worker(workflows=[waits], heartbeat=0.1):
            handle = await client.start(waits)
            foreign = sqlite3.connect(tmp_path / "b.db", isolation_level=None, timeout=PATIENCE)
            foreign.execute("BEGIN IMMEDIATE")
            await watch.failed(8)
            foreign.execute("ROLLBACK")
            foreign.close()
            await watch.said("answers again")
            await handle.signal(go)
            assert await handle.result(PATIENCE) == "went"
    began, ended = watch.lines()
    assert "StoreUnavailable: the database is locked by another program" in began
    assert ended.startswith("the store answers again after ")


class Time:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_an_outage_lasts_until_every_loop_that_noticed_it_goes_on(watch: Watch) -> None:
    time = Time()
    outage = Outage(time)
    outage.failed("looking for due runs", StoreUnavailable("no route"))
    outage.failed("writing changes", OutcomeUnknown("cut"))
    time.now = 125.0
    outage.worked("writing changes")
    outage.worked(BEATING)
    assert len(watch.lines()) == 1
    outage.worked("looking for due runs")
    outage.worked("looking for due runs")
    assert watch.lines() == [
        "the store does not answer, and is asked again until it does: looking for due runs: StoreUnavailable: no route",
        "the store answers again after 2 min 5 s",
    ]


def test_a_heartbeat_ends_an_outage_that_no_loop_holds_open(watch: Watch) -> None:
    outage = Outage(Time())
    outage.failed("deleting runs", StoreUnavailable("no route"), holds=False)
    outage.worked("writing changes")
    assert len(watch.lines()) == 1
    outage.worked(BEATING)
    assert watch.lines()[1:] == ["the store answers again after 0 s"]


def test_another_failure_is_told_once_for_each_class_and_once_when_it_ends(watch: Watch) -> None:
    outage = Outage(Time())
    for error in (SchemaMismatch("a"), SchemaMismatch("b"), ZeroDivisionError("c")):
        outage.failed("looking for due runs", error)
    outage.worked("looking for due runs")
    assert watch.lines() == [
        "looking for due runs fails, and is tried again: SchemaMismatch: a",
        "looking for due runs fails, and is tried again: ZeroDivisionError: c",
        "looking for due runs works again after 0 s",
    ]


def test_a_loop_that_ended_does_not_hold_an_outage_open(watch: Watch) -> None:
    outage = Outage(Time())
    outage.failed("looking for a result", StoreUnavailable("no route"))
    outage.ceased("looking for a result")
    outage.failed("looking for a result", StoreUnavailable("no route"))
    assert len(watch.lines()) == 2
