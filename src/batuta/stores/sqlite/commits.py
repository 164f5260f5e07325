"""One commit: many changes in one transaction, each under its run's fence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from batuta.errors import BadData
from batuta.ids import RunId
from batuta.journal.records import Change, Move, NewRun, Refusal, Verdict, is_heartbeat
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
    run_in_common,
)
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork
from batuta.stores.sqlite.fast.commit_single import ENDS, write_alone
from batuta.stores.sqlite.fast.multi_row import execute_alike, execute_many
from batuta.stores.sqlite.queues import must_wait

Answers = dict[int, Verdict | list[Refusal]]


class Mismatch(Exception):
    """A fence held somewhere in the batch: nothing of it may stay."""


def commit_batch(unit: UnitOfWork, worker_id: str, changes: Sequence[Change]) -> Answers:
    """Write all changes that their fences let through. Verdicts of the others, by index.

    Tries all at once and counts the rows; only when one is missing, looks which.
    """
    if len(changes) == 1 and write_alone(unit, worker_id, changes[0]):
        return {}
    batch = CommitBatch(unit, worker_id)
    try:
        batch.write(changes)
        return {**batch.refusals(changes)}
    except Mismatch:
        unit.start_over()
    judge = Judge(unit, worker_id)
    answers: Answers = {}
    good: list[Change] = []
    known: list[Change] = []
    for index, change in enumerate(changes):
        verdict = judge.judge(change)
        if isinstance(verdict, Verdict):
            answers[index] = verdict
        else:
            (good if verdict else known).append(change)
    batch = CommitBatch(unit, worker_id)
    try:
        batch.write(good, known)
        return answers | batch.refusals(changes)
    except Mismatch as error:
        raise BadData("a batch has two changes of one run") from error


class Judge:
    """Says of each change whether its fence lets it through."""

    def __init__(self, unit: UnitOfWork, worker_id: str) -> None:
        self._unit = unit
        self._worker_id = worker_id
        self._is_live = is_live(unit, worker_id)
        self._taken: set[str] = set()

    def judge(self, change: Change) -> Verdict | bool:
        row = self._unit.row("fence_state", (self._unit.namespace, change.run_id.bytes))
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
        rows = self._unit.rows("unread_kinds", (chain_id, self._unit.namespace))
        return any(kind in kinds and message_id not in change.consumed for message_id, kind in rows)

    def _judge_start(self, new: NewRun) -> Verdict | bool:
        unit = self._unit
        if new.id in self._taken:
            return Verdict.EXISTS
        row = unit.row("id_taken", (unit.namespace, new.id))
        if row is not None and not rules.may_replace(new, bool(row[0]), row[1], unit.now):
            return Verdict.EXISTS
        if must_wait(unit, new.queue):
            return Verdict.QUEUED
        if row is not None:
            unit.change("supersede", (unit.namespace, new.id))
        self._taken.add(new.id)
        return True


class CommitBatch:
    """Changes sorted by the statement that they need, so that each statement runs once over many rows.

    Most of them are of the same kind and place, so values that each row has for itself are kept apart.
    """

    def __init__(self, unit: UnitOfWork, worker_id: str) -> None:
        self._unit = unit
        self._worker_id = worker_id
        self._queues: dict[str, bool] = {}
        """Of the starts, and whether one of them has a flow key."""
        self._steps: defaultdict[Row, list[Any]] = defaultdict(list)
        """The changes with one entry and no move, as most are."""
        self._alike: defaultdict[str, defaultdict[Row, list[Any]]] = defaultdict(lambda: defaultdict(list))
        """By statement, rows that are alike: their common values, and each row's own values."""
        self._rows: defaultdict[str, list[Row]] = defaultdict(list)
        """By statement, all other rows."""
        self._holds: list[tuple[int, int | None, str, Row]] = []
        self._closed: list[RunId] = []
        self._reaching: list[Change] = []
        self._cross_run: CrossRunEffects | None = None

    def refusals(self, changes: Sequence[Change]) -> dict[int, list[Refusal]]:
        """Refused children and sends of a batch, by the index of the change."""
        if self._cross_run is None or not self._cross_run.refusals:
            return {}
        found = self._cross_run.refusals
        return {index: found[change.run_id] for index, change in enumerate(changes) if change.run_id in found}

    def write(self, changes: Sequence[Change], known: Sequence[Change] = ()) -> None:
        """Write all of them, and for the `known` ones only their effects on other runs, once more.

        Raises Mismatch when a fence failed; the transaction must then be rolled back.
        """
        self._sort(changes)
        if self._queues:
            self._check_starts()
        self._write_alike("insert_run", OWN_OF_RUN)
        # Before the moves: whether a run is due at once depends on its unread messages.
        self._write_rows("consume", "forget_heartbeat")
        self._write_alike("advance")
        for statement in dict.fromkeys(ENDS.values()):
            self._write_alike(statement)
        self._hold()
        self._hand_back()
        self._park()
        if self._reaching or known:
            self._cross_run = CrossRunEffects(self._unit)
            self._cross_run.write(self._reaching, known)
        self._evict()
        self._write_alike("insert_entry", OWN_OF_ENTRY)
        self._write_rows("upsert_attempt", "forget_attempt")
        self._unit.hint.closed = self._closed

    def _sort(self, changes: Sequence[Change]) -> None:
        namespace, worker_id, now, steps = self._unit.namespace, self._worker_id, self._unit.now, self._steps
        entries_alike, advances, rows = self._alike["insert_entry"], self._alike["advance"], self._rows
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
                    advances[new_head, namespace, epoch, head, worker_id].append(run_id)
                for entry in entries:
                    common = entry.ord, namespace, entry.kind._value_, epoch
                    entries_alike[common].extend((run_id, entry.at, entry.crc, entry.body))
            if change.effects is not None or (move is not None and (move.outcome or move.children)):
                self._reaching.append(change)
            if change.consumed:
                rows["consume"] += [(now, namespace, run_id, message_id) for message_id in change.consumed]
                beats = filter(is_heartbeat, change.consumed)
                rows["forget_heartbeat"] += [(namespace, run_id, message_id) for message_id in beats]
            if change.attempts:
                rows["upsert_attempt"] += [attempt_row(namespace, run_id, attempt) for attempt in change.attempts]
                rows["forget_attempt"] += [
                    (run_id, namespace, one.seq, one.replaces) for one in change.attempts if one.replaces
                ]
        for (epoch, head, number, kind), values in steps.items():
            advances[head + 1, namespace, epoch, head, worker_id] += values[::OWN_OF_ENTRY]
            entries_alike[number, namespace, kind, epoch] += values

    def _add_start(self, new: NewRun, run_id: bytearray, epoch: int, head: int) -> None:
        unit = self._unit
        if new.queue not in self._queues or new.flow_key:
            self._queues[new.queue] = bool(new.flow_key)
        deadline = deadline_of(unit, new) if new.timeout or new.execution_timeout else None
        common = run_in_common(unit.namespace, new, unit.now, deadline, epoch, head, self._worker_id)
        chain_id = run_id if new.chain_id is None else blob(new.chain_id)
        self._alike["insert_run"][common].extend((run_id, new.id, chain_id))

    def _add_move(self, run_id: RunId, move: Move, fence: Row, new_head: int) -> None:
        state, wake_at, now = move.state, move.wake_at, self._unit.now
        if state in CLOSED:
            common = (new_head, state._value_, now, move.reason, *fence[:-1])
            self._alike[ENDS[state]][common].append(fence[-1])
            self._closed.append(run_id)
        elif state is RunState.WAITING:
            self._rows["evict"].append((new_head, wake_at, move.reason, *fence))
            self._note_due(wake_at is not None and wake_at <= now)
        elif state is RunState.PENDING:
            wake_at = now if wake_at is None else wake_at
            self._rows["hand_back"].append((new_head, state._value_, wake_at, move.reason, *fence))
            self._note_due(wake_at <= now)
        elif state is RunState.PAUSED:
            self._holds.append((new_head, wake_at, move.reason, fence))
        else:
            self._rows["park"].append((new_head, state._value_, move.reason, *(move.fingerprint,) * 3, *fence))

    def _note_due(self, due: bool = True) -> None:
        self._unit.hint.due = self._unit.hint.due or due

    def _check_starts(self) -> None:
        # A start has no row to fence: the worker's row stands in for it.
        if not is_live(self._unit, self._worker_id):
            raise Mismatch
        for name, keyed in self._queues.items():
            if must_wait(self._unit, name):
                raise Mismatch
            if keyed:
                self._unit.change("note_keyed", (self._unit.namespace, name))

    def _write_alike(self, statement: str, own: int = 1) -> None:
        groups = self._alike.get(statement)
        if groups and execute_alike(self._unit.executor, Q[statement], groups.items(), own):
            raise Mismatch

    def _write_rows(self, *statements: str) -> None:
        for statement in statements:
            if rows := self._rows.get(statement):
                self._unit.change_each(statement, rows)

    def _hold(self) -> None:
        unit = self._unit
        for new_head, wake_at, reason, fence in self._holds:
            chain_id = unit.value("hold", (new_head, wake_at, reason, unit.now, *fence))
            if chain_id is not None:
                unit.change("read_pauses", (unit.now, chain_id, unit.namespace))
            elif new_head < 0:  # resumed meanwhile
                self._rows["hand_back"].append((new_head, RunState.PENDING.value, unit.now, "", *fence))
                self._note_due()
            else:
                self._rows["evict"].append((new_head, wake_at, "", *fence))
                self._note_due()

    def _hand_back(self) -> None:
        rows = self._rows["hand_back"]
        if rows and execute_many(self._unit.executor, Q["hand_back"], rows) != len(rows):
            raise Mismatch

    def _park(self) -> None:
        rows = self._rows["park"]
        if rows and self._unit.change_each("park", rows) != len(rows):
            raise Mismatch

    def _evict(self) -> None:
        rows = self._rows["evict"]
        if not rows:
            return
        missing = len(rows) - execute_many(self._unit.executor, Q["evict"], rows)
        if missing:
            at_once = [(new_head, self._unit.now, *rest) for new_head, _wake_at, *rest in rows]
            if self._unit.change_each("evict_unread", at_once) != missing:
                raise Mismatch
            self._note_due()


def is_live(unit: UnitOfWork, worker_id: str) -> bool:
    """Whether the worker's lease is not over."""
    return unit.finds("is_live", (unit.namespace, worker_id, unit.now))
