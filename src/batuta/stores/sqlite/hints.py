"""Hints from other processes: SQLite tells a connection cheaply whether another has committed."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from uuid import UUID

from batuta.errors import StoreError
from batuta.ids import RunId
from batuta.journal.kinds import CLOSING_ENTRIES
from batuta.journal.records import Hint
from batuta.stores.contract.listeners import Callback, Listeners
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import one
from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.schedules import schedule_at

SHORTEST_SECONDS = 0.01
LONGEST_SECONDS = 0.05
MOST_NEWS = 1_000
"""Rows per look. The owner's next heartbeat finds the rest."""


class Watcher:
    """Looks at the file's version while there are listeners: often after news, less often without."""

    def __init__(self, writer: Writer, listeners: Listeners, namespace: str) -> None:
        self._writer = writer
        self._listeners = listeners
        self._namespace = namespace
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST_SECONDS
        self._version: int | None = None
        self._connection: sqlite3.Connection | None = None
        """The connection of that version: each connection counts for itself."""
        self._ends = (0, 0)
        """The last message and the last entry of the look before."""
        self._schedule_at: int | None = None
        self._rescheduled = False

    def open(self) -> None:
        """From here on nothing is missed: a later listener gets what came before."""
        self._loop = asyncio.get_running_loop()
        self._news()

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
            return
        news = self._news()
        if news is not None:
            hint = Hint(due=True, messages=news, closed=None, answered=None, schedules=self._rescheduled)
            hint.partners = hint.bus = True
            self._listeners.tell(hint)
            self._pause = SHORTEST_SECONDS
        self._pause = min(self._pause * 1.2, LONGEST_SECONDS)
        self._timer = self._loop.call_later(self._pause, self._look)

    def _news(self) -> list[RunId] | None:
        """Runs that others sent messages to or closed; None when no other process has committed."""
        try:
            return self._writer.look(self._compare)
        except (sqlite3.Error, StoreError):
            return None  # the store's users will get the error

    def _compare(self, cursor: sqlite3.Cursor) -> list[RunId] | None:
        # On the writing connection, whose own commits do not count. The ends first: what comes in between is then
        # either below a version that is still the old one, and ours, or above the ends, and looked at.
        row = one(cursor.execute(Q["ends"]))
        ends = (0, 0) if row is None else (row[0], row[1])
        found = one(cursor.execute("PRAGMA data_version"))
        version = None if found is None else found[0]
        known = self._connection, self._version
        is_new = self._version is not None and known != (cursor.connection, version)
        self._connection = cursor.connection
        news = None
        if is_new:
            news = self._since(cursor, *self._ends)
            before, self._schedule_at = self._schedule_at, schedule_at(cursor, self._namespace)
            self._rescheduled = self._schedule_at not in (None, before)
        self._version, self._ends = version, ends
        return news

    def _since(self, cursor: sqlite3.Cursor, message: int, entry: int) -> list[RunId]:
        sent = cursor.execute(Q["messages_after"], (message, self._namespace, MOST_NEWS)).fetchall()
        written = cursor.execute(Q["entries_after"], (entry, MOST_NEWS)).fetchall()
        closed = [row[0] for row in written if row[1] == self._namespace and row[2] in CLOSING_ENTRIES]
        return [UUID(bytes=run_id) for run_id in {row[0] for row in sent}.union(closed)]
