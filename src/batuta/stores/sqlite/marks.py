"""Marks in SQLite."""

from __future__ import annotations

from batuta.journal.audit import Act
from batuta.stores.sqlite.database.base import Base


class MarkVerbs(Base):
    """The store's methods for marks of a namespace."""

    async def set_mark(self, name: str, value: str, act: Act | None = None) -> bool:
        return await self._change("set_mark", (self.namespace, name, value), act, name)

    async def clear_mark(self, name: str, act: Act | None = None) -> bool:
        return await self._change("clear_mark", (self.namespace, name), act, name)

    async def marks(self) -> dict[str, str]:
        return dict(self._rows("marks", (self.namespace,)))
