"""Reading runs and their journals."""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter

from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Output, Receipt, Run
from batuta.stores.contract import stored_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import attempt_of, entry_of, output_of, run_of


class Reading(Base):
    """Existing runs."""

    async def get(self, id: str) -> Run:
        return run_of(self._existing(await self._read("current_run", id), id))

    async def get_run(self, run_id: RunId) -> Run:
        return run_of(self._existing(await self._read("run", run_id), run_id))

    async def journal(self, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        return await self._read_all(entry_of, "journal", run_id, after, limit)

    async def epochs(self, run_id: RunId) -> list[int]:
        return await self._read_all(itemgetter("epoch"), "epochs", run_id)

    async def attempts(self, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        if seq is None:
            return await self._read_all(attempt_of, "attempts", [run_id])
        return await self._read_all(attempt_of, "attempts_of_call", run_id, seq)

    async def outputs(self, run_id: RunId) -> list[Output]:
        return await self._read_all(output_of, "outputs", run_id)

    async def answers(self, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        chains, names = [chain for chain, _ in asked], [name for _, name in asked]
        found: list[Output | None] = [None] * len(asked)
        for row in await self._read("answers", chains, names):
            found[row["n"] - 1] = output_of(row)
        return found

    async def received(self, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Receipt]:
        rows = await self._read("received", chain_id, after, limit)
        return [Receipt(row["message_id"], stored_values.MESSAGE_KINDS[row["kind"]], row["read"]) for row in rows]

    async def closed_among(self, run_ids: Sequence[RunId]) -> list[RunId]:
        return await self._read_all(itemgetter("run_id"), "closed_among", list(run_ids))

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        row = self._existing(await self._read("outcome", run_id), run_id)
        return run_of(row), None if row["last_ord"] is None else entry_of(row, "last_")
