"""Connections to the file, each with the settings that durability and locking need."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import quote

from batuta.errors import StoreError, StoreFailed
from batuta.stores.contract.named_queries import load_queries
from batuta.stores.sqlite.database.files import identity
from batuta.stores.sqlite.database.process_fork import forks

Q: Mapping[str, str] = load_queries("batuta.stores.sqlite")
"""The named statements. Their texts never change, so that the driver finds them prepared."""

Faults = Callable[[str], None]
"""A test's hook, called with the step that comes: begin, work, commit, committed or read. It may raise."""

OLDEST = (3, 37, 0)
PATIENCE_SECONDS = 5.0
"""How long a caller waits for another process before the store counts as unavailable."""
CHECKPOINT_PAGES = 1_000
"""The usual size of a log when a commit checkpoints it: four megabytes."""
LONG_LOG = 16 * 1024 * 1024
"""Bytes of a log that a long reader has kept from being checkpointed."""


def connect_writer(path: Path) -> sqlite3.Connection:
    """The writing connection: WAL, every commit synced, checkpoints inside its own commits.

    Only for the holder of the lock.
    """
    return _connect(path, _prepare_writer)


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that neither writes nor checkpoints."""
    return _connect(path, _prepare_reader)


def _prepare_writer(connection: sqlite3.Connection) -> None:
    mode = connection.execute("PRAGMA journal_mode = WAL").fetchall()
    if mode != [("wal",)]:
        raise StoreError(f"SQLite cannot keep a write-ahead log here (it offers {mode}): use a local disk")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}").fetchall()
    # Without it the log's file stays as long as it ever was.
    connection.execute(f"PRAGMA journal_size_limit = {LONG_LOG}").fetchall()
    # From here on SQLite does not wait: it would block the event loop. Waiting happens in writer.py.
    connection.execute("PRAGMA busy_timeout = 0").fetchall()


def _prepare_reader(connection: sqlite3.Connection) -> None:
    connection.execute("PRAGMA wal_autocheckpoint = 0").fetchall()
    connection.execute("PRAGMA query_only = 1")


def _connect(path: Path, prepare: Callable[[sqlite3.Connection], None]) -> sqlite3.Connection:
    if sqlite3.sqlite_version_info < OLDEST:
        raise StoreError(f"SQLite {sqlite3.sqlite_version} is too old: Batuta needs {'.'.join(map(str, OLDEST))}")
    forks.refuse_inherited(path, identity(str(path)))
    with forks.connecting:
        # Do not create a missing file: an empty database would look like a new one.
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
        except BaseException as error:
            connection.close()
            if getattr(error, "sqlite_errorcode", None) == sqlite3.SQLITE_NOTADB:
                raise StoreFailed(f"{str(path)!r} is not a SQLite database: give another file") from error
            raise
        return connection
