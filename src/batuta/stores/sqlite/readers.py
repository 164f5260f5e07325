"""Reading: small things on the event loop's thread, large ones in a few others. Readers never wait for writers."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from batuta.errors import StoreUnavailable
from batuta.stores.sqlite.connection import Faults, connect_reader, identity
from batuta.stores.sqlite.errors import translate

T = TypeVar("T")

THREADS = 2


class Readers:
    """Connections for reading, one for each thread that reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = str(path)
        self._lock = threading.Lock()
        self._connections: dict[int, tuple[tuple[int, int] | None, sqlite3.Connection]] = {}
        self._threads: ThreadPoolExecutor | None = None
        self.faults: Faults | None = None

    def open(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="batuta-sqlite-read")

    def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown()
            self._threads = None
        with self._lock:
            for _, connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Read on this thread, all at one moment. For what takes microseconds."""
        if self._threads is None:
            raise StoreUnavailable("the store is closed")
        try:
            if self.faults is not None:
                self.faults("read")
            connection = self._connection()
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
            raise StoreUnavailable("the store is closed")
        return await asyncio.get_running_loop().run_in_executor(self._threads, self.read, work)

    def _connection(self) -> sqlite3.Connection:
        thread, file = threading.get_ident(), identity(self._file)
        known = self._connections.get(thread)
        if known is not None and known[0] == file:
            return known[1]
        if known is not None:
            known[1].close()  # another file lies there now
        connection = connect_reader(self._path)
        with self._lock:
            self._connections[thread] = file, connection
        return connection
