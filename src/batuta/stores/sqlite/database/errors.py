"""Translates SQLite's errors."""

from __future__ import annotations

import sqlite3

from batuta.errors import BadData, StoreError, StoreFailed, StoreFull, StoreUnavailable

_MEANINGS: dict[int, tuple[type[StoreError], str]] = {
    sqlite3.SQLITE_BUSY: (StoreUnavailable, "the database is locked by another program"),
    sqlite3.SQLITE_LOCKED: (StoreUnavailable, "the database is locked"),
    sqlite3.SQLITE_PROTOCOL: (StoreUnavailable, "the database is locked by too many programs at once"),
    sqlite3.SQLITE_CANTOPEN: (StoreUnavailable, "the database file cannot be opened"),
    sqlite3.SQLITE_READONLY: (StoreUnavailable, "the database file cannot be written"),
    sqlite3.SQLITE_PERM: (StoreUnavailable, "the database file may not be accessed"),
    sqlite3.SQLITE_NOMEM: (StoreUnavailable, "out of memory"),
    sqlite3.SQLITE_INTERRUPT: (StoreUnavailable, "the statement was interrupted"),
    sqlite3.SQLITE_IOERR: (StoreFailed, "the disk failed"),
    sqlite3.SQLITE_CORRUPT: (StoreFailed, "the database file is damaged"),
    sqlite3.SQLITE_NOTADB: (StoreFailed, "the file is not a SQLite database"),
    sqlite3.SQLITE_CONSTRAINT: (BadData, "SQLite refused a value"),
    sqlite3.SQLITE_MISMATCH: (BadData, "SQLite refused a value"),
    sqlite3.SQLITE_TOOBIG: (BadData, "SQLite refused a value"),
    sqlite3.SQLITE_RANGE: (BadData, "SQLite refused a value"),
}
# A value that the driver cannot even hand over: a number beyond 64 bits, half a surrogate pair, a foreign type.
_UNBINDABLE = (OverflowError, UnicodeEncodeError, sqlite3.InterfaceError, sqlite3.ProgrammingError, sqlite3.DataError)


def translate(error: Exception) -> StoreError | None:
    """The store's error for a driver's error; None when it is not about the database."""
    code = getattr(error, "sqlite_errorcode", None)
    if isinstance(error, StoreError):
        return error
    if code is None:
        if isinstance(error, _UNBINDABLE):
            return BadData(f"SQLite cannot hold a value: {error}")
        return StoreError(f"SQLite: {error}") if isinstance(error, sqlite3.Error) else None
    text = f"{error} ({getattr(error, 'sqlite_errorname', code)})"
    if code & 0xFF == sqlite3.SQLITE_FULL:
        return StoreFull(f"the disk is full: {text}; free some space, work then goes on by itself")
    kind, what = _MEANINGS.get(code & 0xFF, (StoreError, "SQLite"))
    return kind(f"{what}: {text}")
