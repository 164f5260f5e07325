"""Batches that are written by one statement beside the event loop do what statements of rows do."""

from __future__ import annotations

import asyncio
import re
import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from batuta.clock import SECOND, SystemClock
from batuta.errors import BadData, StoreFailed, StoreFull, StoreUnavailable
from batuta.failpoints import InjectedFault, arm
from batuta.ids import uuid_of
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.records import Attempt, Change, Effects, Move, NewRun, Output, OutputKind, Verdict, WorkerInfo
from batuta.journal.states import RunState
from batuta.stores.sqlite import schema, writer
from batuta.stores.sqlite import store as store_module
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.parcels import Parcel
from batuta.stores.sqlite.store import MANY_CHANGES, SqliteStore
from batuta.testing import conformance
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import Pen, live_worker, new_run, signal, start_owned, worker_info

TABLES = {"runs": "run_id", "journal": "run_id, ord", "inbox": "number", "attempts": "run_id, seq, number"}
DONE = Move(RunState.COMPLETED)


class Still(SystemClock):
    """A clock that two stores agree with."""

    def now(self) -> int:
        return 1_700_000_000 * SECOND


@pytest.fixture(autouse=True)
def a_core_beside(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy this machine is."""
    monkeypatch.setattr(writer, "LONG_HANDOVER_SECONDS", 10)


@pytest.fixture
def packs_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """However few changes a commit has."""
    monkeypatch.setattr(store_module, "MANY_CHANGES", 1)


@pytest.mark.usefixtures("packs_all")
class TestCommitFence(conformance.CommitFenceConformance): ...


@pytest.mark.usefixtures("packs_all")
class TestClose(conformance.CloseConformance): ...


@pytest.mark.usefixtures("packs_all")
class TestUnread(conformance.UnreadConformance): ...


@pytest.mark.usefixtures("packs_all")
class TestAttempts(conformance.AttemptsConformance): ...


@pytest.mark.usefixtures("packs_all")
class TestInbox(conformance.InboxConformance): ...


# -- the same rows


def numbered(number: int) -> NewRun:
    """Of all kinds, and in two stores the same."""
    new = new_run(f"id-{number}-é\n\"'\\", version="2", tags='{"a":"ü"}', memo='"\\u00e4"', priority=number % 3)
    new.run_id = uuid_of((number + 1) << 80 | number)
    new.timeout = 5 * SECOND if number % 5 == 0 else 0
    new.execution_timeout = 9 * SECOND if number % 7 == 0 else 0
    return new


async def write_history(store: SqliteStore) -> list[Any]:
    """Batches with every kind of change that is packed. The answers."""
    worker = worker_info()
    worker.worker_id = "worker"
    await store.register(worker)
    pens = [Pen(numbered(number).run_id, epoch=1) for number in range(120)]
    moves = [None, None, DONE, Move(RunState.WAITING, 5, "naps"), Move(RunState.WAITING)]
    changes = [
        pen.change(number % 3, start=numbered(number), move=moves[number % 5]) for number, pen in enumerate(pens)
    ]
    answers: list[Any] = [await store.commit("worker", changes)]
    running = [pen for number, pen in enumerate(pens) if moves[number % 5] is None]
    for pen, change in zip(pens, changes, strict=True):
        pen.wrote(change)
    for pen in running:
        await store.send(pen.run_id, signal(f"m-{pen.run_id}"))
    ends = [None, DONE, Move(RunState.CANCELLED, reason="no"), Move(RunState.FAILED, None, "x"), moves[3]]
    again = [
        pen.change(
            1 + number % 2,
            consumed=[f"m-{pen.run_id}"],
            attempts=[Attempt(seq=1, number=2, started_at=3, error='{"é":"\\n"}', outside=number % 2 == 0)],
            move=ends[number % 5],
            text='ü "quoted" \\ 😀 \u2028',
        )
        for number, pen in enumerate(running)
    ]
    answers.append(await store.commit("worker", again))
    answers.append(await store.commit("worker", again))  # written before, and it was us
    return answers


def rows_of(path: Path) -> dict[str, list[Any]]:
    connection = sqlite3.connect(path)
    try:
        return {
            table: connection.execute(f"SELECT * FROM {table} ORDER BY {order}").fetchall()
            for table, order in TABLES.items()
        }
    finally:
        connection.close()


async def test_a_packed_batch_leaves_the_same_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[tuple[Any, Any]] = []
    sent: list[bool] = []
    send = Parcel.send

    def sends(parcel: Parcel, cursor: sqlite3.Cursor) -> None:
        sent.append(True)
        send(parcel, cursor)

    monkeypatch.setattr(Parcel, "send", sends)
    for many in (1, 1_000_000):
        monkeypatch.setattr(store_module, "MANY_CHANGES", many)
        path = tmp_path / f"{many}.db"
        store = SqliteStore(path, clock=Still())
        await store.migrate()
        await store.open()
        answers = await write_history(store)
        await store.close()
        written.append((answers, rows_of(path)))
    assert len(sent) == 3
    assert written[0] == written[1]
    assert written[0][0] == [{}, {}, {}]
    assert {len(rows) for rows in written[0][1].values()} != {0}


async def test_a_text_with_a_nul_is_kept_as_it_is(store: SqliteStore, packs_all: None) -> None:
    worker = await live_worker(store)
    new = new_run("a\0b")
    assert await store.commit(worker.worker_id, [Pen(new.run_id, epoch=1).change(1, start=new)]) == {}
    assert (await store.get("a\0b")).run_id == new.run_id
    pen = await start_owned(store, worker)
    assert await store.commit(worker.worker_id, [pen.change(1, move=Move(RunState.COMPLETED, None, "x\0y"))]) == {}
    assert (await store.get_run(pen.run_id)).reason == "x\0y"


async def test_a_value_that_cannot_be_held_is_bad_data_and_nothing_is_written(
    store: SqliteStore, path: Path, packs_all: None
) -> None:
    worker = await live_worker(store)
    pen, other = await start_owned(store, worker), await start_owned(store, worker)
    before = rows_of(path)
    values: list[tuple[Any, Any]] = [(2**63, "x"), (2**64, "x"), (5, "half a pair: \ud800"), (5, None), (5, object())]
    for at, body in values:
        bad = Change(run_id=pen.run_id, epoch=1, head=0, entries=[Entry(1, EntryKind.SIGNAL, at, 5, body)])
        with pytest.raises(BadData):
            await store.commit(worker.worker_id, [other.change(1), bad])
        assert rows_of(path) == before


# -- where it is written


class Threads:
    """Takes down where the steps of transactions are done."""

    def __init__(self) -> None:
        self.of: dict[str, threading.Thread] = {}

    def __call__(self, step: str) -> None:
        self.of[step] = threading.current_thread()


async def batch(store: SqliteStore, worker: WorkerInfo, count: int, **options: Any) -> list[Change]:
    """The next changes of runs that have begun."""
    pens = await begin(store, worker, count)
    return [pen.change(1, **options) for pen in pens]


async def begin(store: SqliteStore, worker: WorkerInfo, count: int) -> list[Pen]:
    news = [new_run() for _ in range(count)]
    pens = [Pen(new.run_id, epoch=1) for new in news]
    changes = [pen.change(1, start=new) for pen, new in zip(pens, news, strict=True)]
    assert await store.commit(worker.worker_id, changes) == {}
    for pen, change in zip(pens, changes, strict=True):
        pen.wrote(change)
    return pens


@pytest.mark.parametrize(
    ("count", "options", "beside"),
    [
        (MANY_CHANGES, {}, True),
        (MANY_CHANGES, {"move": DONE}, True),
        (MANY_CHANGES - 1, {}, False),
        (MANY_CHANGES, {"effects": Effects(outputs=[Output(kind=OutputKind.PUBLISHED, name="x", ord=1, at=1)])}, False),
    ],
    ids=["many", "many ends", "few", "many with effects"],
)
async def test_many_plain_changes_are_written_beside_the_event_loop(
    store: SqliteStore, count: int, options: dict[str, Any], beside: bool
) -> None:
    worker = await live_worker(store)
    changes = await batch(store, worker, count, **options)
    store.faults = threads = Threads()
    assert await store.commit(worker.worker_id, changes) == {}
    assert (threads.of["work"] is not threading.main_thread()) is beside


async def test_where_threads_wait_for_a_core_they_are_given_nothing_for_a_while(store: SqliteStore) -> None:
    worker = await live_worker(store)
    pens = [await begin(store, worker, MANY_CHANGES) for _ in range(6)]
    store.faults = threads = Threads()
    store._writer._handover_seconds = 15
    where: list[bool] = []
    for each in pens:
        await store.commit(worker.worker_id, [pen.change(1) for pen in each])
        where.append(threads.of["work"] is not threading.main_thread())
    assert where == [False] * 4 + [True] * 2


async def test_listeners_are_told_of_what_a_parcel_closed(store: SqliteStore) -> None:
    worker = await live_worker(store)
    changes = await batch(store, worker, MANY_CHANGES, move=DONE)
    closed: list[Any] = []
    store.listen(lambda hint: closed.extend(hint.closed or ()))
    await store.commit(worker.worker_id, changes)
    while len(closed) < MANY_CHANGES:
        await asyncio.sleep(0)
    assert set(closed) >= {change.run_id for change in changes}


# -- what can go wrong


async def test_one_that_is_refused_does_not_harm_those_it_was_packed_with(store: SqliteStore) -> None:
    worker = await live_worker(store)
    changes = await batch(store, worker, MANY_CHANGES)
    changes[5].epoch += 1
    assert await store.commit(worker.worker_id, changes) == {5: Verdict.REFUSED}
    heads = [(await store.get_run(change.run_id)).head for change in changes]
    assert heads == [0 if index == 5 else 1 for index in range(MANY_CHANGES)]


@pytest.mark.parametrize("step", ["begin", "work", "commit"])
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (sqlite3.SQLITE_IOERR_WRITE, StoreFailed),
        (sqlite3.SQLITE_IOERR_FSYNC, StoreFailed),
        (sqlite3.SQLITE_FULL, StoreFull),
        (sqlite3.SQLITE_BUSY, StoreUnavailable),
        (sqlite3.SQLITE_LOCKED, StoreUnavailable),
        (sqlite3.SQLITE_CORRUPT, StoreFailed),
    ],
)
async def test_a_parcel_that_fails_leaves_nothing_and_can_be_sent_again(
    store: SqliteStore, path: Path, monkeypatch: pytest.MonkeyPatch, step: str, code: int, expected: type[Exception]
) -> None:
    monkeypatch.setattr(writer, "PATIENCE_SECONDS", 0.02)
    worker = await live_worker(store)
    changes = await batch(store, worker, MANY_CHANGES, move=DONE)
    before = rows_of(path)

    def fail(at: str) -> None:
        if at == step:
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorcode = code
            raise error

    store.faults = fail
    with pytest.raises(expected):
        await store.commit(worker.worker_id, changes)
    store.faults = None
    assert rows_of(path) == before
    assert await store.commit(worker.worker_id, changes) == {}
    assert rows_of(path) != before


async def test_a_failure_after_its_commit_is_told_and_what_was_written_stays(store: SqliteStore, path: Path) -> None:
    worker = await live_worker(store)
    changes = await batch(store, worker, MANY_CHANGES, move=DONE)

    def fail(at: str) -> None:
        if at == "committed":
            error = sqlite3.OperationalError("injected")
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR_FSYNC
            raise error

    store.faults = fail
    with pytest.raises(StoreFailed):
        await store.commit(worker.worker_id, changes)
    store.faults = None
    after = rows_of(path)
    assert await store.commit(worker.worker_id, changes) == {}  # written again: it was us
    assert rows_of(path) == after


@pytest.mark.parametrize("site", ["commit.inside", "commit.after"])
async def test_failpoints_lie_on_both_sides_of_its_commit(store: SqliteStore, path: Path, site: str) -> None:
    worker = await live_worker(store)
    changes = await batch(store, worker, MANY_CHANGES)
    before = rows_of(path)
    arm(f"{site}:1:raise")
    try:
        with pytest.raises(InjectedFault):
            await store.commit(worker.worker_id, changes)
    finally:
        arm()
    assert (rows_of(path) == before) is (site == "commit.inside")
    assert await store.commit(worker.worker_id, changes) == {}


async def test_a_full_disk_undoes_all_of_it(store: SqliteStore, path: Path) -> None:
    """The real error of the real library."""
    worker = await live_worker(store)
    changes = await batch(store, worker, MANY_CHANGES, text="x" * 50_000)
    before = rows_of(path)
    connection = store._writer._connection
    assert connection is not None
    connection.execute("PRAGMA max_page_count = 1").fetchall()  # means: no more than there are now
    with pytest.raises(StoreFull):
        await store.commit(worker.worker_id, changes)
    assert rows_of(path) == before
    connection.execute("PRAGMA max_page_count = 1000000").fetchall()
    assert await store.commit(worker.worker_id, changes) == {}


async def test_who_is_in_the_way_for_a_moment_is_waited_for(store: SqliteStore, path: Path) -> None:
    worker = await live_worker(store)
    changes = await batch(store, worker, MANY_CHANGES)
    foreign = sqlite3.connect(path, isolation_level=None)
    foreign.execute("BEGIN IMMEDIATE")
    committing = asyncio.create_task(store.commit(worker.worker_id, changes))
    await asyncio.sleep(0)
    foreign.execute("ROLLBACK")
    foreign.close()
    assert await committing == {}


async def test_giving_up_a_parcel_leaves_no_transaction_open(store: SqliteStore) -> None:
    worker = await live_worker(store)
    for _ in range(5):
        changes = await batch(store, worker, MANY_CHANGES)
        task = asyncio.create_task(store.commit(worker.worker_id, changes))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await store.start(new_run()))[1]


async def test_two_stores_of_one_file_send_parcels_in_turn(make_store: MakeStore) -> None:
    async def write(store: Any) -> None:
        worker = await live_worker(store)
        pens = await begin(store, worker, MANY_CHANGES)
        for _ in range(10):
            changes = [pen.change(1) for pen in pens]
            assert await store.commit(worker.worker_id, changes) == {}
            for pen, change in zip(pens, changes, strict=True):
                pen.wrote(change)

    await asyncio.wait_for(asyncio.gather(write(await make_store()), write(await make_store())), 60)


@pytest.mark.parametrize("number", range(Q["unpack_parcels"].count(";")))
def test_what_is_in_a_parcel_finds_its_rows_by_an_index(number: int) -> None:
    body = Q["unpack_parcels"].partition("BEGIN")[2].rpartition("END")[0]
    statement = re.sub(r"raise\(ABORT, '[^']*'\)", "1", body.split(";")[number])
    statement = re.sub(r"NEW\.(\w+)", r":\1", statement)
    connection = sqlite3.connect(":memory:", isolation_level=None)
    schema.migrate(connection.cursor(), now=1)
    values = dict.fromkeys(re.findall(r":(\w+)", statement), "[]")
    plan = [row[3] for row in connection.execute(f"EXPLAIN QUERY PLAN {statement}", values).fetchall()]
    connection.close()
    assert plan or "changes()" in statement
    assert not [step for step in plan if re.match(r"SCAN (runs|journal|inbox|attempts|workers|queues)\b", step)]
