"""What operators do to many runs at once, in PostgreSQL."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.ids import RunId
from batuta.journal.acts import Act
from batuta.journal.records import Hint, RunKind
from batuta.journal.states import RunState
from batuta.stores import rules
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.batch import as_columns
from batuta.stores.postgres.commits import closed_hint, closing_values
from batuta.stores.postgres.rows import run_ids as ids_of
from batuta.stores.postgres.session import Session

_TRIES = 20


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
        resumed, told = ids_of(rows[0]["resumed"]), ids_of(rows[0]["told"])
        self._announcer.tell(Hint(due=len(told) < len(resumed), messages=told))
        return resumed

    async def cancel_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        wanted = list(dict.fromkeys(run_ids))
        rows = await self._pool.write(self._sql["cancel_runs"], self.namespace, wanted, reason, *act_values(act))
        self._announcer.tell(Hint(due=bool(rows[0]["due"]), messages=ids_of(rows[0]["told"])))
        return ids_of(rows[0]["asked"])

    async def end_unbegun(self, run_ids: Sequence[RunId], reason: str) -> list[RunId]:
        async with self._pool.session() as session:
            now = (await session.read(self._sql["now"]))[0]["now"]
            entry = rules.cancelled_entry(now, reason)
            found = [
                closing_values(row, -1, entry, RunState.CANCELLED, reason)
                for row in await session.read(self._sql["last_entries"], self.namespace, list(dict.fromkeys(run_ids)))
                if row["head"] < 0 and row["kind"] == RunKind.JOB and row["owner"] is None
            ]
            if not found:
                return []
            told = (RunState.CANCELLED, reason, rules.PARENT_CLOSED)
            rows = await session.write(self._sql["close_runs"], self.namespace, *told, *as_columns(found, 7), None)
        self._announcer.tell(closed_hint(rows[0]))
        return ids_of(rows[0]["closed"])

    async def terminate_runs(self, run_ids: Sequence[RunId], reason: str, act: Act) -> list[RunId]:
        """Those that move on while they are looked at are looked at again."""
        left, closed = list(dict.fromkeys(run_ids)), list[RunId]()
        async with self._pool.session() as session:
            for _ in range(_TRIES):
                done, open_ones = await self._terminate(session, left, reason, act)
                closed += done
                left = [run_id for run_id in open_ones if run_id not in done]
                if not left:
                    break
        return closed

    async def _terminate(
        self, session: Session, run_ids: list[RunId], reason: str, act: Act
    ) -> tuple[list[RunId], list[RunId]]:
        """Those that it closed, of those that were open."""
        now = (await session.read(self._sql["now"]))[0]["now"]
        found = []
        for row in await session.read(self._sql["last_entries"], self.namespace, run_ids):
            last = None if row["crc"] is None else (row["at"], row["crc"])
            entry = rules.terminated_entry(row["head"], last, now, reason)
            found.append(closing_values(row, row["head"], entry, RunState.TERMINATED, reason))
        if not found:
            return [], []
        told = (RunState.TERMINATED, reason, rules.PARENT_CLOSED)
        query = self._sql["close_as_act"]
        rows = await session.write(query, self.namespace, *told, *as_columns(found, 7), None, *act_values(act))
        self._announcer.tell(closed_hint(rows[0]))
        return ids_of(rows[0]["closed"]), ids_of(each[0] for each in found)
