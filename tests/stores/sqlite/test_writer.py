"""One writer at a time: within a process, across processes, and beside programs that are none of ours."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from pathlib import Path

import pytest

from batuta.errors import StoreError, StoreFailed, StoreUnavailable, UnknownRun
from batuta.journal.records import Pulse, WorkerInfo
from batuta.journal.store import Store
from batuta.stores.sqlite.database import writer
from batuta.stores.sqlite.database.files import open_lock, try_lock, unlock
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import Pen, live_worker, new_run, start_owned

CHILD = """
import asyncio, sys
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import live_worker, start_owned

async def main():
    store = SqliteStore(sys.argv[1])
    await store.open()
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(5)]
    for _ in range(40):
        changes = [pen.change(1) for pen in pens]
        assert await store.commit(worker.worker_id, changes) == {}
        for pen, change in zip(pens, changes):
            pen.wrote(change)
    await store.close()

asyncio.run(main())
"""


async def run_child(code: str, *arguments: str) -> int:
    child = await asyncio.create_subprocess_exec(sys.executable, "-c", code, *arguments)
    return await child.wait()


async def test_processes_write_in_turn_and_the_file_stays_sound(store: SqliteStore, path: Path) -> None:
    assert await asyncio.gather(*(run_child(CHILD, str(path)) for _ in range(2))) == [0, 0]
    connection = sqlite3.connect(path)
    try:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM journal").fetchall() == [(2 * 5 * 41,)]
        assert connection.execute("SELECT DISTINCT head FROM runs").fetchall() == [(40,)]
    finally:
        connection.close()


async def test_a_write_that_comes_while_the_store_is_closed_does_not_hold_that_up(path: Path) -> None:
    store = SqliteStore(path)
    await store.migrate()
    await store.open()
    syncing = store._writer._syncing
    assert syncing is not None
    syncing.shutdown()  # as far as closing has come
    with pytest.raises(StoreUnavailable, match="closed"):
        await store._writer.write(lambda _cursor: None)
    async with asyncio.timeout(10):
        await store.close()


async def test_a_batch_under_way_and_single_writes_do_not_block_each_other(store: SqliteStore) -> None:
    worker = await live_worker(store)
    news = [new_run() for _ in range(300)]
    starts = [Pen(new.run_id, epoch=1).change(1, start=new) for new in news]
    batches = [store.commit(worker.worker_id, starts[first : first + 30]) for first in range(0, 300, 30)]
    singles = [store.start(new_run()) for _ in range(20)]
    results = await asyncio.wait_for(asyncio.gather(*batches, *singles), 30)
    assert results[:10] == [{}] * 10


async def test_giving_up_a_commit_leaves_no_transaction_open(store: SqliteStore) -> None:
    worker = await live_worker(store)
    for _ in range(5):
        pens = [await start_owned(store, worker) for _ in range(4)]
        task = asyncio.create_task(store.commit(worker.worker_id, [pen.change(1) for pen in pens]))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        # Whether it was durable is not known; that the next write goes through is.
        assert (await store.start(new_run()))[1]


async def test_a_heart_beats_in_its_own_thread_while_the_loop_commits(store: SqliteStore) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    pulses: list[Pulse] = []
    thread = threading.Thread(target=lambda: asyncio.run(_beats(store, worker, pulses)))
    thread.start()
    while thread.is_alive():
        assert await pen.write(store, worker) is None
        await asyncio.sleep(0)
    thread.join()
    assert [pulse.alive for pulse in pulses] == [True] * 20
    assert pulses[-1].owned == {pen.run_id: 1}


async def _beats(store: Store, worker: WorkerInfo, pulses: list[Pulse]) -> None:
    async with store.heartbeat(worker.worker_id) as heartbeat:
        pulses.extend([await heartbeat.beat(worker, reap=True) for _ in range(20)])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.05)


async def test_a_process_that_never_lets_go_makes_the_store_unavailable(
    store: SqliteStore, path: Path, impatient: None
) -> None:
    lock = open_lock(Path(f"{path}-lock"))
    assert try_lock(lock)
    with pytest.raises(StoreUnavailable, match="another process"):
        await store.start(new_run("a"))
    unlock(lock)
    os.close(lock)
    assert (await store.start(new_run("a")))[1]


async def test_a_foreign_program_that_writes_makes_the_store_unavailable(
    store: SqliteStore, path: Path, impatient: None
) -> None:
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreUnavailable, match="locked"):
        await store.start(new_run("a"))
    foreign.execute("ROLLBACK")
    foreign.close()
    assert (await store.start(new_run("a")))[1]


async def test_reading_goes_on_while_somebody_writes(store: SqliteStore, path: Path) -> None:
    run, _ = await store.start(new_run("a"))
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    assert await store.get("a") == run
    foreign.execute("ROLLBACK")
    foreign.close()


async def test_a_file_that_was_replaced_is_not_written_to_in_vain(store: SqliteStore, path: Path) -> None:
    worker = await live_worker(store)
    await store.start(new_run("lost"))
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").rename(f"{path}.old{suffix}")
    with pytest.raises(StoreFailed, match="replaced or removed"):
        await store.start(new_run("a"))
    with pytest.raises(StoreError):
        await store.start(new_run("a"))
    assert not path.exists()
    timeline = store.timeline()
    await store.migrate()
    await store.register(worker)
    assert store.timeline() != timeline
    with pytest.raises(UnknownRun):
        await store.get("lost")


async def test_another_store_object_on_the_same_file_has_its_own_connection(make_store: MakeStore) -> None:
    one, two = await make_store(), await make_store()
    await one.start(new_run("a"))
    await one.close()
    assert (await two.get("a")).id == "a"
    assert (await two.start(new_run("b")))[1]


async def test_statements_left_for_the_commit_are_in_the_same_transaction(store: SqliteStore) -> None:
    new = new_run("kept")
    await store.start(new)
    run_id = new.run_id.bytes

    def rename(cursor: sqlite3.Cursor) -> str:
        cursor.execute("UPDATE runs SET name = 'first' WHERE run_id = ?", (run_id,))
        return "last"

    def add(cursor: sqlite3.Cursor, reason: str) -> None:
        cursor.execute("UPDATE runs SET reason = ? WHERE run_id = ?", (reason, run_id))

    def fail(cursor: sqlite3.Cursor, reason: str) -> None:
        add(cursor, reason)
        raise sqlite3.OperationalError("no such thing")

    for small in (True, False):
        with pytest.raises(StoreError, match="no such thing"):
            await store._writer.write(rename, last=fail, small=small)
        run = await store.get_run(new.run_id)
        assert (run.name, run.reason) == ("flow", "")
    await store._writer.write(rename, last=add)
    run = await store.get_run(new.run_id)
    assert (run.name, run.reason) == ("first", "last")


@pytest.mark.parametrize(("set_by_the_program", "meanwhile"), [(0.005, 0.0002), (0.01, 0.01), (0.0002, 0.0002)])
async def test_a_thread_that_executes_statements_has_the_interpreters_lock_soon(
    store: SqliteStore, set_by_the_program: float, meanwhile: float
) -> None:
    seen: list[float] = []
    before = sys.getswitchinterval()
    sys.setswitchinterval(set_by_the_program)
    try:
        await store._writer.write(lambda _: None, last=lambda _cursor, _: seen.append(sys.getswitchinterval()))
        await store._writer.write(lambda _: seen.append(sys.getswitchinterval()))
    finally:
        sys.setswitchinterval(before)
    assert seen == [pytest.approx(meanwhile), pytest.approx(set_by_the_program)]
