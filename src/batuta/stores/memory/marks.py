"""Marks in memory."""

from __future__ import annotations

from batuta.journal.audit import Act, Changed
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base


class MarkVerbs(Base):
    """The store's methods for marks of a namespace."""

    async def set_mark(self, name: str, value: str, act: Act | None = None) -> bool:
        with self.transaction() as unit:
            if unit.tables.marks.get(name) == value:
                return False
            record(unit, act, [Changed(target=name)])
            unit.tables.marks[name] = value
            return True

    async def clear_mark(self, name: str, act: Act | None = None) -> bool:
        with self.transaction() as unit:
            if unit.tables.marks.pop(name, None) is None:
                return False
            record(unit, act, [Changed(target=name)])
            return True

    async def marks(self) -> dict[str, str]:
        with self.transaction() as unit:
            return dict(sorted(unit.tables.marks.items()))
