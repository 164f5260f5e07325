"""Dead letters in SQLite."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any
from uuid import UUID

from msgspec.structs import replace

from batuta.clock import as_datetime
from batuta.errors import UnknownLetter
from batuta.ids import RunId, uuid_of
from batuta.journal.audit import Act
from batuta.journal.dead_letters import (
    DeadLetter,
    DeadLetterGroup,
    DeadLetterGroups,
    DeadLetterPage,
    LetterFilter,
    LetterState,
)
from batuta.journal.records import NewLetter, Run
from batuta.stores.contract import stored_values
from batuta.stores.contract.dead_letters import changed, cursor_of, is_counted, letter_place_of, place_of, states_of
from batuta.stores.sqlite.database.base import Base
from batuta.stores.sqlite.database.rows import Row, to_json
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

_NEVER = 2**63 - 1
"""After every time."""
_LAST_RUN, _LAST_NAME = b"\xff" * 17, "\U0010ffff"
_SMALL = 2
"""So few may be written on the event loop's thread."""
_MANY = 20
"""More than that are written in another one."""


class DeadLetterVerbs(Base):
    """The part of the store that is about dead letters."""

    async def letter(self, run_id: RunId) -> DeadLetter:
        values = (self.namespace, run_id.bytes)
        row = self._read(lambda unit: unit.row("letter", values))
        if row is None:
            raise UnknownLetter(str(run_id))
        return letter_of_row(row)

    async def letters(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterPage:
        place = letter_place_of(cursor)
        before = (_NEVER, _LAST_RUN) if place is None else (place[0], place[1].bytes)
        rows = await self._read_apart(lambda unit: _newest(unit, where, before, limit + 1))
        page = [letter_of_row(row) for row in rows[:limit]]
        return DeadLetterPage(page, cursor_of(page[-1].at, page[-1].run_id) if len(rows) > limit else None)

    async def letter_groups(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterGroups:
        before = place_of(cursor) or (_NEVER, _LAST_NAME)
        find = _counted_groups if is_counted(where) else _other_groups
        groups = await self._read_apart(lambda unit: find(unit, where, before, limit + 1))
        page = groups[:limit]
        return DeadLetterGroups(
            page, cursor_of(page[-1].last_at, page[-1].fingerprint) if len(groups) > limit else None
        )

    async def count_letters(self, where: LetterFilter) -> int:
        statement, values = "sum_letters" if is_counted(where) else "count_letters", _values(self.namespace, where)
        return int(await self._read_apart(lambda unit: unit.value(statement, values, 0)))

    async def discard_letters(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        return await self._write(
            lambda unit: _discard(unit, run_ids, act),
            small=len(run_ids) <= _SMALL,
            aside=len(run_ids) > _MANY,
        )


# -- writing


def insert(unit: UnitOfWork, run: Run, new: NewLetter) -> None:
    """The run, which closes now, is a dead letter."""
    about = (run.id, run.kind.value, run.name, run.queue, run.flow_key, unit.now)
    error = (new.reason.value, new.error, new.message, new.fingerprint)
    more = (new.activity, new.seq, new.attempts, new.keep, new.trace)
    unit.change("insert_letter", (run.run_id.bytes, unit.namespace, *about, *error, *more))
    kind = (new.fingerprint, "open", run.name, new.reason.value, new.error, new.activity)
    unit.change("count_letter", (unit.namespace, *kind, 1, unit.now, unit.now))


def resolve(
    unit: UnitOfWork,
    run_ids: Sequence[RunId],
    state: LetterState,
    note: str,
    successors: Sequence[RunId] | None,
) -> list[RunId]:
    """Mark those of them that are open, and give them back."""
    gone: list[Row] = []
    resolved: list[RunId] = []
    for run_id, successor in zip(run_ids, successors or repeat(None), strict=False):
        after = None if successor is None else successor.bytes
        row = unit.row("resolve_letter", (state.value, unit.now, note, after, unit.namespace, run_id.bytes))
        if row is not None:
            gone.append(row)
            resolved.append(run_id)
    for (fingerprint, _, *kind, at), count in Counter(gone).items():
        unit.change("count_letter", (unit.namespace, fingerprint, state.value, *kind, count, at, at))
    _count_fewer(unit, gone)
    return resolved


def _discard(unit: UnitOfWork, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
    discarded = resolve(unit, run_ids, LetterState.DISCARDED, act.reason, None)
    rows = (unit.row("letter", (unit.namespace, run_id.bytes)) for run_id in discarded)
    letters = [letter_of_row(row) for row in rows if row is not None]
    unit.record(act, (changed(letter, LetterState.DISCARDED) for letter in letters))
    return discarded


def forget(unit: UnitOfWork, run_ids: Iterable[RunId]) -> None:
    """The runs are deleted."""
    found = (unit.row("forget_letter", (unit.namespace, run_id.bytes)) for run_id in run_ids)
    _count_fewer(unit, [row for row in found if row is not None])


def state_of(unit: UnitOfWork, run_id: RunId) -> str | None:
    """None: it is not a dead letter."""
    row = unit.row("letter", (unit.namespace, run_id.bytes))
    return None if row is None else str(row[7])


def _count_fewer(unit: UnitOfWork, gone: Sequence[Row]) -> None:
    for kind, count in Counter(row[:4] for row in gone).items():
        key = (unit.namespace, *kind)
        unit.change("fewer_letters", (count, *key))
        if not unit.change("no_letters", key):
            unit.change("group_times", key)


# -- reading


def letter_of_row(row: Row) -> DeadLetter:
    """A row of `SELECT * FROM dead_letters`."""
    return DeadLetter(
        run_id=UUID(bytes=row[0]),
        id=row[2],
        kind=stored_values.RUN_KINDS[row[3]],
        name=row[4],
        queue=row[5],
        key=row[6],
        state=stored_values.LETTER_STATES[row[7]],
        at=as_datetime(row[8]),
        reason=stored_values.LETTER_REASONS[row[9]],
        error=row[10],
        message=row[11],
        fingerprint=row[12],
        activity=row[13],
        seq=row[14],
        attempts=row[15],
        keep=row[16],
        trace=row[17],
        resolved_at=as_datetime(row[18]),
        note=row[19],
        successor=None if row[20] is None else uuid_of(int.from_bytes(row[20])),
    )


def _newest(unit: UnitOfWork, where: LetterFilter, before: tuple[int, bytes], limit: int) -> list[Row]:
    """State by state, each by its index."""
    statement = "list_letters" if where.fingerprint is None else "list_alike"
    if where.before is not None:
        before = min(before, (where.before, b""))
    values = _values(unit.namespace, where) | {"before_at": before[0], "before_run": before[1], "limit": limit}
    rows = [row for state in states_of(where) for row in unit.rows(statement, values | {"state": state})]
    return sorted(rows, key=lambda row: (row[8], row[0]), reverse=True)[:limit]


def _counted_groups(
    unit: UnitOfWork, where: LetterFilter, before: tuple[int, str], limit: int
) -> list[DeadLetterGroup]:
    values = _values(unit.namespace, where) | {"before_at": before[0], "before_name": before[1], "limit": limit}
    heads = [head for state in states_of(where) for head in unit.rows("newest_groups", values | {"state": state})]
    groups: list[DeadLetterGroup] = []
    for last_at, fingerprint in sorted(heads, reverse=True)[:limit]:
        row = unit.row("group_sizes", values | {"fingerprint": fingerprint}) or (0, last_at, last_at)
        groups += _group(unit, where, (fingerprint, *row))
    return groups


def _other_groups(unit: UnitOfWork, where: LetterFilter, before: tuple[int, str], limit: int) -> list[DeadLetterGroup]:
    values = _values(unit.namespace, where) | {"before_at": before[0], "before_name": before[1], "limit": limit}
    rows = unit.rows("group_letters", values)
    return [group for row in rows for group in _group(unit, where, row)]


def _group(unit: UnitOfWork, where: LetterFilter, row: Row) -> list[DeadLetterGroup]:
    """None, if the count of the group is wrong and it has no letter."""
    fingerprint, count, first_at, last_at = row
    alike = replace(where, fingerprint=fingerprint)
    return [
        DeadLetterGroup(
            fingerprint=fingerprint,
            count=count,
            first_at=as_datetime(first_at),
            last_at=as_datetime(last_at),
            example=letter_of_row(example),
        )
        for example in _newest(unit, alike, (last_at, _LAST_RUN), 1)
    ]


def _values(namespace: str, where: LetterFilter) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "states": to_json(states_of(where)),
        "fingerprint": where.fingerprint,
        "reason": None if where.reason is None else where.reason.value,
        "name": where.name,
        "kind": where.kind,
        "queue": where.queue,
        "flow_key": where.flow_key,
        "error": where.error,
        "activity": where.activity,
        "id_prefix": where.id_prefix,
        "after": where.after,
        "before": where.before,
    }
