"""Reading: small things on the event loop's thread, large ones in a few others. Readers never wait for writers."""

from __future__ import annotations

import asyncio
import itertools
import sqlite3
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from batuta.errors import BatutaError, ClientError, StoreUnavailable
from batuta.stores.contract import rules
from batuta.stores.sqlite.database.connection import Faults, connect_reader
from batuta.stores.sqlite.database.errors import translate
from batuta.stores.sqlite.database.files import identity
from batuta.stores.sqlite.database.process_fork import forks, leak

T = TypeVar("T")

THREADS = 2
BRIEF, _ASKED = 4, 5_000
"""So many times so many instructions of the database are about a millisecond."""


class _Reader:
    """The connection of one thread."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        """Held while it reads, and by a fork."""
        self.connection: sqlite3.Connection | None = None
        self.file: tuple[int, int] | None = None
        """The identity of the file that it is connected to."""

    def close(self) -> None:
        connection, self.connection = self.connection, None
        if connection is not None:
            connection.close()


class _TooLong(Exception):
    """A read that is not as short as was hoped."""


def _briefly(connection: sqlite3.Connection, work: Callable[[sqlite3.Connection], T]) -> T:
    # SQLite asks after so many instructions of the statement's whole life: the first time may come at once.
    asked = itertools.count()
    connection.set_progress_handler(lambda: next(asked) >= BRIEF, _ASKED)
    try:
        return work(connection)
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode == sqlite3.SQLITE_INTERRUPT:
            raise _TooLong from None
        raise
    finally:
        connection.set_progress_handler(None, 0)


class Readers:
    """Connections for reading, one for each thread that reads."""

    last = False

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = str(path)
        self._readers: dict[int, _Reader] = {}
        self._held: list[_Reader] = []
        self._threads: ThreadPoolExecutor | None = None
        self._is_inherited = False
        self.faults: Faults | None = None

    def open(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="batuta-sqlite-read")
        self._is_inherited = False
        forks.open.add(self)

    def stop(self) -> None:
        """Let nothing more be read. `close` comes next."""
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None

    def close(self) -> None:
        for reader in self._readers.values():
            with reader.lock:
                reader.close()
        self._readers.clear()
        forks.open.discard(self)

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read on this thread, all at one moment. For what takes microseconds."""
        if self._threads is None:
            raise self._closed()
        try:
            if self.faults is not None:
                self.faults("read")
            reader = self._readers.get(threading.get_ident()) or self._new_reader()
            with reader.lock:
                connection = self._connected(reader)
                try:
                    connection.execute("BEGIN")
                    return work(connection)
                finally:
                    # Ends the snapshot: an old one would keep the WAL from starting over.
                    connection.rollback()
        except Exception as error:
            meant = translate(error)
            if meant is None or meant is error:
                raise
            raise meant from error

    async def read_apart(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read in a thread. For what may look through many rows and gives few."""
        if self._threads is None:
            raise self._closed()
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.read, work)

    async def read_soon(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read on this thread; in another one if that turns out to look through many rows. Beside a busy event loop a
        thread waits for the interpreter at every row."""
        try:
            return self.read(lambda connection: _briefly(connection, work))
        except _TooLong:
            return await self.read_apart(work)

    def _closed(self) -> BatutaError:
        return ClientError(rules.OPENED_BY_PARENT) if self._is_inherited else StoreUnavailable("the store is closed")

    def _new_reader(self) -> _Reader:
        return self._readers.setdefault(threading.get_ident(), _Reader())

    def _connected(self, reader: _Reader) -> sqlite3.Connection:
        file = identity(self._file)
        if reader.file != file:
            reader.close()  # another file is there now
        if reader.connection is None:
            reader.connection, reader.file = connect_reader(self._path), file
        return reader.connection

    # -- forks

    def before_fork(self, give_up: float) -> bool:
        for reader in list(self._readers.values()):
            if reader.lock.acquire(timeout=max(0.0, give_up - time.monotonic())):
                self._held.append(reader)
                reader.close()
        return True

    def after_fork(self) -> None:
        held, self._held = self._held, []
        for reader in held:
            reader.lock.release()

    def in_child(self) -> None:
        for reader in self._readers.values():
            if reader.connection is not None:
                leak(reader.connection)
        self._readers, self._held, self._threads, self._is_inherited = {}, [], None, True
