"""A batch packed into the values of one statement (parcels.sql), for the many that are nothing out of the ordinary.

Sent from a thread it takes the interpreter's lock twice, however large it is: to bind a dozen values, and at the end.
Statements of rows would take it for every value, and each of them would have to ask a busy thread for it again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable

from msgspec import json
from msgspec.structs import astuple

from batuta.failpoints import failpoint
from batuta.ids import RunId
from batuta.journal.records import Change, Hint, NewRun
from batuta.journal.states import RunState
from batuta.stores import rules
from batuta.stores.sqlite.connection import Q
from batuta.stores.sqlite.rows import Row

_MAKE, _UNPACK, _SEND = Q["make_parcels"], Q["unpack_parcels"], Q["send_parcel"]
_encode = json.Encoder().encode


def pack(namespace: str, worker_id: str, changes: Iterable[Change], now: int) -> Parcel | None:
    """None when one of the changes needs more than a parcel does."""
    parcel = Parcel(namespace, worker_id, now)
    return parcel if parcel.takes(changes) else None


class Items:
    """Rows without their run ids, and those: JSON has no blobs."""

    __slots__ = ("ids", "rows")

    def __init__(self) -> None:
        self.ids: list[bytes] = []
        self.rows: list[Row] = []

    def add(self, run_id: bytes, row: Row) -> None:
        self.ids.append(run_id)
        self.rows.append(row)


class Parcel:
    """Changes, sorted by what is to be done with them."""

    def __init__(self, namespace: str, worker_id: str, now: int) -> None:
        self.hint = Hint()
        """What to tell listeners once it was sent."""
        self._now = now
        self._closed: list[RunId] = []
        self._values: list[object] = [namespace, worker_id, now]
        self._queues: set[str] = set()
        self._starts, self._consumed, self._advances = Items(), Items(), Items()
        self._finishes, self._evictions, self._entries, self._attempts = Items(), Items(), Items(), Items()

    def prepare(self, cursor: sqlite3.Cursor) -> None:
        """Have the connection know what a parcel is."""
        cursor.execute(_MAKE)
        cursor.execute(_UNPACK)

    def send(self, cursor: sqlite3.Cursor) -> None:
        """Write it, as a transaction of its own. Raises IntegrityError when some of it must be looked at one by one."""
        failpoint("commit.inside")
        cursor.execute(_SEND, self._values)

    def takes(self, changes: Iterable[Change]) -> bool:
        """Put them in, and see whether it could take all of them."""
        entry_ids, entries = self._entries.ids, self._entries.rows
        advance_ids, advances = self._advances.ids, self._advances.rows
        for change in changes:
            if change.effects is not None:
                return False
            run_id, epoch, head, move = change.run_id.int.to_bytes(16, "big"), change.epoch, change.head, change.move
            new_head = head + len(change.entries)
            for entry in change.entries:
                entry_ids.append(run_id)
                entries.append((epoch, entry.ord, entry.kind._value_, entry.at, entry.crc, entry.body))
            if move is None and change.start is None:
                advance_ids.append(run_id)
                advances.append((epoch, head, new_head))
            elif not self._add_rare(change, run_id, new_head):
                return False
            if change.consumed:
                for message_id in change.consumed:
                    self._consumed.add(run_id, (message_id,))
            if change.attempts:
                for attempt in change.attempts:
                    self._attempts.add(run_id, astuple(attempt))
        return self._seal()

    def _add_rare(self, change: Change, run_id: bytes, new_head: int) -> bool:
        """What begins and ends a run."""
        start, move = change.start, change.move
        head = new_head if move is None else change.head
        if start is not None and not self._add_start(start, run_id, change.epoch, head):
            return False
        if move is None:
            return True
        if move.outcome or move.children:
            return False
        row = (change.epoch, head, new_head)
        if move.state in rules.MUST_READ:
            self._finishes.add(run_id, (*row, move.state._value_, move.reason))
            self._closed.append(change.run_id)
        elif move.state is RunState.WAITING:
            self._evictions.add(run_id, (*row, move.wake_at, move.reason))
            self.hint.due = self.hint.due or (move.wake_at is not None and move.wake_at <= self._now)
        else:
            return False
        return True

    def _add_start(self, new: NewRun, run_id: bytes, epoch: int, head: int) -> bool:
        if new.chain_id is not None or new.parent_run_id is not None or new.flow_key:
            return False
        self._queues.add(new.queue)
        deadline = rules.deadline_of(new, self._now, self._now) if new.timeout or new.execution_timeout else None
        row = (epoch, head, deadline, new.code or new.name, new.id, new.kind._value_, new.name, new.queue, new.priority)
        more = (new.version, new.tags, new.memo, new.parent_seq, new.parent_policy._value_)
        self._starts.add(run_id, row + more)
        return True

    def _seal(self) -> bool:
        self.hint.closed = self._closed
        lists = (self._starts, self._consumed, self._advances, self._finishes, self._evictions, self._entries)
        try:
            texts = [_encode(self._queues), *[_encode(each.rows) for each in lists], _encode(self._attempts.rows)]
        except (OverflowError, UnicodeEncodeError, TypeError):  # the other way says what is wrong
            return False
        self._values += [text.decode() for text in texts]
        self._values += [b"".join(each.ids) for each in (*lists, self._attempts)]
        return True
