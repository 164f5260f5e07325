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
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.database.writer import Writer
from batuta.stores.sqlite.schedules import schedule_at

SHORTEST_SECONDS = 0.01
LONGEST_SECONDS = 0.05
MOST_NEWS = 1_000
"""Rows per look. The owner's next heartbeat finds the rest."""


class Watcher:
    """Looks at the file's version while there are listeners: often after news, less often without."""

    def __init__(self, writer: Writer, listeners: Listeners, unit: Callable[[sqlite3.Cursor], UnitOfWork]) -> None:
        self._writer = writer
        self._listeners = listeners
        self._unit = unit
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._pause = SHORTEST_SECONDS
        self._version: int | None = None
        self._connection: sqlite3.Connection | None = None
        """The connection of that version: each connection counts for itself."""
        self._ends = (0, 0)
        """The last message and the last entry of the look before."""
        self._schedule_at: int | None = None

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
            self._listeners.tell(news)
            self._pause = SHORTEST_SECONDS
        self._pause = min(self._pause * 1.2, LONGEST_SECONDS)
        self._timer = self._loop.call_later(self._pause, self._look)

    def _news(self) -> Hint | None:
        """What others may have done; None when no other process has committed."""
        try:
            return self._writer.look(self._compare)
        except (sqlite3.Error, StoreError):
            return None  # the store's users will get the error

    def _compare(self, cursor: sqlite3.Cursor) -> Hint | None:
        # On the writing connection, whose own commits do not count. The ends first: what comes in between is then
        # either below a version that is still the old one, and ours, or above the ends, and looked at.
        unit = self._unit(cursor)
        message, entry = unit.row("ends") or (0, 0)
        ((version,),) = cursor.execute("PRAGMA data_version").fetchall()
        known = self._connection, self._version
        is_new = self._version is not None and known != (cursor.connection, version)
        self._connection = cursor.connection
        news = None
        if is_new:
            messages = _since(unit, *self._ends)
            before, self._schedule_at = self._schedule_at, schedule_at(unit)  # last: a look that fails comes again
            news = Hint(
                due=True,
                messages=messages,
                closed=None,
                answered=None,
                schedules=self._schedule_at not in (None, before),
                partners=True,
                bus=True,
            )
        self._version, self._ends = version, (message, entry)
        return news


def _since(unit: UnitOfWork, message: int, entry: int) -> list[RunId]:
    """Runs that others sent messages to or closed."""
    sent = unit.rows("messages_after", (message, unit.namespace, MOST_NEWS))
    written = unit.rows("entries_after", (entry, MOST_NEWS))
    closed = [row[0] for row in written if row[1] == unit.namespace and row[2] in CLOSING_ENTRIES]
    return [UUID(bytes=run_id) for run_id in {row[0] for row in sent}.union(closed)]
