"""Pausing and resuming runs in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.ids import RunId
from batuta.journal.acts import Act
from batuta.journal.records import Hint
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.rows import run_ids as ids_of


class HoldingVerbs(Base):
    """The part of the store that holds runs."""

    async def pause_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        wanted = list(dict.fromkeys(run_ids))
        rows = await self._pool.write(self._sql["pause_runs"], self.namespace, wanted, *act_values(act))
        self._announcer.tell(Hint(messages=ids_of(rows[0]["told"])))
        return ids_of(rows[0]["held"])

    async def resume_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        wanted = list(dict.fromkeys(run_ids))
        rows = await self._pool.write(self._sql["resume_runs"], self.namespace, wanted, *act_values(act))
        self._announcer.tell(Hint(due=rows[0]["due"]))
        return ids_of(rows[0]["resumed"])
