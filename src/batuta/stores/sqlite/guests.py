"""Starting runs inside a transaction of the caller's own `sqlite3` connection to the same file.

SQLite before 3.51.3 can damage a WAL that two connections write or checkpoint at once. There, a transaction must begin
and commit under the lock that all writers of ours take (see `writer`): `borrow` does both.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from batuta.errors import StoreUnavailable, WrongTransaction
from batuta.journal.records import Hint, NewRun, StartOutcome
from batuta.stores.sqlite.connection import PATIENCE_SECONDS, identity
from batuta.stores.sqlite.place import open_lock, try_lock

SAFE = (3, 51, 3)
"""From this version on, SQLite's own locks are enough."""
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.01

Start = Callable[[sqlite3.Cursor, Sequence[NewRun], NewRun | None], list[StartOutcome]]


class Guests:
    """The transactions of callers in which this store may write."""

    def __init__(self, path: Path, start: Start, tell: Callable[[Hint], None]) -> None:
        self.path = path
        self.start = start
        self.tell = tell
        self.borrowed: dict[int, BorrowedConnection] = {}
        """By the id of the connection, while it is borrowed."""

    def enter(self, transaction: object) -> SqliteGuest:
        return SqliteGuest(self, _connection_of(transaction))

    def borrow(self, connection: object) -> BorrowedConnection:
        return BorrowedConnection(self, _connection_of(connection))


def _connection_of(transaction: object) -> sqlite3.Connection:
    if isinstance(transaction, sqlite3.Connection):
        return transaction
    raise WrongTransaction(
        f"{_name(transaction)} cannot be used with a client of SQLite: give a sqlite3.Connection to the same file "
        f"(of a SQLAlchemy session: session.connection().connection.driver_connection)"
    )


def _name(thing: object) -> str:
    return f"{type(thing).__module__}.{type(thing).__qualname__}"


class SqliteGuest:
    """The caller's transaction. Used in the thread that has the connection."""

    blocking = True
    brief = True

    def __init__(self, guests: Guests, connection: sqlite3.Connection) -> None:
        self._guests, self._connection = guests, connection

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        connection = self._connection
        check_file(connection, self._guests.path)
        borrowed = self._guests.borrowed.get(id(connection))
        if borrowed is None and sqlite3.sqlite_version_info < SAFE:
            raise WrongTransaction(
                f"with SQLite {sqlite3.sqlite_version} two programs that write at once can damage the file: begin the "
                f"transaction with `async with client.transaction(connection):` (or use SQLite 3.51.3, or later)"
            )
        _check_begun(connection)
        with _plain_cursor(connection) as cursor:
            outcomes = self._guests.start(cursor, runs, after)
        if borrowed is not None:
            borrowed.has_news = True
        return outcomes


class BorrowedConnection:
    """A caller's connection, in a transaction that begins and ends under the lock of all writers."""

    def __init__(self, guests: Guests, connection: sqlite3.Connection) -> None:
        self._guests, self._connection = guests, connection
        self._lock = -1
        self.has_news = False

    def begin(self) -> Generator[float, None, None]:
        check_file(self._connection, self._guests.path)
        if self._connection.in_transaction:
            raise WrongTransaction(
                "the connection is in a transaction already: commit it before `transaction(connection)`, which begins "
                "and commits one (a connection with autocommit=False is always in one, and cannot be used here)"
            )
        path = self._guests.path
        self._lock = open_lock(path.with_name(path.name + "-lock"))
        try:
            yield from self._wait()
            self._connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._release()
            raise
        self._guests.borrowed[id(self._connection)] = self

    def _wait(self) -> Iterator[float]:
        give_up = time.monotonic() + PATIENCE_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while not try_lock(self._lock):
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"others have been writing to {self._guests.path.name!r} for too long")
            yield pause
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)

    def end(self, *, commit: bool) -> None:
        try:
            if self._connection.in_transaction:
                # Not commit() and rollback(), which do nothing on a connection with autocommit=True.
                self._connection.execute("COMMIT" if commit else "ROLLBACK")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        finally:
            self._guests.borrowed.pop(id(self._connection), None)
            self._release()
        if commit and self.has_news:
            self._guests.tell(Hint(due=True))

    def _release(self) -> None:
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)


@contextmanager
def _plain_cursor(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor that gives rows as they are, whatever the caller has made of its connection."""
    before, connection.text_factory = connection.text_factory, str
    try:
        with closing(connection.cursor()) as cursor:
            cursor.row_factory = None
            yield cursor
    finally:
        connection.text_factory = before


def check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Raise WrongTransaction unless the connection is to the file at `path`."""
    with _plain_cursor(connection) as cursor:
        rows = cursor.execute("PRAGMA database_list").fetchall()
    file = next((row[2] for row in rows if row[1] == "main"), None)
    if not file or identity(file) != identity(str(path)):
        raise WrongTransaction(
            f"the connection is to {file or 'a database in memory'!r}, and the client's database is {str(path)!r}"
        )


def _check_begun(connection: sqlite3.Connection) -> None:
    """Raise WrongTransaction unless a transaction is open, or the connection would open one before an INSERT."""
    if connection.in_transaction:
        return
    if connection.isolation_level is None or getattr(connection, "autocommit", -1) is True:
        raise WrongTransaction(
            "no transaction is open on this connection: execute BEGIN first, or leave out `transaction=`"
        )
    connection.execute("BEGIN IMMEDIATE")
