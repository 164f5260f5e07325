"""Marks in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod

from batuta.journal.audit import Act, Changed
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.writer import Writer


class MarkVerbs(ABC):
    """The store's methods for marks of a namespace."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    async def set_mark(self, name: str, value: str, act: Act | None = None) -> bool:
        return await self._change_mark("set_mark", (name, value), act)

    async def clear_mark(self, name: str, act: Act | None = None) -> bool:
        return await self._change_mark("clear_mark", (name,), act)

    async def _change_mark(self, statement: str, values: tuple[str, ...], act: Act | None) -> bool:
        now = self.clock_now()

        def work(cursor: sqlite3.Cursor) -> bool:
            if not cursor.execute(Q[statement], (self.namespace, *values)).rowcount:
                return False
            record(cursor, self.namespace, now, act, [Changed(target=values[0])])
            return True

        return await self._writer.write(work, small=True)

    async def marks(self) -> dict[str, str]:
        return self._readers.read(lambda connection: dict(connection.execute(Q["marks"], (self.namespace,)).fetchall()))
