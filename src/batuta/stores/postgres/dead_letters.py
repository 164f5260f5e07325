"""Dead letters in PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from uuid import UUID

from asyncpg import Record

from batuta.clock import as_datetime
from batuta.errors import UnknownLetter
from batuta.ids import RunId
from batuta.journal.audit import Act
from batuta.journal.dead_letters import (
    DeadLetter,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
    LetterFilter,
)
from batuta.stores.contract import stored_values
from batuta.stores.contract.dead_letters import cursor_of, is_counted, letter_place_of, place_of, states_of
from batuta.stores.postgres.audit import act_values
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.database.rows import run_ids as standard_ids
from batuta.stores.postgres.database.rows import standard

_FIELDS = DeadLetter.__struct_fields__
_READ: dict[str, Callable[[Any], object]] = {
    "run_id": standard,
    "kind": stored_values.RUN_KINDS.__getitem__,
    "state": stored_values.LETTER_STATES.__getitem__,
    "reason": stored_values.LETTER_REASONS.__getitem__,
    "at": as_datetime,
    "resolved_at": as_datetime,
    "successor": standard,
}
_NEVER = 2**63 - 1
"""After every time."""
_LAST_RUN, _LAST_NAME = UUID(int=2**128 - 1), "\U0010ffff"


class DeadLetterVerbs(Base):
    async def letter(self, run_id: RunId) -> DeadLetter:
        found = await self._read_first(letter_of_row, "letter", run_id)
        if found is None:
            raise UnknownLetter(str(run_id))
        return found

    async def letters(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterPage:
        before = letter_place_of(cursor) or (_NEVER, _LAST_RUN)
        query = "list_letters" if where.fingerprint is None else "list_alike"
        rows = await self._read(query, *_restrictions(where), *before, limit + 1)
        page = [letter_of_row(row) for row in rows[:limit]]
        return DeadLetterPage(page, cursor_of(page[-1].at, page[-1].run_id) if len(rows) > limit else None)

    async def letter_groups(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterGroups:
        before = place_of(cursor) or (_NEVER, _LAST_NAME)
        if is_counted(where):
            rows = await self._read("letter_groups", *_counted(where), *before, limit + 1)
        else:
            rows = await self._read("group_letters", *_restrictions(where), *before, limit + 1)
        page = [_group_of(row) for row in rows[:limit]]
        return DeadLetterGroups(page, cursor_of(page[-1].last_at, page[-1].fingerprint) if len(rows) > limit else None)

    async def count_letters(self, where: LetterFilter) -> int:
        if is_counted(where):
            rows = await self._read("sum_letters", *_counted(where))
        else:
            rows = await self._read("count_letters", *_restrictions(where))
        return int(rows[0]["letters"])

    async def discard_letters(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        values = (list(run_ids), act.reason, *act_values(act))
        rows = await self._execute("discard_letters", *values)
        return standard_ids(rows[0]["resolved"])


def letter_of_row(row: Record) -> DeadLetter:
    """A row of `dead_letters`."""
    values: dict[str, Any] = {name: row[name] for name in _FIELDS if name != "key"}
    for name, read in _READ.items():
        values[name] = None if values[name] is None else read(values[name])
    return DeadLetter(key=row["flow_key"], **values)


def _group_of(row: Record) -> DeadLetterGroup:
    return DeadLetterGroup(
        fingerprint=row["fingerprint"],
        count=row["letters"],
        first_at=as_datetime(row["first_at"]),
        last_at=as_datetime(row["last_at"]),
        example=letter_of_row(row),
    )


def _counted(where: LetterFilter) -> tuple[Any, ...]:
    return states_of(where), where.fingerprint, where.reason, where.name, where.error, where.activity


def _restrictions(where: LetterFilter) -> tuple[Any, ...]:
    return (
        *_counted(where),
        where.kind,
        where.queue,
        where.flow_key,
        where.id_prefix,
        where.after,
        where.before,
    )
