"""Marks in memory."""

from __future__ import annotations

from batuta.journal.audit import Act, Changed
from batuta.stores.memory.audit import record
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.unit_of_work import UnitOfWork


class MarkVerbs(Base):
    @verb
    def set_mark(self, unit: UnitOfWork, name: str, value: str, act: Act | None = None) -> bool:
        if unit.tables.marks.get(name) == value:
            return False
        record(unit, act, [Changed(target=name)])
        unit.tables.marks[name] = value
        return True

    @verb
    def clear_mark(self, unit: UnitOfWork, name: str, act: Act | None = None) -> bool:
        if unit.tables.marks.pop(name, None) is None:
            return False
        record(unit, act, [Changed(target=name)])
        return True

    @verb
    def marks(self, unit: UnitOfWork) -> dict[str, str]:
        return dict(sorted(unit.tables.marks.items()))
