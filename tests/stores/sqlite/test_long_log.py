"""Somebody reads for long, and the write-ahead log grows: it is checkpointed beside the event loop, and shrinks."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from batuta.stores.sqlite.database import connection, writer
from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import Pen, live_worker, new_run, start_owned

LONG = 512 * 1024
PAYLOAD = "x" * 100_000
PATIENCE = 20.0


@pytest.fixture(autouse=True)
def _soon_long(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (connection, writer):
        monkeypatch.setattr(module, "LONG_LOG", LONG)
    monkeypatch.setattr(writer, "_LOOK_SECONDS", 0.001)


@pytest.fixture
def checkpoints(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, bool]]:
    """The threads that have checkpointed a long log, and whether that was all of it."""
    made: list[tuple[int, bool]] = []
    shorten = Writer._shortened

    def noted(self: Writer) -> bool:
        done = shorten(self)
        made.append((threading.get_ident(), done))
        return done

    monkeypatch.setattr(Writer, "_shortened", noted)
    return made


@pytest.fixture
def reader(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """Somebody who has begun to read, and goes on."""
    made = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    made.execute("BEGIN")
    made.execute("SELECT count(*) FROM runs").fetchall()
    yield made
    made.close()


def log_of(path: Path) -> int:
    return path.with_name(path.name + "-wal").stat().st_size


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not condition():
            await asyncio.sleep(0.01)


async def write_much(store: SqliteStore, path: Path) -> None:
    """Until the log is several times longer than it should be."""
    async with asyncio.timeout(PATIENCE):
        while log_of(path) < 4 * LONG:
            await store.start(new_run(start=f'{{"value":["{PAYLOAD}"]}}'))


async def test_a_log_that_a_reader_made_long_shrinks_when_he_is_gone(
    store: SqliteStore, path: Path, reader: sqlite3.Connection, checkpoints: list[tuple[int, bool]]
) -> None:
    await write_much(store, path)
    await until(lambda: len(checkpoints) >= 1)
    assert not any(done for _, done in checkpoints)
    before = log_of(path)
    reader.execute("COMMIT")
    await until(lambda: log_of(path) <= LONG < before)
    assert threading.get_ident() not in {thread for thread, _ in checkpoints}
    worker = await live_worker(store)
    pen: Pen = await start_owned(store, worker)
    assert await pen.write(store, worker) is None


async def test_no_commit_checkpoints_a_log_that_is_long(
    store: SqliteStore, path: Path, reader: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    may, shorten = threading.Event(), Writer._shortened
    monkeypatch.setattr(Writer, "_shortened", lambda self: may.is_set() and shorten(self))
    await write_much(store, path)
    reader.execute("COMMIT")
    before = log_of(path)
    for _ in range(20):  # each of them would have it copied, and the log would begin anew
        await store.start(new_run(start=f'{{"value":["{PAYLOAD}"]}}'))
    assert log_of(path) > before
    may.set()
    await until(lambda: log_of(path) <= LONG)


async def test_a_store_is_closed_while_somebody_reads_for_long(
    store: SqliteStore, path: Path, reader: sqlite3.Connection
) -> None:
    await write_much(store, path)
    await store.close()
    assert not [one for one in threading.enumerate() if one.name == "batuta-sqlite-checkpoint"]
    reader.execute("COMMIT")
    assert reader.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
