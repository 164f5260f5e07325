"""Marks in PostgreSQL."""

from __future__ import annotations

from batuta.journal.audit import Act
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base


class MarkVerbs(Base):
    async def set_mark(self, name: str, value: str, act: Act | None = None) -> bool:
        return bool(await self._execute("set_mark", name, value, *act_values(act)))

    async def clear_mark(self, name: str, act: Act | None = None) -> bool:
        return bool(await self._execute("clear_mark", name, *act_values(act)))

    async def marks(self) -> dict[str, str]:
        return {row["name"]: row["value"] for row in await self._read("marks")}
