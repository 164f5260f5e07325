"""Starting runs, and sending messages, inside a transaction of the caller's own `sqlite3` connection to the same file.

SQLite before 3.51.3 can damage a WAL that two connections write or checkpoint at once. There, a transaction must begin
and commit under the lock that all writers of ours take (see `writer`): `borrow` does both.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from batuta.errors import StoreUnavailable, WrongTransaction
from batuta.ids import RunId
from batuta.journal.bus.messages import NewMessage
from batuta.journal.entries import Entry
from batuta.journal.records import Hint, Message, NewRun, Run, StartOutcome
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.bus.messages import publish
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.connection import PATIENCE_SECONDS
from batuta.stores.sqlite.database.files import LockFile, identity
from batuta.stores.sqlite.database.process_fork import forks
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.fast import bulk_starts

SAFE = (3, 51, 3)
"""From this version on, SQLite's own locks are enough."""
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.01


class CallerTransactionVerbs(Base):
    """The part of the store that writes in transactions of callers."""

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> SqliteCallerTransaction:
        return SqliteCallerTransaction(self, _connection_of(transaction))

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


class SqliteCallerTransaction:
    """The caller's transaction. Used in the thread that has the connection."""

    blocking = True
    brief = True

    def __init__(self, store: Base, connection: sqlite3.Connection) -> None:
        self._store, self._connection = store, connection

    async def start_of(self, run: Run) -> Entry | Message | None:
        with _plain_cursor(self._connection) as cursor:
            return starts.start_of(self._store.unit(cursor), run.chain_id)

    async def parent_of(self, run_id: RunId) -> tuple[RunId | None, int]:
        with _plain_cursor(self._connection) as cursor:
            run = self._store.unit(cursor).run(run_id)
        return run.parent_run_id, run.parent_seq

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        with self._writing() as unit:
            return bulk_starts.start_many(unit, runs, after)

    async def send(self, run_id: RunId, id: str, message: Message) -> bool:
        with self._writing() as unit:
            return starts.send(unit, run_id, message)

    async def publish(self, messages: Sequence[NewMessage]) -> list[str]:
        with self._writing() as unit:
            return publish(unit, messages)

    @contextmanager
    def _writing(self) -> Iterator[UnitOfWork]:
        """Work in the caller's transaction. Raises WrongTransaction."""
        connection = self._connection
        check_file(connection, self._store.path)
        hint = self._store.borrowed.get(id(connection))
        if hint is None and sqlite3.sqlite_version_info < SAFE:
            raise WrongTransaction(
                f"with SQLite {sqlite3.sqlite_version} two programs that write at once can damage the file: begin the "
                f"transaction with `async with client.transaction(connection):` (or use SQLite 3.51.3, or later)"
            )
        _check_begun(connection)
        with _plain_cursor(connection) as cursor:
            yield self._store.unit(cursor, hint)


class BorrowedConnection:
    """A caller's connection, in a transaction that begins and ends under the lock of all writers."""

    def __init__(self, store: Base, connection: sqlite3.Connection) -> None:
        self._store, self._connection = store, connection
        self._lock = LockFile(store.path.with_name(store.path.name + "-lock"))
        self._hint = Hint()
        """For listeners, when it commits."""

    def begin(self) -> Generator[float, None, None]:
        check_file(self._connection, self._store.path)
        if self._connection.in_transaction:
            raise WrongTransaction(
                "the connection is in a transaction already: commit it before `transaction(connection)`, which begins "
                "and commits one (a connection with autocommit=False is always in one, and cannot be used here)"
            )
        self._lock.open()
        try:
            yield from self._wait()
            self._connection.execute("BEGIN IMMEDIATE")
        except BaseException:
            self._lock.close()
            raise
        self._store.borrowed[id(self._connection)] = self._hint

    def _wait(self) -> Iterator[float]:
        give_up = time.monotonic() + PATIENCE_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while not self._lock.try_take():
            if time.monotonic() > give_up:
                raise StoreUnavailable(f"others have been writing to {self._store.path.name!r} for too long")
            yield pause
            pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)

    def end(self, *, commit: bool) -> None:
        try:
            if self._connection.in_transaction:
                if commit and not self._lock.is_in_place():  # deleted meanwhile: others may have taken another one
                    for pause in self._wait():
                        time.sleep(pause)
                # Not commit() and rollback(), which do nothing on a connection with autocommit=True.
                self._connection.execute("COMMIT" if commit else "ROLLBACK")
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        finally:
            self._store.borrowed.pop(id(self._connection), None)
            self._lock.close()
        if commit:
            self._store.tell(self._hint)


@contextmanager
def _plain_cursor(connection: sqlite3.Connection) -> Iterator[sqlite3.Cursor]:
    """A cursor that returns plain rows, whatever the caller has set on its connection."""
    before, connection.text_factory = connection.text_factory, str
    try:
        with closing(connection.cursor()) as cursor:
            cursor.row_factory = None
            yield cursor
    finally:
        connection.text_factory = before


def check_file(connection: sqlite3.Connection, path: Path) -> None:
    """Raise WrongTransaction unless the connection is to the file at `path`; ClientError when it is the parent's."""
    forks.refuse_inherited(path, identity(str(path)))
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
