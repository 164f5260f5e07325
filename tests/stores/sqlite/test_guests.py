"""Runs started inside a transaction of the caller's own `sqlite3` connection exist if, and only if, it commits."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batuta.errors import AlreadyStarted, StoreUnavailable, UnknownRun, WrongTransaction
from batuta.journal.bus.messages import NewMessage
from batuta.journal.records import IfExists, NewRun, StartOutcome
from batuta.journal.store import Borrowed
from batuta.stores.sqlite import caller_transaction
from batuta.stores.sqlite.database.files import open_lock, try_lock
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import claim_one, live_worker, new_run


@pytest.fixture
def connection(store: SqliteStore, path: Path) -> Iterator[sqlite3.Connection]:
    """The caller's own, to the file of the store, with a table of its own."""
    with closing(sqlite3.connect(path)) as made:
        with made:
            made.execute("CREATE TABLE orders (id INTEGER)")
        yield made


@pytest.fixture
def mended(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a SQLite whose own locks are enough."""
    monkeypatch.setattr(caller_transaction, "SAFE", (3, 0, 0))


@pytest.fixture
def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with a SQLite whose own locks are not."""
    monkeypatch.setattr(caller_transaction, "SAFE", (4, 0, 0))


async def begin(borrowed: Borrowed) -> Borrowed:
    for pause in borrowed.begin():
        await asyncio.sleep(pause)
    return borrowed


async def start(store: SqliteStore, connection: sqlite3.Connection, *runs: NewRun) -> list[StartOutcome]:
    return await (await store.enter(connection, runs)).start_many(runs)


async def exists(store: SqliteStore, run: NewRun) -> bool:
    try:
        await store.get_run(run.run_id)
    except UnknownRun:
        return False
    return True


def orders(path: Path) -> int:
    with closing(sqlite3.connect(path)) as other:
        count: int = other.execute("SELECT count(*) FROM orders").fetchone()[0]
        return count


@pytest.mark.parametrize("version", ["broken", "mended"])
async def test_a_run_and_the_callers_rows_are_there_together_or_not_at_all(
    store: SqliteStore, connection: sqlite3.Connection, path: Path, version: str, request: pytest.FixtureRequest
) -> None:
    request.getfixturevalue(version)
    worker, start_body = await live_worker(store), '{"value":["\\u0000é"]}'
    for commit in (False, True):
        run = new_run("a", start=start_body)
        borrowed = await begin(store.borrow(connection))
        connection.execute("INSERT INTO orders VALUES (1)")
        [(found, is_new)] = await start(store, connection, run)  # type: ignore[misc]  # it is no error
        assert (found.run_id, is_new) == (run.run_id, True)
        assert not await exists(store, run)
        borrowed.end(commit=commit)
        assert await exists(store, run) is commit
        assert orders(path) == commit
    assert (await claim_one(store, worker)).messages[0].body == start_body


async def test_others_cannot_write_meanwhile_and_go_on_afterwards(
    store: SqliteStore, connection: sqlite3.Connection, path: Path
) -> None:
    borrowed = await begin(store.borrow(connection))
    lock = open_lock(path.with_name(path.name + "-lock"))
    assert not try_lock(lock)
    waiting = asyncio.create_task(store.start(new_run("b")))
    connection.execute("INSERT INTO orders VALUES (1)")
    borrowed.end(commit=True)
    assert (await waiting)[1]
    assert try_lock(lock)
    os.close(lock)


async def test_a_caller_that_waits_too_long_for_the_lock_gets_an_error(
    store: SqliteStore, connection: sqlite3.Connection, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_transaction, "PATIENCE_SECONDS", 0.01)
    lock = open_lock(path.with_name(path.name + "-lock"))
    assert try_lock(lock)
    with pytest.raises(StoreUnavailable, match="too long"):
        await begin(store.borrow(connection))
    assert not connection.in_transaction
    os.close(lock)


async def test_without_the_lock_an_old_sqlite_is_refused(
    store: SqliteStore, connection: sqlite3.Connection, broken: None
) -> None:
    connection.execute("BEGIN")
    with pytest.raises(WrongTransaction, match="transaction\\(connection\\)"):
        await start(store, connection, new_run())


@pytest.mark.parametrize("begun", [True, False])
async def test_a_sqlite_whose_locks_are_enough_needs_no_more_than_a_transaction(
    store: SqliteStore, connection: sqlite3.Connection, mended: None, begun: bool
) -> None:
    run = new_run()
    if begun:
        connection.execute("INSERT INTO orders VALUES (1)")
    await start(store, connection, run)
    assert not await exists(store, run)
    connection.commit()
    assert await exists(store, run)


async def test_a_connection_that_commits_by_itself_is_refused_outside_of_a_transaction(
    store: SqliteStore, connection: sqlite3.Connection, mended: None
) -> None:
    connection.isolation_level = None
    with pytest.raises(WrongTransaction, match="no transaction is open"):
        await start(store, connection, new_run())
    connection.execute("BEGIN")
    await start(store, connection, new_run())
    connection.execute("COMMIT")


MODES: list[dict[str, Any]] = [{"isolation_level": None}, {"isolation_level": ""}, {"isolation_level": "EXCLUSIVE"}]
if sys.version_info >= (3, 12):
    MODES.append({"autocommit": True})


@pytest.mark.parametrize("mode", MODES, ids=str)
async def test_however_the_connection_commits_by_itself_the_block_commits_and_rolls_back(
    store: SqliteStore, connection: sqlite3.Connection, path: Path, mode: dict[str, Any]
) -> None:
    with closing(sqlite3.connect(path, **mode)) as own:
        for commit in (True, False):
            run = new_run()
            borrowed = await begin(store.borrow(own))
            own.execute("INSERT INTO orders VALUES (1)")
            await start(store, own, run)
            borrowed.end(commit=commit)
            assert await exists(store, run) is commit
    assert orders(path) == 1


async def test_a_connection_that_is_always_in_a_transaction_cannot_be_borrowed(
    store: SqliteStore, connection: sqlite3.Connection, path: Path, mended: None
) -> None:
    if sys.version_info >= (3, 12):
        with closing(sqlite3.connect(path, autocommit=False)) as own:
            with pytest.raises(WrongTransaction, match="autocommit=False"):
                await begin(store.borrow(own))
            run = new_run()
            await start(store, own, run)
            own.commit()
        assert await exists(store, run)


async def test_a_savepoint_takes_back_what_was_started_after_it(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    before, within = new_run(), new_run()
    borrowed = await begin(store.borrow(connection))
    await start(store, connection, before)
    connection.execute("SAVEPOINT here")
    await start(store, connection, within)
    connection.execute("ROLLBACK TO here")
    borrowed.end(commit=True)
    assert await exists(store, before)
    assert not await exists(store, within)


async def test_an_id_that_is_taken_does_not_harm_the_transaction(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    taken, _ = await store.start(new_run("a"))
    other = new_run("b")
    borrowed = await begin(store.borrow(connection))
    refused, same, _ = await start(store, connection, new_run("a", if_exists=IfExists.REJECT), new_run("a"), other)
    borrowed.end(commit=True)
    assert isinstance(refused, AlreadyStarted)
    assert same == (taken, False)
    assert await exists(store, other)


async def test_others_hear_of_it_when_it_is_committed(
    store: SqliteStore, make_store: MakeStore, connection: sqlite3.Connection
) -> None:
    near, far = Ear(store), Ear(await make_store())
    borrowed = await begin(store.borrow(connection))
    await start(store, connection, new_run())
    near.hints.clear()
    far.hints.clear()
    borrowed.end(commit=True)
    await near.hears(lambda hint: hint.due)
    await far.hears(lambda hint: hint.due)


async def test_its_own_process_hears_of_messages_at_once(store: SqliteStore, connection: sqlite3.Connection) -> None:
    ear = Ear(store)
    borrowed = await begin(store.borrow(connection))
    await (await store.enter(connection, [])).publish([NewMessage(topic="orders", id="1", body="{}")])
    borrowed.end(commit=True)
    await ear.hears(lambda hint: hint.bus and not hint.partners)  # a look at the file's version hints at everything


def as_bytes(data: bytes) -> Any:
    return data


@pytest.mark.parametrize(("rows", "texts"), [(sqlite3.Row, str), (None, bytes), (lambda _, row: {}, as_bytes)])
async def test_what_the_caller_has_made_of_its_connection_does_not_matter(
    store: SqliteStore, connection: sqlite3.Connection, rows: Any, texts: Any
) -> None:
    connection.row_factory, connection.text_factory = rows, texts
    run = new_run("a")
    borrowed = await begin(store.borrow(connection))
    await start(store, connection, run)
    await start(store, connection, new_run("a"))
    borrowed.end(commit=True)
    assert (connection.row_factory, connection.text_factory) == (rows, texts)
    assert await exists(store, run)


async def test_another_file_is_refused(store: SqliteStore, tmp_path: Path) -> None:
    for place in (":memory:", str(tmp_path / "other.db")):
        with closing(sqlite3.connect(place)) as other:
            with pytest.raises(WrongTransaction, match="the client's database is"):
                await begin(store.borrow(other))
            with pytest.raises(WrongTransaction, match="the client's database is"):
                await start(store, other, new_run())


async def test_the_same_file_by_another_name_is_the_same(store: SqliteStore, path: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with closing(sqlite3.connect(link)) as other:
        borrowed = await begin(store.borrow(other))
        run = new_run()
        await start(store, other, run)
        borrowed.end(commit=True)
    assert await exists(store, run)


async def test_a_transaction_that_is_open_already_is_not_taken_over(
    store: SqliteStore, connection: sqlite3.Connection
) -> None:
    connection.execute("INSERT INTO orders VALUES (1)")
    with pytest.raises(WrongTransaction, match="in a transaction already"):
        await begin(store.borrow(connection))
    connection.rollback()
    borrowed = await begin(store.borrow(connection))
    borrowed.end(commit=True)


async def test_what_the_caller_has_ended_itself_is_over(
    store: SqliteStore, connection: sqlite3.Connection, path: Path
) -> None:
    borrowed = await begin(store.borrow(connection))
    connection.execute("INSERT INTO orders VALUES (1)")
    connection.rollback()
    borrowed.end(commit=True)
    assert orders(path) == 0
    with pytest.raises(WrongTransaction):
        await start(store, connection, new_run())


async def test_an_object_that_is_no_connection_is_refused_with_those_that_are(store: SqliteStore) -> None:
    with pytest.raises(WrongTransaction, match=r"give a sqlite3\.Connection to the same file"):
        await store.enter(object(), [])


async def test_threads_that_borrow_at_once_take_turns(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as first, first:
        first.execute("CREATE TABLE orders (id INTEGER)")

    def work() -> None:
        with closing(sqlite3.connect(path)) as own:
            for number in range(20):
                borrowed = store.borrow(own)
                for pause in borrowed.begin():
                    threading.Event().wait(pause)
                own.execute("INSERT INTO orders VALUES (?)", (number,))
                borrowed.end(commit=True)

    await asyncio.gather(*(asyncio.to_thread(work) for _ in range(3)), *(store.start(new_run()) for _ in range(20)))
    assert orders(path) == 60
