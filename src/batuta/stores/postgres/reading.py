"""Reading runs and their journals."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Output, Receipt, Run
from batuta.stores.contract import stored_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import attempt_of, entry_of, output_of, run_of


class Reading(Base):
    """Existing runs."""

    async def get(self, id: str) -> Run:
        rows = await self._pool.read(self._sql["current_run"], self.namespace, id)
        if not rows:
            raise UnknownRun(id, self.namespace)
        return run_of(rows[0])

    async def get_run(self, run_id: RunId) -> Run:
        rows = await self._pool.read(self._sql["run"], self.namespace, run_id)
        if not rows:
            raise UnknownRun(run_id, self.namespace)
        return run_of(rows[0])

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        rows = await self._pool.read(self._sql["journal"], self.namespace, run_id, after, limit)
        return [entry_of(row) for row in rows]

    async def epochs(self, run_id: RunId) -> list[int]:
        return [row["epoch"] for row in await self._pool.read(self._sql["epochs"], self.namespace, run_id)]

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        if seq is None:
            rows = await self._pool.read(self._sql["attempts"], self.namespace, [run_id])
        else:
            rows = await self._pool.read(self._sql["attempts_of_call"], self.namespace, run_id, seq)
        return [attempt_of(row) for row in rows]

    async def outputs(self, run_id: RunId) -> list[Output]:
        return [output_of(row) for row in await self._pool.read(self._sql["outputs"], self.namespace, run_id)]

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        chains, names = [chain for chain, _ in asked], [name for _, name in asked]
        found: list[Output | None] = [None] * len(asked)
        for row in await self._pool.read(self._sql["answers"], self.namespace, chains, names):
            found[row["n"] - 1] = output_of(row)
        return found

    async def received(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Receipt]:
        rows = await self._pool.read(self._sql["received"], self.namespace, chain_id, after, limit)
        return [Receipt(row["message_id"], stored_values.MESSAGE_KINDS[row["kind"]], row["read"]) for row in rows]

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        rows = await self._pool.read(self._sql["closed_among"], self.namespace, list(run_ids))
        return [row["run_id"] for row in rows]

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        rows = await self._pool.read(self._sql["outcome"], self.namespace, run_id)
        if not rows:
            raise UnknownRun(run_id, self.namespace)
        last = None if rows[0]["last_ord"] is None else entry_of(rows[0], "last_")
        return run_of(rows[0]), last
