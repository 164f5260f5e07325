"""The result of a claim, as far as the stores share it. Values, no I/O."""

from __future__ import annotations

from msgspec import Struct

from batuta.ids import RunId
from batuta.journal.records import Run


class Rare(Struct, array_like=True):
    """Fields that few runs have. A claim brings them as one text, a JSON array, which the others lack: reading a column
    costs the driver more than looking at it costs the database."""

    deaths: int
    deadline: int | None
    chain_id: RunId
    parent_run_id: RunId | None
    parent_seq: int
    forked_from: RunId | None
    forked_at: int
    flow_key: str
    version: str
    tags: str
    memo: str
    failed_code: list[str]
    awaits: int

    def put_into(self, run: Run) -> None:
        run.deaths, run.deadline, run.chain_id = self.deaths, self.deadline, self.chain_id
        run.parent_run_id, run.parent_seq = self.parent_run_id, self.parent_seq
        run.forked_from, run.forked_at = self.forked_from, self.forked_at
        run.flow_key, run.version, run.tags, run.memo = self.flow_key, self.version, self.tags, self.memo
        run.failed_code, run.awaits = self.failed_code, self.awaits
