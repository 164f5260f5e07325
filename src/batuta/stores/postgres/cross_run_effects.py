"""Changes with effects on other runs, as columns for commit_beyond, and its answers. Values, no I/O."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from asyncpg import Record

from batuta.errors import AlreadyStarted
from batuta.ids import RunId
from batuta.journal.records import Change, Effects, Hint, Refusal, Verdict
from batuta.journal.states import CLOSED, RunState
from batuta.stores.postgres.database import batch_columns
from batuta.stores.postgres.database.batch_columns import Columns, Row, as_columns
from batuta.stores.postgres.database.rows import run_ids


def statement_of(changes: Sequence[Change]) -> tuple[str, Columns]:
    """The statement that writes them, and its parameters after namespace, worker and why. In order of run_id."""
    letters = _letters(changes)
    if not letters:
        return "commit_beyond", columns_of(changes)
    return "commit_letters", columns_of(changes) + as_columns(letters, 10)


def columns_of(changes: Sequence[Change]) -> Columns:
    """For commit_beyond, without namespace and worker. The changes come in order of run_id."""
    effects = [(change.run_id, change.effects) for change in changes if change.effects is not None]
    return (
        batch_columns.change_columns(changes)
        + _new_runs(changes, effects)
        + _closers(changes)
        + _sends(effects)
        + _outputs(effects)
        + _successors(effects)
    )


def _new_runs(changes: Sequence[Change], effects: Iterable[tuple[RunId, Effects]]) -> Columns:
    """Starts and children together in order of their ids, so that two batches never wait for each other."""
    rows: list[tuple[Row, RunId, str | None]] = [(row, row[0], None) for row in batch_columns.start_rows(changes)]
    rows += [
        (batch_columns.unowned_row(child), run_id, child.start) for run_id, made in effects for child in made.children
    ]
    rows.sort(key=lambda each: each[0][1])
    return batch_columns.new_run_columns([row for row, _, _ in rows]) + as_columns([each[1:] for each in rows], 2)


def _closers(changes: Iterable[Change]) -> Columns:
    rows = [
        (change.run_id, "" if move.state is RunState.CONTINUED else move.outcome, move.children)
        for change in changes
        if (move := change.move) is not None and move.state in CLOSED and (move.outcome or move.children)
    ]
    return as_columns(rows, 3)


def _sends(effects: Iterable[tuple[RunId, Effects]]) -> Columns:
    rows = [
        (run_id, send.seq, send.id, m.message_id, m.kind._value_, m.name, m.body, send.again)
        for run_id, made in effects
        for send in made.sends
        for m in (send.message,)
    ]
    return as_columns(rows, 8)


def _outputs(effects: Iterable[tuple[RunId, Effects]]) -> Columns:
    """Only the last one of each name: one statement cannot write a row twice."""
    rows = {
        (run_id, o.kind, o.name): (run_id, o.kind._value_, o.name, o.ord, o.at, o.value, o.error)
        for run_id, made in effects
        for o in made.outputs
    }
    return as_columns(list(rows.values()), 7)


def _successors(effects: Iterable[tuple[RunId, Effects]]) -> Columns:
    rows = [
        (run_id, s.run_id, s.name, s.code, s.queue, s.version, s.delay, s.timeout, s.execution_timeout, s.start)
        for run_id, made in effects
        if (s := made.successor) is not None
    ]
    return as_columns(rows, 10)


def _letters(changes: Iterable[Change]) -> list[Row]:
    """For write_letters, without namespace and winners."""
    return [
        (
            change.run_id,
            new.reason.value,
            new.error,
            new.message,
            new.fingerprint,
            new.activity,
            new.seq,
            new.attempts,
            new.keep,
            new.trace,
        )
        for change in changes
        if change.effects is not None and (new := change.effects.letter) is not None
    ]


# -- answers


def verdicts_of(changes: Sequence[Change], row: Record) -> tuple[dict[int, Verdict | list[Refusal]], list[int]]:
    """The answers of commit_beyond to the changes, by index; and the indexes of those whose fence failed."""
    durable = {*(row["won"] or ()), *(row["again"] or ())}
    unread = set(row["unread"] or ())
    refusals = _refusals(row)
    answers: dict[int, Verdict | list[Refusal]] = {}
    lost: list[int] = []
    for index, change in enumerate(changes):
        if change.run_id in unread:
            answers[index] = Verdict.UNREAD
        elif change.run_id not in durable:
            lost.append(index)
        elif change.run_id in refusals:
            answers[index] = refusals[change.run_id]
    return answers, lost


def _refusals(row: Record) -> dict[RunId, list[Refusal]]:
    found: dict[RunId, list[Refusal]] = defaultdict(list)
    names = ("refused", "refused_seqs", "refused_ids", "refused_errors", "refused_states", "refused_holders")
    for run_id, seq, id, error, state, holder in zip(*(row[name] or () for name in names), strict=True):
        found[run_id].append(Refusal(seq, id, error, state or "", holder or ""))
    for refusals in found.values():
        refusals.sort(key=lambda refusal: (refusal.error != AlreadyStarted.__name__, refusal.seq))
    return found


def hint_of(row: Record) -> Hint:
    """The hint to send after commit_beyond, but for runs that closed."""
    return Hint(due=bool(row["due"]), messages=run_ids(row["told"]), answered=run_ids(row["answered"]))
