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
from typing import Protocol

from batuta.errors import StoreUnavailable, WrongTransaction
from batuta.ids import RunId
from batuta.journal.bus.messages import NewMessage
from batuta.journal.entries import Entry
from batuta.journal.records import Hint, Message, NewRun, Run, StartOutcome
from batuta.stores.sqlite import starts
from batuta.stores.sqlite.database.connection import PATIENCE_SECONDS
from batuta.stores.sqlite.database.files import LockFile, identity
from batuta.stores.sqlite.database.process_fork import forks

SAFE = (3, 51, 3)
"""From this version on, SQLite's own locks are enough."""
_FIRST_PAUSE_SECONDS = 0.001
_LONGEST_PAUSE_SECONDS = 0.01


class Host(Protocol):
    """The part of the store that a caller's transaction uses."""

    namespace: str

    def start_on(self, cursor: sqlite3.Cursor, runs: Sequence[NewRun], after: NewRun | None) -> list[StartOutcome]: ...
    def send_on(self, cursor: sqlite3.Cursor, run_id: RunId, message: Message) -> Hint | None: ...
    def publish_on(self, cursor: sqlite3.Cursor, messages: Sequence[NewMessage]) -> list[str]: ...
    def tell(self, hint: Hint) -> None: ...


class CallerTransactions:
    """The transactions of callers in which this store may write."""

    def __init__(self, host: Host, path: Path) -> None:
        self.host, self.path = host, path
        self.borrowed: dict[int, BorrowedConnection] = {}
        """By the id of the connection, while it is borrowed."""

    def enter(self, transaction: object) -> SqliteCallerTransaction:
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

    def __init__(self, caller_transactions: CallerTransactions, connection: sqlite3.Connection) -> None:
        self._caller_transactions, self._connection = caller_transactions, connection

    async def start_of(self, run: Run) -> Entry | Message | None:
        with _plain_cursor(self._connection) as cursor:
            return starts.start_of(cursor, self._caller_transactions.host.namespace, run.chain_id)

    async def parent_of(self, run_id: RunId) -> tuple[RunId | None, int]:
        with _plain_cursor(self._connection) as cursor:
            run = starts.find(cursor, self._caller_transactions.host.namespace, run_id)
        return run.parent_run_id, run.parent_seq

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        with self._writing() as (cursor, borrowed):
            outcomes = self._caller_transactions.host.start_on(cursor, runs, after)
        if borrowed is not None:
            borrowed.news.due = True
        return outcomes

    async def send(self, run_id: RunId, id: str, message: Message) -> bool:
        with self._writing() as (cursor, borrowed):
            hint = self._caller_transactions.host.send_on(cursor, run_id, message)
        if borrowed is not None and hint is not None:
            borrowed.news.due = borrowed.news.due or hint.due
            borrowed.news.messages += hint.messages
        return hint is not None

    async def publish(self, messages: Sequence[NewMessage]) -> list[str]:
        with self._writing() as (cursor, borrowed):
            fresh = self._caller_transactions.host.publish_on(cursor, messages)
        if borrowed is not None:
            borrowed.news.bus = borrowed.news.bus or bool(fresh)
        return fresh

    @contextmanager
    def _writing(self) -> Iterator[tuple[sqlite3.Cursor, BorrowedConnection | None]]:
        """A cursor in the caller's transaction. Raises WrongTransaction."""
        connection = self._connection
        check_file(connection, self._caller_transactions.path)
        borrowed = self._caller_transactions.borrowed.get(id(connection))
        if borrowed is None and sqlite3.sqlite_version_info < SAFE:
            raise WrongTransaction(
                f"with SQLite {sqlite3.sqlite_version} two programs that write at once can damage the file: begin the "
                f"transaction with `async with client.transaction(connection):` (or use SQLite 3.51.3, or later)"
            )
        _check_begun(connection)
        with _plain_cursor(connection) as cursor:
            yield cursor, borrowed


class BorrowedConnection:
    """A caller's connection, in a transaction that begins and ends under the lock of all writers."""

    def __init__(self, caller_transactions: CallerTransactions, connection: sqlite3.Connection) -> None:
        self._caller_transactions, self._connection = caller_transactions, connection
        self._lock = LockFile(caller_transactions.path.with_name(caller_transactions.path.name + "-lock"))
        self.news = Hint()
        """Called when it commits."""

    def begin(self) -> Generator[float, None, None]:
        check_file(self._connection, self._caller_transactions.path)
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
        self._caller_transactions.borrowed[id(self._connection)] = self

    def _wait(self) -> Iterator[float]:
        give_up = time.monotonic() + PATIENCE_SECONDS
        pause = _FIRST_PAUSE_SECONDS
        while not self._lock.try_take():
            if time.monotonic() > give_up:
                raise StoreUnavailable(
                    f"others have been writing to {self._caller_transactions.path.name!r} for too long"
                )
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
            self._caller_transactions.borrowed.pop(id(self._connection), None)
            self._lock.close()
        if commit and (self.news.due or self.news.messages):
            self._caller_transactions.host.tell(self.news)


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
