"""Operations on many runs, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.records import Hint
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.commits import closed_hint, closing_values
from batuta.stores.postgres.database.batch_columns import as_columns
from batuta.stores.postgres.database.row_locks import patiently
from batuta.stores.postgres.database.rows import run_ids as ids_of


class BulkVerbs(Base):
    """The part of the store that holds runs."""

    async def pause_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        wanted = list(dict.fromkeys(run_ids))
        rows = await self._execute("pause_runs", wanted, *act_values(act))
        self._announcer.tell(Hint(messages=ids_of(rows[0]["told"])))
        return ids_of(rows[0]["held"])

    async def resume_runs(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        wanted = list(dict.fromkeys(run_ids))
        rows = await self._execute("resume_runs", wanted, *act_values(act))
        resumed, told = ids_of(rows[0]["resumed"]), ids_of(rows[0]["told"])
        self._announcer.tell(Hint(due=len(told) < len(resumed), messages=told))
        return resumed

    async def cancel_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        wanted = list(dict.fromkeys(run_ids))
        rows = await self._execute("cancel_runs", wanted, reason, *act_values(act))
        self._announcer.tell(Hint(due=bool(rows[0]["due"]), messages=ids_of(rows[0]["told"])))
        return ids_of(rows[0]["asked"])

    @patiently
    async def end_unbegun(self, run_ids: Sequence[RunId], reason: str) -> list[RunId]:
        async with self._pool.session() as session:
            now = (await session.read(self._sql["now"]))[0]["now"]
            entry = rules.cancelled_entry(now, reason)
            found = [
                closing_values(row, -1, entry, RunState.CANCELLED, reason)
                for row in await session.read(self._sql["last_entries"], self.namespace, list(dict.fromkeys(run_ids)))
                if row["head"] < 0 and row["owner"] is None
            ]
            if not found:
                return []
            told = (RunState.CANCELLED, reason, rules.PARENT_CLOSED)
            rows = await session.write(self._sql["close_runs"], self.namespace, *told, *as_columns(found, 7), None)
        self._announcer.tell(closed_hint(rows[0]))
        return ids_of(rows[0]["closed"])

    @patiently
    async def terminate_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        wanted = list(dict.fromkeys(run_ids))
        entry = rules.terminated_entry(-1, None, 0, reason)  # its place, time and checksum are found under the lock
        async with self._pool.session() as session:
            found = [
                closing_values(row, row["head"], entry, RunState.TERMINATED, reason)
                for row in await session.read(self._sql["last_entries"], self.namespace, wanted)
            ]
            if not found:
                return []
            ids, _heads, kinds, _ats, _crcs, bodies, outcomes = as_columns(found, 7)
            told = (RunState.TERMINATED, reason, rules.PARENT_CLOSED)
            values = (ids, None, kinds, None, None, bodies, outcomes, None)
            rows = await session.write(self._sql["close_as_act"], self.namespace, *told, *values, *act_values(act))
        self._announcer.tell(closed_hint(rows[0]))
        return ids_of(rows[0]["closed"])
