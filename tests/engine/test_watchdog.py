"""Code that blocks the worker's event loop is named, with the line that blocks."""

import logging
import threading

import pytest

from batuta import Batuta, activity, workflow
from batuta.clock import SystemClock
from batuta.engine.native import NativeBackend
from batuta.stores.memory import MemoryStore

named = threading.Event()


class BeatingStore(MemoryStore):
    """A store in memory whose workers have heartbeats and a watchdog, as those of real databases."""

    poll_seconds: float | None = 0.02


class Listens(logging.Handler):
    """Ends the blocking as soon as it was named."""

    def emit(self, record: logging.LogRecord) -> None:
        if record.name == "batuta.watchdog":
            named.set()


@activity
async def echo(text: str) -> str:
    return text


@workflow
async def blocks() -> str:
    await echo("before")
    named.wait(30)
    return await echo("after")


async def test_a_turn_that_blocks_is_named_by_the_watchdog_with_its_stack(
    real_time: None, caplog: pytest.LogCaptureFixture
) -> None:
    named.clear()
    handler = Listens()
    logging.getLogger("batuta.watchdog").addHandler(handler)
    store = BeatingStore()
    try:
        async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as client:
            async with client.worker(workflows=[blocks], activities=[echo], stuck_turn=0.05):
                handle = await client.start(blocks, id="order 5")
                assert await handle.result(30) == "after"
    finally:
        logging.getLogger("batuta.watchdog").removeHandler(handler)
    said = "\n".join(record.getMessage() for record in caplog.records if record.name == "batuta.watchdog")
    assert "run 'order 5' (workflow 'blocks')" in said
    assert "named.wait(30)" in said
    assert "move it into an activity" in said


async def test_a_worker_with_heartbeats_ends_without_leaving_a_thread(real_time: None) -> None:
    before = threading.active_count()
    store = BeatingStore()
    async with Batuta(NativeBackend(store, SystemClock()), store.open, store.close) as client:
        async with client.worker(workflows=[blocks], activities=[echo]):
            assert threading.active_count() > before
    for thread in threading.enumerate():
        if thread.name.startswith("batuta-watchdog"):
            thread.join(10)
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("batuta")]
