"""Hints from other processes: SQLite tells a connection cheaply whether somebody else has committed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable

from batuta.journal.records import Hint
from batuta.stores.listeners import Callback, Listeners
from batuta.stores.sqlite.rows import one
from batuta.stores.sqlite.writer import Writer

SHORTEST_SECONDS = 0.01
LONGEST_SECONDS = 0.05


class Watcher:
    """Looks at the file's version while anybody listens: often after news, less often when there are none."""

    def __init__(self, writer: Writer, listeners: Listeners) -> None:
        self._writer = writer
        self._listeners = listeners
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST_SECONDS
        self._seen: int | None = None

    def open(self) -> None:
        self._loop = asyncio.get_running_loop()

    def close(self) -> None:
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def listen(self, callback: Callback) -> Callable[[], None]:
        """Hear hints from this process and, from now on, from others."""
        undo = self._listeners.add(callback)
        if self._timer is None and self._loop is not None:
            self._look()
        return undo

    def _look(self) -> None:
        self._timer = None
        if self._loop is None or not self._listeners:
            self._seen = None
            return
        version = self._version()
        if version is not None:
            if self._seen is not None and version != self._seen:
                self._listeners.tell(Hint(due=True, closed=None, answered=None))
                self._pause = SHORTEST_SECONDS
            self._seen = version
        self._pause = min(self._pause * 1.2, LONGEST_SECONDS)
        self._timer = self._loop.call_later(self._pause, self._look)

    def _version(self) -> int | None:
        # On the writing connection, whose own commits do not count.
        try:
            row = self._writer.look(_data_version)
        except sqlite3.Error:
            return None  # whoever uses the store will be told
        return None if row is None else row[0]


def _data_version(cursor: sqlite3.Cursor) -> tuple[int] | None:
    row = one(cursor.execute("PRAGMA data_version"))
    return None if row is None else (row[0],)
