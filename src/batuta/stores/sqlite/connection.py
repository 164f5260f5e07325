"""Connections to the file, each with the settings that durability and locking need."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from batuta.errors import StoreError
from batuta.stores.queries import load_queries

Q: Mapping[str, str] = load_queries("batuta.stores.sqlite")
"""The named statements. Their texts never change, so that the driver finds them prepared."""

Faults = Callable[[str], None]
"""A test's hook, called with the step that comes: begin, work, commit, committed or read. It may raise."""

OLDEST = (3, 37, 0)
PATIENCE_SECONDS = 5.0
"""How long somebody who may wait waits for another process before the store is said to be away."""
_CHECKPOINT_PAGES = 1_000


def connect_writer(path: Path) -> sqlite3.Connection:
    """The writing connection: WAL, every commit synced, checkpoints inside its own commits. For who has the lock."""
    return _connect(path, _prepare_writer)


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that neither writes nor checkpoints."""
    return _connect(path, _prepare_reader)


def _prepare_writer(connection: sqlite3.Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != [("wal",)]:
        raise StoreError(f"SQLite cannot keep a write-ahead log here (it offers {mode}): use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {_CHECKPOINT_PAGES}").fetchall()
    # From here on SQLite does not wait: it would hold up the event loop. Who may wait does so in writer.py.
    connection.execute("PRAGMA busy_timeout = 0").fetchall()


def _prepare_reader(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    connection.execute("PRAGMA query_only = 1")


def _connect(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: Batuta needs {'.'.join(map(str, OLDEST))}")
    # A file that is gone is not made anew: an empty database would look like a new one.
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode=rw",
        uri=True,
        timeout=PATIENCE_SECONDS,
        isolation_level=None,
        check_same_thread=False,
        cached_statements=512,
    )
    try:
        prepare(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def identity(path: str) -> tuple[int, int] | None:
    """Names the file at a path: another one put in its place has another name. None when there is no file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
