"""Workers with heartbeats: blocked loops are named, strays are taken up once, and no thread is left behind."""

import asyncio
import logging
import re
import threading
from collections.abc import Mapping
from typing import Any

import pytest

from batuta import Batuta, activity, workflow
from batuta.clock import SystemClock
from batuta.engine.backend.native import NativeBackend
from batuta.journal.records import Claim, WorkerInfo
from batuta.stores.memory import MemoryDatabase, MemoryStore
from tests.engine.beating import BeatingStore

named = threading.Event()
executed: list[str] = []


class SlowStore(BeatingStore):
    """Claims at once, and answers when the test says so; or loses the answer."""

    def __init__(self, database: MemoryDatabase, *, lose: bool = False) -> None:
        super().__init__(database)
        self.answer = asyncio.Event()
        self._lose = lose

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        claim = await super().claim(worker, limit, room)
        if claim.stored_runs and self._lose:
            return Claim()
        if claim.stored_runs:
            await self.answer.wait()
        return claim


class BusyStore(BeatingStore):
    """Loses the answer of the claim that finds something; after that a claim is under way at nearly every heartbeat."""

    poll_seconds = 0.001

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        if not (await super().claim(worker, limit, room)).stored_runs:
            await self.after_beats(2)
        return Claim()


def client_of(store: MemoryStore) -> Batuta:
    return Batuta(NativeBackend(store, SystemClock()), store.open, store.close)


class Listens(logging.Handler):
    """Ends the blocking as soon as it was named."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "batuta.watchdog":
            named.set()


@activity
async def echo(text: str) -> str:
    executed.append(text)
    return text


@workflow
async def blocks() -> str:
    await echo("before")
    named.wait(30)
    return await echo("after")


@activity
async def waits() -> str:
    executed.append("waits")
    await gates[0].wait()
    return "done"


gates: list[asyncio.Event] = []


@workflow
async def greets() -> str:
    return await echo("hello") + " " + await waits()


async def test_a_turn_that_blocks_is_named_by_the_watchdog_with_its_stack(
    real_time: None, caplog: pytest.LogCaptureFixture
) -> None:
    named.clear()
    handler = Listens()
    logging.getLogger("batuta.watchdog").addHandler(handler)
    try:
        async with client_of(BeatingStore()) as client:
            async with client.worker(workflows=[blocks], activities=[echo], stuck_turn=0.05):
                handle = await client.start(blocks, id="order 5")
                assert await handle.result(30) == "after"
    finally:
        logging.getLogger("batuta.watchdog").removeHandler(handler)
    said = "\n".join(map(logging.Formatter().format, caplog.get_records("call")))
    assert "run 'order 5' (workflow 'blocks')" in said
    assert re.search(r"^ +named\.wait\(30\)$", said, re.MULTILINE)
    assert "move it into an activity" in said


async def test_a_worker_with_heartbeats_ends_without_leaving_a_thread(real_time: None) -> None:
    before = set(threading.enumerate())
    async with client_of(BeatingStore()) as client:
        async with client.worker(workflows=[blocks], activities=[echo]):
            begun = [t for t in threading.enumerate() if t not in before and t.name.startswith("batuta")]
            assert begun
    for thread in begun:
        thread.join(20)
    assert not [thread.name for thread in begun if thread.is_alive()]


BEATS: dict[str, Any] = {"heartbeat": 0.02, "lease": 10}


async def test_a_claim_whose_answer_is_slow_is_not_taken_for_a_lost_one(real_time: None) -> None:
    executed.clear()
    database = MemoryDatabase()
    store = SlowStore(database)
    async with client_of(store) as client, client_of(MemoryStore(database)) as other:
        gates[:] = [asyncio.Event()]
        async with client.worker(workflows=[greets], activities=[echo, waits], **BEATS):
            handle = await other.start("greets")
            await store.after_beats(6)
            store.answer.set()
            await store.after_beats(6)
            gates[0].set()
            assert await handle.result(20) == "hello done"
    assert executed == ["hello", "waits"]


async def test_a_claim_whose_answer_is_lost_is_found_by_the_heartbeat(real_time: None) -> None:
    executed.clear()
    database = MemoryDatabase()
    async with client_of(SlowStore(database, lose=True)) as client, client_of(MemoryStore(database)) as other:
        gates[:] = [asyncio.Event()]
        gates[0].set()
        async with client.worker(workflows=[greets], activities=[echo, waits], **BEATS):
            handle = await other.start("greets")
            assert await handle.result(20) == "hello done"
    assert executed == ["hello", "waits"]


async def test_a_lost_answer_is_found_also_while_the_worker_never_stops_claiming(
    real_time: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batuta.engine.worker.poller._LONGEST_PAUSE", 0.001)
    executed.clear()
    database = MemoryDatabase()
    async with client_of(BusyStore(database)) as client, client_of(MemoryStore(database)) as other:
        gates[:] = [asyncio.Event()]
        gates[0].set()
        async with client.worker(workflows=[greets], activities=[echo, waits], **BEATS):
            handle = await other.start("greets")
            assert await handle.result(10) == "hello done"
    assert executed == ["hello", "waits"]
