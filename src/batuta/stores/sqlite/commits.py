"""One commit: many changes in one transaction, each under its run's fence."""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from batuta.errors import BadData
from batuta.ids import RunId
from batuta.journal.records import Change, Hint, Move, NewRun, Refusal, Verdict, is_heartbeat
from batuta.journal.states import CLOSED, RunState
from batuta.stores.contract import rules
from batuta.stores.sqlite.cross_run_effects import CrossRunEffects, deadline_of
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import (
    EMPTY,
    OWN_OF_ENTRY,
    OWN_OF_RUN,
    Row,
    attempt_row,
    blob,
    one,
    run_in_common,
)
from batuta.stores.sqlite.fast.commit_single import ENDS, write_alone
from batuta.stores.sqlite.fast.multi_row import Group, execute_alike, execute_many
from batuta.stores.sqlite.queues import must_wait

_INSERT_RUN, _INSERT_ENTRY, _ADVANCE = Q["insert_run"], Q["insert_entry"], Q["advance"]
_EVICT, _EVICT_UNREAD, _HAND_BACK, _PARK = Q["evict"], Q["evict_unread"], Q["hand_back"], Q["park"]

Answers = dict[int, Verdict | list[Refusal]]


class Mismatch(Exception):
    """A fence held somewhere in the batch: nothing of it may stay."""


def commit_batch(
    cursor: sqlite3.Cursor, namespace: str, worker_id: str, changes: Sequence[Change], now: int
) -> tuple[Answers, Hint]:
    """Write all changes that their fences let through. Verdicts of the others, by index, and what to tell listeners.

    Tries all at once and counts the rows; only when one is missing, looks which.
    """
    if len(changes) == 1 and (told := write_alone(cursor, namespace, worker_id, changes[0], now)) is not None:
        return {}, told
    batch = CommitBatch(cursor, namespace, worker_id, now)
    try:
        hint = batch.write(changes)
        return batch.refusals(changes), hint
    except Mismatch:
        cursor.execute("ROLLBACK")
        cursor.execute("BEGIN IMMEDIATE")
    judge = Judge(cursor, namespace, worker_id, now)
    answers: Answers = {}
    good: list[Change] = []
    known: list[Change] = []
    for index, change in enumerate(changes):
        verdict = judge.judge(change)
        if isinstance(verdict, Verdict):
            answers[index] = verdict
        else:
            (good if verdict else known).append(change)
    batch = CommitBatch(cursor, namespace, worker_id, now)
    try:
        hint = batch.write(good, known)
        return answers | batch.refusals(changes), hint
    except Mismatch as error:
        raise BadData("a batch has two changes of one run") from error


class Judge:
    """Says of each change whether its fence lets it through."""

    def __init__(self, cursor: sqlite3.Cursor, namespace: str, worker_id: str, now: int) -> None:
        self._cursor = cursor
        self._namespace = namespace
        self._worker_id = worker_id
        self._now = now
        self._is_live = is_live(cursor, namespace, worker_id, now)
        self._taken: set[str] = set()

    def judge(self, change: Change) -> Verdict | bool:
        row = one(self._cursor.execute(Q["fence_state"], (self._namespace, change.run_id.bytes)))
        if row is not None:
            epoch, head, closed, owner, crc, chain_id = row
            standing = rules.Standing(epoch, head, bool(closed), owner, crc)
            verdict = rules.judge(change, self._worker_id, standing)
            return Verdict.UNREAD if verdict is True and self._has_unread(change, chain_id) else verdict
        if change.start is None or not self._is_live:
            return Verdict.REFUSED
        if self._has_unread(change, rules.chain_of(change.start).bytes):
            return Verdict.UNREAD
        return self._judge_start(change.start)

    def _has_unread(self, change: Change, chain_id: bytes) -> bool:
        kinds = rules.must_read(change.move)
        if not kinds:
            return False
        rows = self._cursor.execute(Q["unread_kinds"], (chain_id, self._namespace)).fetchall()
        return any(kind in kinds and message_id not in change.consumed for message_id, kind in rows)

    def _judge_start(self, new: NewRun) -> Verdict | bool:
        if new.id in self._taken:
            return Verdict.EXISTS
        row = one(self._cursor.execute(Q["id_taken"], (self._namespace, new.id)))
        if row is not None and not rules.may_replace(new, bool(row[0]), row[1], self._now):
            return Verdict.EXISTS
        if must_wait(self._cursor, self._namespace, new.queue):
            return Verdict.QUEUED
        if row is not None:
            self._cursor.execute(Q["supersede"], (self._namespace, new.id))
        self._taken.add(new.id)
        return True


class CommitBatch:
    """Changes sorted by the statement that they need, so that each statement runs once over many rows.

    Most of them are of the same kind and place, so values that each row has for itself are kept apart.
    """

    def __init__(self, cursor: sqlite3.Cursor, namespace: str, worker_id: str, now: int) -> None:
        self._cursor = cursor
        self._namespace = namespace
        self._worker_id = worker_id
        self._now = now
        self._starts: defaultdict[Row, list[Any]] = defaultdict(list)
        self._queues: dict[str, bool] = {}
        """Of the starts, and whether one of them has a flow key."""
        self._steps: defaultdict[Row, list[Any]] = defaultdict(list)
        """The changes with one entry and no move, as most are."""
        self._entries: defaultdict[Row, list[Any]] = defaultdict(list)
        self._advances: defaultdict[Row, list[Any]] = defaultdict(list)
        self._closes: defaultdict[str, defaultdict[Row, list[Any]]] = defaultdict(lambda: defaultdict(list))
        """By the statement that closes them."""
        self._evictions: list[Row] = []
        self._hand_backs: list[Row] = []
        self._parkings: list[Row] = []
        self._holds: list[tuple[int, int | None, str, Row]] = []
        self._consumed: list[Row] = []
        self._heartbeats: list[Row] = []
        self._forgotten: list[Row] = []
        self._attempts: list[Row] = []
        self._closed: list[RunId] = []
        self._reaching: list[Change] = []
        self._cross_run: CrossRunEffects | None = None
        self._due = False

    def refusals(self, changes: Sequence[Change]) -> Answers:
        """Refused children and sends of a batch, by the index of the change."""
        if self._cross_run is None or not self._cross_run.refusals:
            return {}
        found = self._cross_run.refusals
        return {index: found[change.run_id] for index, change in enumerate(changes) if change.run_id in found}

    def write(self, changes: Sequence[Change], known: Sequence[Change] = ()) -> Hint:
        """Write all of them, and for the `known` ones only their effects on other runs, once more.

        Raises Mismatch when a fence failed; the transaction must then be rolled back.
        """
        self._sort(changes)
        if self._starts:
            self._insert_starts()
        # Before the moves: whether a run is due at once depends on its unread messages.
        self._run(Q["consume"], self._consumed)
        self._run(Q["forget_heartbeat"], self._heartbeats)
        self._fenced(_ADVANCE, self._all_advances())
        for statement, closes in self._closes.items():
            self._fenced(statement, closes.items())
        if self._holds:
            self._hold()
        self._hand_back()
        self._park()
        hint = Hint()
        if self._reaching or known:
            self._cross_run = CrossRunEffects(self._cursor, self._namespace, self._now)
            self._cross_run.write(self._reaching, known)
            hint = self._cross_run.hint
        self._evict()
        execute_alike(self._cursor, _INSERT_ENTRY, self._all_entries(), OWN_OF_ENTRY)
        self._run(Q["upsert_attempt"], self._attempts)
        self._run(Q["forget_attempt"], self._forgotten)
        hint.due, hint.closed = self._due or hint.due, self._closed
        return hint

    def _sort(self, changes: Sequence[Change]) -> None:
        namespace, worker_id, steps = self._namespace, self._worker_id, self._steps
        for change in changes:
            run_id = EMPTY + change.run_id.int.to_bytes(16)  # as `blob` does
            epoch, head = change.epoch, change.head
            entries, move, start = change.entries, change.move, change.start
            if move is None and start is None and len(entries) == 1:
                entry = entries[0]
                steps[epoch, head, entry.ord, entry.kind._value_].extend((run_id, entry.at, entry.crc, entry.body))
            else:
                new_head = head + len(entries)
                if start is not None:
                    self._add_start(start, run_id, epoch, new_head if move is None else head)
                if move is not None:
                    self._add_move(change.run_id, move, (namespace, epoch, head, worker_id, run_id), new_head)
                elif start is None:
                    self._advances[new_head, namespace, epoch, head, worker_id].append(run_id)
                for entry in entries:
                    common = entry.ord, namespace, entry.kind._value_, epoch
                    self._entries[common].extend((run_id, entry.at, entry.crc, entry.body))
            if change.effects is not None or (move is not None and (move.outcome or move.children)):
                self._reaching.append(change)
            if change.consumed:
                self._consumed += [(self._now, namespace, run_id, message_id) for message_id in change.consumed]
                beats = filter(is_heartbeat, change.consumed)
                self._heartbeats += [(namespace, run_id, message_id) for message_id in beats]
            if change.attempts:
                self._attempts += [attempt_row(namespace, run_id, attempt) for attempt in change.attempts]
                self._forgotten += [
                    (run_id, namespace, one.seq, one.replaces) for one in change.attempts if one.replaces
                ]

    def _add_start(self, new: NewRun, run_id: bytearray, epoch: int, head: int) -> None:
        if new.queue not in self._queues or new.flow_key:
            self._queues[new.queue] = bool(new.flow_key)
        has_deadline = new.timeout or new.execution_timeout
        deadline = deadline_of(self._cursor, self._namespace, new, self._now) if has_deadline else None
        common = run_in_common(self._namespace, new, self._now, deadline, epoch, head, self._worker_id)
        self._starts[common].extend((run_id, new.id, run_id if new.chain_id is None else blob(new.chain_id)))

    def _add_move(self, run_id: RunId, move: Move, fence: Row, new_head: int) -> None:
        state, wake_at = move.state, move.wake_at
        if state in CLOSED:
            closes = self._closes[ENDS[state]]
            closes[new_head, state._value_, self._now, move.reason, *fence[:-1]].append(fence[-1])
            self._closed.append(run_id)
        elif state is RunState.WAITING:
            self._evictions.append((new_head, wake_at, move.reason, *fence))
            self._due = self._due or (wake_at is not None and wake_at <= self._now)
        elif state is RunState.PENDING:
            wake_at = self._now if wake_at is None else wake_at
            self._hand_backs.append((new_head, state._value_, wake_at, move.reason, *fence))
            self._due = self._due or wake_at <= self._now
        elif state is RunState.PAUSED:
            self._holds.append((new_head, wake_at, move.reason, fence))
        else:
            self._parkings.append((new_head, state._value_, move.reason, *(move.fingerprint,) * 3, *fence))

    def _insert_starts(self) -> None:
        # A start has no row to fence: the worker's row stands in for it.
        if not is_live(self._cursor, self._namespace, self._worker_id, self._now):
            raise Mismatch
        for name, keyed in self._queues.items():
            if must_wait(self._cursor, self._namespace, name):
                raise Mismatch
            if keyed:
                self._cursor.execute(Q["note_keyed"], (self._namespace, name))
        self._fenced(_INSERT_RUN, self._starts.items(), OWN_OF_RUN)

    def _all_advances(self) -> Iterator[Group]:
        yield from self._advances.items()
        for (epoch, head, _, _), values in self._steps.items():
            yield (head + 1, self._namespace, epoch, head, self._worker_id), values[::OWN_OF_ENTRY]

    def _all_entries(self) -> Iterator[Group]:
        yield from self._entries.items()
        for (epoch, _, number, kind), values in self._steps.items():
            yield (number, self._namespace, kind, epoch), values

    def _fenced(self, statement: str, groups: Iterable[Group], own: int = 1) -> None:
        if execute_alike(self._cursor, statement, groups, own):
            raise Mismatch

    def _hand_back(self) -> None:
        rows = self._hand_backs
        if rows and execute_many(self._cursor, _HAND_BACK, rows) != len(rows):
            raise Mismatch

    def _park(self) -> None:
        rows = self._parkings
        if rows and self._cursor.executemany(_PARK, rows).rowcount != len(rows):
            raise Mismatch

    def _hold(self) -> None:
        for new_head, wake_at, reason, fence in self._holds:
            row = one(self._cursor.execute(Q["hold"], (new_head, wake_at, reason, self._now, *fence)))
            if row is not None:
                self._cursor.execute(Q["read_pauses"], (self._now, row[0], self._namespace))
            elif new_head < 0:  # resumed meanwhile
                self._hand_backs.append((new_head, RunState.PENDING.value, self._now, "", *fence))
                self._due = True
            else:
                self._evictions.append((new_head, wake_at, "", *fence))
                self._due = True

    def _run(self, statement: str, rows: list[Row]) -> None:
        if rows:
            self._cursor.executemany(statement, rows)

    def _evict(self) -> None:
        rows = self._evictions
        if not rows:
            return
        missing = len(rows) - execute_many(self._cursor, _EVICT, rows)
        if missing:
            at_once = [(new_head, self._now, *rest) for new_head, _wake_at, *rest in rows]
            if self._cursor.executemany(_EVICT_UNREAD, at_once).rowcount != missing:
                raise Mismatch
            self._due = True


def is_live(cursor: sqlite3.Cursor, namespace: str, worker_id: str, now: int) -> bool:
    """Whether the worker's lease is not over."""
    return one(cursor.execute(Q["is_live"], (namespace, worker_id, now))) is not None
