"""Translates SQLite's errors."""

from __future__ import annotations

import sqlite3

from batuta.errors import BadData, StoreError, StoreFailed, StoreFull, StoreUnavailable

_AWAY = {
    sqlite3.SQLITE_BUSY: "the database is locked by another program",
    sqlite3.SQLITE_LOCKED: "the database is locked",
    sqlite3.SQLITE_PROTOCOL: "the database is locked by too many programs at once",
    sqlite3.SQLITE_CANTOPEN: "the database file cannot be opened",
    sqlite3.SQLITE_READONLY: "the database file cannot be written",
    sqlite3.SQLITE_PERM: "the database file may not be accessed",
    sqlite3.SQLITE_NOMEM: "out of memory",
    sqlite3.SQLITE_INTERRUPT: "the statement was interrupted",
}
_BROKEN = {
    sqlite3.SQLITE_IOERR: "the disk failed",
    sqlite3.SQLITE_CORRUPT: "the database file is damaged",
    sqlite3.SQLITE_NOTADB: "the file is not a SQLite database",
}
_REFUSED_VALUE = {
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_MISMATCH,
    sqlite3.SQLITE_TOOBIG,
    sqlite3.SQLITE_RANGE,
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
    return _by_code(code & 0xFF, f"{error} ({getattr(error, 'sqlite_errorname', code)})")


def _by_code(code: int, text: str) -> StoreError:
    if code == sqlite3.SQLITE_FULL:
        return StoreFull(f"the disk is full: {text}; free some space, work then goes on by itself")
    if code in _AWAY:
        return StoreUnavailable(f"{_AWAY[code]}: {text}")
    if code in _BROKEN:
        return StoreFailed(f"{_BROKEN[code]}: {text}")
    if code in _REFUSED_VALUE:
        return BadData(f"SQLite refused a value: {text}")
    return StoreError(f"SQLite: {text}")
