"""Changes as columns, the parameters of a commit's statements. Values, no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from batuta.journal.records import Change, IfExists, Move, NewRun
from batuta.journal.states import CLOSED, PARKED, RunState
from batuta.stores.contract import rules

Columns = list[list[Any]]
Row = tuple[Any, ...]
_RETURN = IfExists.RETURN  # of most starts; members of an enum are looked up slowly
_BY_RUN_ID = attrgetter("run_id.int")


def is_step(change: Change) -> bool:
    """Whether it is one entry of a run that goes on, and nothing else."""
    nothing_else = change.move is None and change.start is None and change.effects is None
    return nothing_else and len(change.entries) == 1 and not change.consumed and not change.attempts


def reaches_out(change: Change) -> bool:
    """Whether it concerns more than its own run: others, or a run that has its id or its chain already."""
    if change.effects is not None:
        return True
    move, start = change.move, change.start
    if move is not None and (move.outcome or move.children):
        return True
    return start is not None and (renewal_of(start) is not None or start.chain_id is not None)


class Survey(NamedTuple):
    """The contents of a batch, found in one pass: most changes are plain steps."""

    beyond: bool
    """One of them reaches out. The others were not looked at."""
    starts: list[Change]
    moved: list[Change]
    """Changes whose runs do not go on here."""
    readers: list[Change]
    """Changes that have read messages."""
    others: bool
    """There is more than entries, starts and ends."""
    one_each: bool
    """Each change has one entry."""

    def is_entries_only(self) -> bool:
        """Whether every change touches nothing but its own run and journal, and needs no look into its inbox. It may
        have read its start message."""
        return not self.others and all(map(_reads_start, self.readers))


def survey(changes: Iterable[Change]) -> Survey:
    starts: list[Change] = []
    moved: list[Change] = []
    readers: list[Change] = []
    others, one_each = False, True
    for change in changes:
        move, start = change.move, change.start
        if move is not None or start is not None or change.effects is not None:
            if reaches_out(change):
                return Survey(True, [], [], [], True, False)
            if start is not None:
                starts.append(change)
            elif move is not None and move.state not in CLOSED:
                others = True
            if move is not None:
                moved.append(change)
        if change.consumed:
            readers.append(change)
        if change.attempts:
            others = True
        if len(change.entries) != 1:
            one_each = False
            others = others or not change.entries
    return Survey(False, starts, moved, readers, others, one_each)


def _reads_start(change: Change) -> bool:
    return len(change.consumed) == 1 and change.start is None and change.consumed[0] == f"start:{change.run_id}"


def in_order(changes: Iterable[Change]) -> list[Change]:
    """In order of run_id, the order in which every statement locks runs."""
    return sorted(changes, key=_BY_RUN_ID)


def change_columns(changes: Sequence[Change]) -> Columns:
    """For commit_changes: changes of runs that exist, all entries, consumed messages, attempts."""
    still = Move(RunState.RUNNING)
    old = [(change, change.move or still) for change in changes if change.start is None]
    return (
        as_columns(
            [
                (
                    change.run_id,
                    change.epoch,
                    change.head,
                    change.new_head,
                    None if move is still else move.state._value_,
                    move.wake_at,
                    move.reason,
                    move.fingerprint if move.state in PARKED else "",
                )
                for change, move in old
            ],
            8,
        )
        + as_columns(
            [
                (change.run_id, change.epoch, entry.ord, entry.kind._value_, entry.at, entry.crc, entry.body)
                for change in changes
                for entry in change.entries
            ],
            7,
        )
        + as_columns([(change.run_id, message_id) for change in changes for message_id in change.consumed], 2)
        + as_columns(
            [
                (
                    change.run_id,
                    a.seq,
                    a.number,
                    a.started_at,
                    a.ended_at,
                    a.next_at,
                    a.error,
                    a.details,
                    a.outside,
                    a.tokens,
                )
                for change in changes
                for a in change.attempts
            ],
            10,
        )
    )


def start_columns(changes: Iterable[Change]) -> Columns:
    """For insert_runs: the new runs of a batch, owned unless their first turn ended or began to wait.

    In order of their ids, so that two batches never wait for each other.
    """
    return new_run_columns(sorted(start_rows(changes), key=lambda row: row[1]))


def start_rows(changes: Iterable[Change]) -> list[Row]:
    """The new runs of a batch that the worker starts itself, as rows."""
    return [(*_run_row(change.start), *_begun_row(change)) for change in changes if change.start is not None]


def renewal_of(run: NewRun) -> int | None:
    """From a closed run of which age on it may take the id over; None: never."""
    if run.if_exists is _RETURN:
        return None
    if run.if_exists is IfExists.RENEW:
        return run.fresh
    return 0 if run.if_exists is IfExists.RESTART else None


def together_columns(runs: Sequence[NewRun]) -> Columns:
    """For start_together: debounce keys, limits and runs, and then as for start_runs, in the order that it wants."""
    runs = sorted(runs, key=lambda run: (run.debounce, "" if run.debounce else run.id))
    debounced = any(run.debounce for run in runs)
    keys = as_columns([(run.debounce or None, run.debounce_limit, run.instead) for run in runs if debounced], 3)
    return keys + _unowned_columns(runs)


def unowned_columns(runs: Sequence[NewRun]) -> Columns:
    """For start_runs: runs that wait for an owner, and their start messages. In order of their ids, as above."""
    return _unowned_columns(sorted(runs, key=lambda run: run.id))


def _unowned_columns(runs: Sequence[NewRun]) -> Columns:
    messages = [rules.start_message(run) for run in runs]
    return new_run_columns([unowned_row(run) for run in runs]) + as_columns(
        [(message.message_id, message.kind._value_, message.name, message.body) for message in messages], 4
    )


def unowned_row(run: NewRun) -> Row:
    """A run that waits for an owner, as a row."""
    return (*_run_row(run), 0, -1, "pending", None, run.delay, "", None)


def _run_row(run: NewRun) -> Row:
    return (
        run.run_id,
        run.id,
        renewal_of(run),
        run.chain_id,
        run.kind._value_,
        run.name,
        run.code,
        run.queue,
        run.priority,
        run.version,
        run.tags,
        run.memo,
        run.timeout,
        run.execution_timeout,
        run.parent_run_id,
        run.parent_seq,
        run.parent_policy._value_,
        run.flow_key,
        run.expires,
    )


def _begun_row(change: Change) -> Row:
    """epoch, head, state (None: running), wake_at, delay, reason, fingerprint."""
    epoch, head = change.epoch, change.new_head
    match change.move:
        case None:
            return epoch, head, None, None, None, "", None
        case Move(state=RunState.PENDING, wake_at=wake_at, reason=reason):
            return epoch, head, "pending", wake_at, 0, reason, None
        case Move(state=RunState.WAITING, wake_at=wake_at, reason=reason):
            return epoch, head, "waiting", wake_at, None, reason, None
        case Move(state=state, reason=reason, fingerprint=fingerprint):
            return epoch, head, state._value_, None, None, reason, fingerprint or None


START_WIDTH = 26
"""Columns of insert_runs."""
_DEFAULTS: dict[int, Any] = {
    2: None,
    3: None,
    6: "",
    8: 0,
    9: "",
    10: "{}",
    11: "null",
    12: 0,
    13: 0,
    14: None,
    15: 0,
    16: "cancel",
    17: "",
    18: 0,
    21: None,
    22: None,
    23: None,
    24: "",
    25: None,
}
"""Defaults by position in a row for insert_runs.

A column of nothing else is left empty, because encoding is what a start costs.
"""


def new_run_columns(rows: Sequence[Row]) -> Columns:
    """Rows for insert_runs as columns."""
    columns = as_columns(rows, START_WIDTH)
    for position, default in _DEFAULTS.items():
        if columns[position].count(default) == len(rows):
            columns[position] = []
    return columns


def as_columns(rows: Sequence[Row], width: int) -> Columns:
    """Rows turned on their side."""
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(width)]
