"""Reading runs and their journals, in memory."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import nsmallest

from batuta.errors import UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import IN_PAGES, Attempt, Message, Output, Receipt, Run, StoredRun, Unread
from batuta.stores.contract import rules
from batuta.stores.memory.base import Base, verb
from batuta.stores.memory.tables import Row
from batuta.stores.memory.unit_of_work import UnitOfWork


class ReadingVerbs(Base):
    """The part of the store that reads existing runs."""

    @verb
    def get(self, unit: UnitOfWork, id: str) -> Run:
        row = unit.tables.current_row(id)
        if row is None:
            raise UnknownRun(id, self.namespace)
        return row.snapshot()

    @verb
    def get_run(self, unit: UnitOfWork, run_id: RunId) -> Run:
        return unit.row(run_id).snapshot()

    @verb
    def journal(self, unit: UnitOfWork, run_id: RunId, after: int = -1, limit: int = 10_000) -> list[Entry]:
        row = unit.tables.rows.get(run_id)
        return row.journal[after + 1 : after + 1 + limit] if row is not None else []

    @verb
    def epochs(self, unit: UnitOfWork, run_id: RunId) -> list[int]:
        row = unit.tables.rows.get(run_id)
        return list(row.epochs) if row is not None else []

    @verb
    def attempts(self, unit: UnitOfWork, run_id: RunId, seq: int | None = None) -> list[Attempt]:
        row = unit.tables.rows.get(run_id)
        found = row.attempts if row is not None else {}
        return [found[key] for key in sorted(found) if seq is None or key[0] == seq]

    @verb
    def outputs(self, unit: UnitOfWork, run_id: RunId) -> list[Output]:
        row = unit.tables.rows.get(run_id)
        published = row.published if row is not None else {}
        return [published[name] for name in sorted(published)]

    @verb
    def answers(self, unit: UnitOfWork, asked: Sequence[tuple[RunId, str]]) -> list[Output | None]:
        return [unit.tables.answers.get(each) for each in asked]

    @verb
    def received(self, unit: UnitOfWork, chain_id: RunId, after: str = "", limit: int = 1_000) -> list[Receipt]:
        inbox = unit.tables.inbox(chain_id)
        found = inbox.kept | inbox.unread
        chosen = nsmallest(limit, (id for id in found if id > after))
        return [Receipt(id, found[id].kind, id in inbox.kept) for id in chosen]

    @verb
    def closed_among(self, unit: UnitOfWork, run_ids: Sequence[RunId]) -> list[RunId]:
        return [run_id for run_id in run_ids if run_id not in unit.tables.open]

    @verb
    def outcome(self, unit: UnitOfWork, run_id: RunId) -> tuple[Run, Entry | None]:
        row = unit.row(run_id)
        return row.snapshot(), row.journal[-1] if row.journal else None

    @verb
    def unread(self, unit: UnitOfWork, run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
        rows = [unit.tables.rows[run_id] for run_id in run_ids if run_id in unit.tables.rows]
        return {row.run.run_id: Unread(row.run.epoch if row.is_open else -1, *self._page(row, after)) for row in rows}

    @verb
    def load(self, unit: UnitOfWork, run_id: RunId) -> StoredRun:
        return self.stored_run(unit.row(run_id))

    def stored_run(self, row: Row) -> StoredRun:
        attempts = [row.attempts[key] for key in sorted(row.attempts)]
        messages, more = self._page(row)
        return StoredRun(row.snapshot(), list(row.journal), messages, attempts, more=more)

    def _page(self, row: Row, after: int = 0) -> tuple[list[Message], bool]:
        waiting = self._tables.unread(row.run.chain_id)
        unread = [one for one in waiting if one.number > after or one.kind not in IN_PAGES]
        page, more = rules.first_page(unread)
        begun = row.run.head >= 0
        return page + [one for one in unread[len(page) :] if rules.is_urgent(one.kind, begun=begun)], more
