"""Dead letters in SQLite."""

from __future__ import annotations

import sqlite3
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any
from uuid import UUID

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
from batuta.stores.sqlite.audit import record
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import Row, one, to_json
from batuta.stores.sqlite.database.writer import Writer

_NEVER = 2**63 - 1
"""After every time."""
_LAST_RUN, _LAST_NAME = b"\xff" * 17, "\U0010ffff"
_SMALL = 2
"""So few may be written on the event loop's thread."""
_MANY = 20
"""More than that are written in another one."""


class DeadLetterVerbs(ABC):
    """The part of the store that is about dead letters."""

    namespace: str
    _writer: Writer
    _readers: Readers

    @abstractmethod
    def clock_now(self) -> int: ...

    async def letter(self, run_id: RunId) -> DeadLetter:
        values = (self.namespace, run_id.bytes)
        row = self._readers.read(lambda connection: one(connection.execute(Q["letter"], values)))
        if row is None:
            raise UnknownLetter(str(run_id))
        return letter_of_row(row)

    async def letters(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterPage:
        place = letter_place_of(cursor)
        before = (_NEVER, _LAST_RUN) if place is None else (place[0], place[1].bytes)
        rows = await self._readers.read_apart(
            lambda connection: _newest(connection, self.namespace, where, before, limit + 1)
        )
        page = [letter_of_row(row) for row in rows[:limit]]
        return DeadLetterPage(page, cursor_of(page[-1].at, page[-1].run_id) if len(rows) > limit else None)

    async def letter_groups(self, where: LetterFilter, cursor: str | None = None, limit: int = 50) -> DeadLetterGroups:
        before = place_of(cursor) or (_NEVER, _LAST_NAME)
        find = _counted_groups if is_counted(where) else _other_groups
        groups = await self._readers.read_apart(
            lambda connection: find(connection, self.namespace, where, before, limit + 1)
        )
        page = groups[:limit]
        return DeadLetterGroups(
            page, cursor_of(page[-1].last_at, page[-1].fingerprint) if len(groups) > limit else None
        )

    async def count_letters(self, where: LetterFilter) -> int:
        statement, values = Q["sum_letters" if is_counted(where) else "count_letters"], _values(self.namespace, where)
        row = await self._readers.read_apart(lambda connection: one(connection.execute(statement, values)))
        return 0 if row is None else int(row[0])

    async def discard_letters(self, run_ids: Sequence[RunId], act: Act) -> list[RunId]:
        now = self.clock_now()
        return await self._writer.write(
            lambda cursor: _discard(cursor, self.namespace, run_ids, act, now),
            small=len(run_ids) <= _SMALL,
            aside=len(run_ids) > _MANY,
        )


# -- writing


def insert(cursor: sqlite3.Cursor, namespace: str, run: Run, new: NewLetter, now: int) -> None:
    """The run, which closes now, is a dead letter."""
    about = (run.id, run.kind.value, run.name, run.queue, run.flow_key, now, new.reason.value, new.error, new.message)
    more = (new.fingerprint, new.activity, new.seq, new.attempts, new.keep, new.trace)
    cursor.execute(Q["insert_letter"], (run.run_id.bytes, namespace, *about, *more))
    kind = (new.fingerprint, "open", run.name, new.reason.value, new.error, new.activity)
    cursor.execute(Q["count_letter"], (namespace, *kind, 1, now, now))


def resolve(
    cursor: sqlite3.Cursor,
    namespace: str,
    run_ids: Sequence[RunId],
    state: LetterState,
    note: str,
    successors: Sequence[RunId] | None,
    now: int,
) -> list[RunId]:
    """Mark those of them that are open, and give them back."""
    gone: list[Row] = []
    resolved: list[RunId] = []
    for run_id, successor in zip(run_ids, successors or repeat(None), strict=False):
        after = None if successor is None else successor.bytes
        row = one(
            cursor.execute(Q["resolve_letter"], (state.value, now, note, after, namespace, run_id.bytes)),
        )
        if row is not None:
            gone.append(row)
            resolved.append(run_id)
    for (fingerprint, _, *kind, at), count in Counter(gone).items():
        cursor.execute(Q["count_letter"], (namespace, fingerprint, state.value, *kind, count, at, at))
    _count_fewer(cursor, namespace, gone)
    return resolved


def _discard(cursor: sqlite3.Cursor, namespace: str, run_ids: Sequence[RunId], act: Act, now: int) -> list[RunId]:
    discarded = resolve(cursor, namespace, run_ids, LetterState.DISCARDED, act.reason, None, now)
    rows = (one(cursor.execute(Q["letter"], (namespace, run_id.bytes))) for run_id in discarded)
    letters = [letter_of_row(row) for row in rows if row is not None]
    record(cursor, namespace, now, act, (changed(letter, LetterState.DISCARDED) for letter in letters))
    return discarded


def forget(cursor: sqlite3.Cursor, namespace: str, run_ids: Iterable[RunId]) -> None:
    """The runs are deleted."""
    found = (one(cursor.execute(Q["forget_letter"], (namespace, run_id.bytes))) for run_id in run_ids)
    _count_fewer(cursor, namespace, [row for row in found if row is not None])


def state_of(cursor: sqlite3.Cursor, namespace: str, run_id: RunId) -> str | None:
    """None: it is not a dead letter."""
    row = one(cursor.execute(Q["letter"], (namespace, run_id.bytes)))
    return None if row is None else str(row[7])


def _count_fewer(cursor: sqlite3.Cursor, namespace: str, gone: Sequence[Row]) -> None:
    for kind, count in Counter(row[:4] for row in gone).items():
        key = (namespace, *kind)
        cursor.execute(Q["fewer_letters"], (count, *key))
        if not cursor.execute(Q["no_letters"], key).rowcount:
            cursor.execute(Q["group_times"], key)


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


def _newest(
    connection: sqlite3.Connection, namespace: str, where: LetterFilter, before: tuple[int, bytes], limit: int
) -> list[Row]:
    """State by state, each by its index."""
    statement = Q["list_letters" if where.fingerprint is None else "list_alike"]
    if where.before is not None:
        before = min(before, (where.before, b""))
    values = _values(namespace, where) | {"before_at": before[0], "before_run": before[1], "limit": limit}
    rows = [row for state in states_of(where) for row in connection.execute(statement, values | {"state": state})]
    return sorted(rows, key=lambda row: (row[8], row[0]), reverse=True)[:limit]


def _counted_groups(
    connection: sqlite3.Connection, namespace: str, where: LetterFilter, before: tuple[int, str], limit: int
) -> list[DeadLetterGroup]:
    values = _values(namespace, where) | {"before_at": before[0], "before_name": before[1], "limit": limit}
    heads = [
        head
        for state in states_of(where)
        for head in connection.execute(Q["newest_groups"], values | {"state": state}).fetchall()
    ]
    groups: list[DeadLetterGroup] = []
    for last_at, fingerprint in sorted(heads, reverse=True)[:limit]:
        row = one(connection.execute(Q["group_sizes"], values | {"fingerprint": fingerprint})) or (0, last_at, last_at)
        groups += _group(connection, namespace, where, (fingerprint, *row))
    return groups


def _other_groups(
    connection: sqlite3.Connection, namespace: str, where: LetterFilter, before: tuple[int, str], limit: int
) -> list[DeadLetterGroup]:
    values = _values(namespace, where) | {"before_at": before[0], "before_name": before[1], "limit": limit}
    rows = connection.execute(Q["group_letters"], values).fetchall()
    return [group for row in rows for group in _group(connection, namespace, where, row)]


def _group(connection: sqlite3.Connection, namespace: str, where: LetterFilter, row: Row) -> list[DeadLetterGroup]:
    """None, if the count of the group is wrong and it has no letter."""
    fingerprint, count, first_at, last_at = row
    alike = _filter_of(where, fingerprint)
    return [
        DeadLetterGroup(
            fingerprint=fingerprint,
            count=count,
            first_at=as_datetime(first_at),
            last_at=as_datetime(last_at),
            example=letter_of_row(example),
        )
        for example in _newest(connection, namespace, alike, (last_at, _LAST_RUN), 1)
    ]


def _filter_of(where: LetterFilter, fingerprint: str) -> LetterFilter:
    given = {name: getattr(where, name) for name in LetterFilter.__struct_fields__}
    return LetterFilter(**(given | {"fingerprint": fingerprint}))


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
