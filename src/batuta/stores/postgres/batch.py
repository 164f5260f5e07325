"""Changes as columns: what the statements of a commit take. Values, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from batuta.journal.records import Change, IfExists, Move, NewRun
from batuta.journal.states import CLOSED, PARKED, RunState
from batuta.stores import rules

Columns = list[list[Any]]


def is_one_entry(changes: Sequence[Change]) -> bool:
    """Whether the batch is one entry of one run that exists, which may be its last: it has statements of its own."""
    change = changes[0]
    return len(changes) == 1 and len(change.entries) == 1 and change.start is None and _is_plain(change)


def is_entries_only(changes: Sequence[Change]) -> bool:
    """Whether every change touches nothing but its own run and journal, and needs no look into its inbox."""
    return all(change.entries and _is_plain(change) for change in changes)


def _is_plain(change: Change) -> bool:
    move = change.move
    if change.consumed or change.attempts:
        return False
    return move is None or move.state in CLOSED or change.start is not None


def in_order(changes: Iterable[Change]) -> list[Change]:
    """In order of run_id, the order in which every statement locks runs."""
    return sorted(changes, key=lambda change: change.run_id.int)


def entry_columns(changes: Sequence[Change]) -> Columns:
    """For commit_entries: one row an entry; the last one of a run that exists carries head, state and reason."""
    rows: list[tuple[Any, ...]] = []
    for change in changes:
        run_id, epoch, entries, move = change.run_id, change.epoch, change.entries, change.move
        rows.extend(
            (run_id, epoch, None, entry.ord, entry.kind, entry.at, entry.crc, entry.body, None, None)
            for entry in entries[:-1]
        )
        last = entries[-1]
        expected = change.head if change.start is None else None
        state, reason = (None, None) if move is None else (move.state, move.reason)
        rows.append((run_id, epoch, expected, last.ord, last.kind, last.at, last.crc, last.body, state, reason))
    return _columns(rows, 10)


def change_columns(changes: Sequence[Change]) -> Columns:
    """For commit_changes: changes of runs that exist, all entries, consumed messages, attempts."""
    still = Move(RunState.RUNNING)
    old = [(change, change.move or still) for change in changes if change.start is None]
    return (
        _columns(
            [
                (
                    change.run_id,
                    change.epoch,
                    change.head,
                    change.new_head,
                    None if move is still else move.state,
                    move.wake_at,
                    move.reason,
                    move.fingerprint if move.state in PARKED else "",
                )
                for change, move in old
            ],
            8,
        )
        + _columns(
            [
                (change.run_id, change.epoch, entry.ord, entry.kind, entry.at, entry.crc, entry.body)
                for change in changes
                for entry in change.entries
            ],
            7,
        )
        + _columns([(change.run_id, message_id) for change in changes for message_id in change.consumed], 2)
        + _columns(
            [
                (change.run_id, a.seq, a.number, a.started_at, a.ended_at, a.next_at, a.error, a.details)
                for change in changes
                for a in change.attempts
            ],
            8,
        )
    )


def start_columns(changes: Iterable[Change]) -> Columns:
    """For insert_runs: the new runs of a batch, owned unless their first turn ended or began to wait.

    In order of their ids, so that two batches never wait for each other.
    """
    starts = [(change.start, change) for change in changes if change.start is not None]
    starts.sort(key=lambda pair: pair[0].id)
    return _columns([_start_row(start, change) for start, change in starts], 24)


def unowned_columns(run: NewRun) -> Columns:
    """For insert_runs: one run that waits for an owner."""
    return [[value] for value in (*_run_row(run), 0, -1, RunState.PENDING, None, run.delay, "", "")]


def _start_row(start: NewRun, change: Change) -> tuple[Any, ...]:
    head = (*_run_row(start), change.epoch, change.new_head)
    match change.move:
        case None:
            return (*head, RunState.RUNNING, None, None, "", "")
        case Move(state=state, reason=reason) if state in CLOSED:
            return (*head, state, None, None, reason, "")
        case Move(state=RunState.PENDING, wake_at=wake_at, reason=reason):
            return (*head, RunState.PENDING, wake_at, 0, reason, "")
        case Move(state=RunState.WAITING, wake_at=wake_at, reason=reason):
            return (*head, RunState.WAITING, wake_at, None, reason, "")
        case Move(state=state, reason=reason, fingerprint=fingerprint):
            return (*head, state, None, None, reason, fingerprint if state in PARKED else "")


def _run_row(run: NewRun) -> tuple[Any, ...]:
    return (
        run.run_id,
        run.id,
        run.if_exists is IfExists.RESTART,
        rules.chain_of(run),
        run.kind,
        run.name,
        run.queue,
        run.priority,
        run.version,
        run.tags,
        run.memo,
        run.timeout,
        run.execution_timeout,
        run.parent_run_id,
        run.parent_seq,
        run.parent_policy,
        run.flow_key,
    )


def _columns(rows: Sequence[tuple[Any, ...]], width: int) -> Columns:
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
