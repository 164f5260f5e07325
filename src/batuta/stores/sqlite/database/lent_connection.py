"""The writing connection, lent to the code of an activity: for its statements, and until it is taken back."""

from __future__ import annotations

import re
import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any, NoReturn, Self, TypeVar

from batuta.errors import TransactionEnded

T = TypeVar("T")

_SKIPPED = r"(?:[\s;\ufeff]|--[^\n]*\n|/\*.*?\*/)*+"  # by SQLite, too: empty statements, and a byte order mark
_WORD = re.compile(_SKIPPED + r"([A-Za-z]+)((?:\s+TRANSACTION)?\s+TO\b)?", re.DOTALL | re.IGNORECASE)
_ENDS = frozenset({"BEGIN", "COMMIT", "END", "ROLLBACK"})
_OVER = "the transaction has ended: its activity has ended, or exceeded its time"
_NOT_YOURS = (
    "the transaction of an activity is committed by batuta, with the activity's result: leave it open, and raise an "
    "error to have it rolled back (SAVEPOINT and ROLLBACK TO may be used inside it)"
)
_NOT_LENT = frozenset({"ATTACH", "DETACH", "PRAGMA", "VACUUM"})


class LentConnection:
    """A `sqlite3.Connection` that cannot end the transaction, which Batuta does, or change the connection's settings.

    Used in one thread; taken back in another.
    """

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._over = False
        self._cursors: list[sqlite3.Cursor] = []
        self.row_factory: Callable[[sqlite3.Cursor, tuple[Any, ...]], Any] | None = None
        """Of cursors that are made from here on."""

    def execute(self, sql: str, parameters: Any = (), /) -> LentCursor:
        """In one call, on its own cursor."""
        check(sql)
        with self._lock:
            if self._over:
                raise TransactionEnded(_OVER)
            self.check_open()
            cursor = self._connection.cursor()
            cursor.row_factory = self.row_factory
            self._cursors.append(cursor)
            cursor.execute(sql, parameters)
        return LentCursor(self, cursor)

    def executemany(self, sql: str, parameters: Any, /) -> LentCursor:
        return self.cursor().executemany(sql, parameters)

    def cursor(self) -> LentCursor:
        cursor = self.use(self._connection.cursor)
        cursor.row_factory = self.row_factory
        self._cursors.append(cursor)
        return LentCursor(self, cursor)

    @property
    def in_transaction(self) -> bool:
        return not self._over and self._connection.in_transaction

    @property
    def total_changes(self) -> int:
        return self._connection.total_changes

    def use(self, work: Callable[[], T]) -> T:
        """Raises TransactionEnded when it was taken back, or the database has rolled it back."""
        with self._lock:
            if self._over:
                raise TransactionEnded(_OVER)
            self.check_open()
            return work()

    def check_open(self) -> None:
        """Raises TransactionEnded when the database has rolled it back: later writes would stay."""
        if not self._connection.in_transaction:
            raise TransactionEnded(
                "the database has rolled back the transaction of the activity, at a statement that failed (as INSERT "
                "OR ROLLBACK does, or a full disk): nothing of it is left. Raise the statement's error"
            )

    def take_back(self, *, wait: bool) -> bool:
        """Make it useless to its holder. False when a statement is under way and it does not wait."""
        self._over = True
        if not self._lock.acquire(blocking=wait):
            return False
        try:
            for cursor in self._cursors:  # an unfinished cursor would keep a checkpoint from ending
                cursor.close()
            self._cursors.clear()
        finally:
            self._lock.release()
        return True

    def interrupt(self) -> None:
        """End the statement that is under way, from any thread."""
        self._connection.interrupt()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TransactionEnded(_NOT_YOURS)

    commit = rollback = close = executescript = __enter__ = __exit__ = _refuse


class LentCursor:
    """A cursor of a loan."""

    def __init__(self, loan: LentConnection, cursor: sqlite3.Cursor) -> None:
        self._lent, self._cursor = loan, cursor

    def execute(self, sql: str, parameters: Any = (), /) -> Self:
        check(sql)
        self._lent.use(lambda: self._cursor.execute(sql, parameters))
        return self

    def executemany(self, sql: str, parameters: Any, /) -> Self:
        check(sql)
        rows = list(parameters)  # made by the caller's code, which may use this very connection
        self._lent.use(lambda: self._cursor.executemany(sql, rows))
        return self

    def fetchone(self) -> Any:
        return self._lent.use(self._cursor.fetchone)

    def fetchmany(self, size: int = 1) -> list[Any]:
        return self._lent.use(lambda: self._cursor.fetchmany(size))

    def fetchall(self) -> list[Any]:
        return self._lent.use(self._cursor.fetchall)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        row = self.fetchone()
        if row is None:
            raise StopIteration
        return row

    @property
    def rowcount(self) -> int:
        return self._cursor.rowcount

    @property
    def lastrowid(self) -> int | None:
        return self._cursor.lastrowid

    @property
    def description(self) -> Sequence[Any] | None:
        return self._cursor.description

    @property
    def row_factory(self) -> Any:
        return self._cursor.row_factory

    @row_factory.setter
    def row_factory(self, factory: Any) -> None:
        self._cursor.row_factory = factory

    def close(self) -> None:
        self._lent.use(self._cursor.close)


def check(sql: str) -> None:
    """Raises TransactionEnded when the statement would end the transaction, or change the connection."""
    found = _WORD.match(sql)
    word = found[1].upper() if found else ""
    if word in _ENDS and not (found and found[2]):
        raise TransactionEnded(_NOT_YOURS)
    if word in _NOT_LENT:
        raise TransactionEnded(f"{word} would change the store's own connection: use another one for that")
