"""The writing connection as an activity's code has it."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from batuta.errors import TransactionEnded
from batuta.stores.sqlite.database.lent_connection import LentConnection
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import new_run

PATIENCE = 30.0


@pytest.fixture
def connection() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)) as made:
        made.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
        made.execute("BEGIN IMMEDIATE")
        yield made


def test_it_does_what_a_connection_does(connection: sqlite3.Connection) -> None:
    loan = LentConnection(connection)
    assert loan.execute("INSERT INTO orders (name) VALUES (?)", ("a",)).lastrowid == 1
    assert loan.executemany("INSERT INTO orders (name) VALUES (?)", [("b",), ("c",)]).rowcount == 2
    cursor = loan.execute("SELECT name FROM orders ORDER BY id")
    assert cursor.description is not None
    assert (cursor.fetchone(), cursor.fetchmany(1), list(cursor)) == (("a",), [("b",)], [("c",)])
    assert next(loan.execute("SELECT name FROM orders ORDER BY id")) == ("a",)
    assert next(iter(cursor), None) is None
    loan.row_factory = sqlite3.Row
    assert loan.execute("SELECT name FROM orders").fetchall()[0]["name"] == "a"
    assert loan.in_transaction
    assert loan.total_changes == 3


def test_savepoints_may_be_used(connection: sqlite3.Connection) -> None:
    loan = LentConnection(connection)
    loan.execute("SAVEPOINT a")
    loan.execute("INSERT INTO orders (name) VALUES ('a')")
    loan.execute("ROLLBACK TO a")
    loan.execute("rollback transaction to savepoint a")
    loan.execute("RELEASE a")
    assert loan.execute("SELECT count(*) FROM orders").fetchone() == (0,)


@pytest.mark.parametrize(
    "sql",
    [
        "COMMIT",
        " begin",
        "-- no\nEND",
        "/* x */ ROLLBACK",
        "; COMMIT",
        ";/**/;;\nEND",
        "\ufeffCOMMIT",
        "PRAGMA synchronous = OFF",
        "ATTACH 'x' AS y",
        "VACUUM",
    ],
)
def test_no_statement_ends_the_transaction_or_changes_the_connection(connection: sqlite3.Connection, sql: str) -> None:
    with pytest.raises(TransactionEnded):
        LentConnection(connection).execute(sql)
    assert connection.in_transaction


def test_no_method_ends_the_transaction(connection: sqlite3.Connection) -> None:
    loan = LentConnection(connection)
    for end in (loan.commit, loan.rollback, loan.close, lambda: loan.executescript("COMMIT")):
        with pytest.raises(TransactionEnded, match="committed by batuta"):
            end()
    with pytest.raises(TransactionEnded), loan:
        raise AssertionError("not reached")
    assert connection.in_transaction


def test_text_before_the_first_word_of_a_statement_is_skipped_quickly(connection: sqlite3.Connection) -> None:
    with pytest.raises(sqlite3.OperationalError):
        LentConnection(connection).execute(" " * 64 + "/**/" * 64 + "(")


def test_nothing_is_written_outside_of_a_transaction_that_the_database_has_ended(
    connection: sqlite3.Connection,
) -> None:
    loan = LentConnection(connection)
    loan.execute("INSERT INTO orders (id) VALUES (1)")
    with pytest.raises(sqlite3.IntegrityError):
        loan.execute("INSERT OR ROLLBACK INTO orders (id) VALUES (1)")
    assert not loan.in_transaction
    with pytest.raises(TransactionEnded, match="rolled back"):
        loan.execute("INSERT INTO orders (id) VALUES (2)")
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_it_is_of_no_use_once_it_is_taken_back(connection: sqlite3.Connection) -> None:
    loan = LentConnection(connection)
    cursor = loan.execute("SELECT 1 UNION SELECT 2")
    assert loan.take_back(wait=True)
    for use in (cursor.fetchone, loan.cursor, lambda: loan.execute("SELECT 1")):
        with pytest.raises(TransactionEnded, match="has ended"):
            use()
    connection.execute("COMMIT")


def test_a_statement_under_way_is_interrupted(connection: sqlite3.Connection) -> None:
    loan = LentConnection(connection)
    ended: list[BaseException] = []

    def endless() -> None:
        try:
            loan.execute("WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n")
        except sqlite3.OperationalError as error:
            ended.append(error)

    thread = threading.Thread(target=endless)
    thread.start()
    while thread.is_alive():
        loan.interrupt()
        thread.join(0.01)
    assert len(ended) == 1


async def test_an_unawaited_rollback_ends_after_the_running_statement(store: SqliteStore, path: Path) -> None:
    with closing(sqlite3.connect(path)) as reader:
        reader.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        transaction = store.transact(2.0)
        await transaction.begin()
        loan: Any = transaction.connection
        arrived, may_go_on = threading.Event(), threading.Event()

        class Late:
            """A value that is asked for when the statement is about to be executed."""

            def __conform__(self, _: object) -> int:
                arrived.set()
                may_go_on.wait(PATIENCE)
                return 1

        executing = asyncio.ensure_future(asyncio.to_thread(loan.execute, "INSERT INTO orders VALUES (?)", (Late(),)))
        await asyncio.to_thread(arrived.wait, PATIENCE)
        rollback = asyncio.ensure_future(transaction.rollback())
        await asyncio.sleep(0)
        rollback.cancel()
        await asyncio.wait([rollback])
        may_go_on.set()
        await asyncio.wait([executing])
        await store.start(new_run())  # which waits for its end
        assert reader.execute("SELECT count(*) FROM orders").fetchone() == (0,)
