"""Columns of a batch as texts, which the database takes apart: the driver takes several times as long for arrays.

It asks of every element of an array whether it is an array itself, which costs more than all the rest of a step's way
to the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, TypeVar

from msgspec.json import Encoder

from batuta.errors import BadData
from batuta.ids import RunId, text_of
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.records import Change, IfExists, NewRun, ParentPolicy
from batuta.journal.states import RunState
from batuta.stores.contract import rules
from batuta.stores.postgres.database.batch_columns import (
    START_WIDTH,
    Survey,
    new_run_columns,
    start_columns,
    unowned_row,
)

T = TypeVar("T")

_STARTED, _DONE, _COMPLETED = EntryKind.STARTED, EntryKind.ACTIVITY_DONE, RunState.COMPLETED
_encode = Encoder().encode
_BAD_ENTRY = "a journal entry is not JSON: it holds a control character"
_BETWEEN = "\x1f"
"""Separates bodies. JSON escapes control characters, so that no body contains it."""


def entry_texts(changes: Sequence[Change], found: Survey) -> list[Any]:
    """For commit_entries: one row an entry; the last one of a run that exists carries head, state and reason."""
    heads = [change.head if change.start is None else None for change in changes]
    states, reasons = _ends_of(changes) if found.moved else ([], [])
    if found.one_each:
        whose, entries, ords = changes, [change.entries[0] for change in changes], ""
    else:
        whose = [change for change in changes for _ in change.entries]
        entries = [entry for change in changes for entry in change.entries]
        ords = _numbers([entry.ord for entry in entries])
        heads, states, reasons = _at_last(changes, heads), _at_last(changes, states), _at_last(changes, reasons)
    return [
        ids_text([change.run_id for change in whose]),
        _numbers([change.epoch for change in whose]),
        _numbers(heads),
        ords,
        ",".join([entry.kind for entry in entries]),
        *_entry_texts(entries),
        ",".join([state or "" for state in states]),
        reasons if any(reasons) else [],
    ]


def _ends_of(changes: Sequence[Change]) -> tuple[list[str | None], list[str | None]]:
    """State and reason that runs which exist end with."""
    moves = [change.move if change.start is None else None for change in changes]
    states: list[str | None] = [None if move is None else move.state for move in moves]
    return states, [None if move is None else move.reason for move in moves]


def _at_last(changes: Sequence[Change], values: Sequence[T | None]) -> list[T | None]:
    """A column with one row a change as one with a row an entry: null before the last one."""
    pairs = zip(changes, values, strict=True) if values else ()
    return [each for change, value in pairs for each in (*[None] * (len(change.entries) - 1), value)]


def job_texts(changes: Sequence[Change]) -> list[Any] | None:
    """For commit_jobs: jobs whose whole journal is their start and a good end. None when one of them is not."""
    for change in changes:
        entries, move = change.entries, change.move
        if move is None or len(entries) != 2 or change.head != -1 or change.start is not None:
            return None
        if move.state is not _COMPLETED or move.reason or change.attempts or len(change.consumed) != 1:
            return None
        if entries[0].kind is not _STARTED or entries[1].kind is not _DONE:
            return None
    opening, closing = [change.entries[0] for change in changes], [change.entries[1] for change in changes]
    return [
        ids_text([change.run_id for change in changes]),
        _numbers([change.epoch for change in changes]),
        *_entry_texts(opening),
        *_entry_texts(closing),
        len(changes),
    ]


def _entry_texts(entries: Sequence[Entry]) -> tuple[str, str, str]:
    body = _joined([entry.body for entry in entries], _BAD_ENTRY)
    return _numbers([entry.at for entry in entries]), _numbers([entry.crc for entry in entries]), body


_NUMBERS, _WORDS = (19, 20), (1, 4, 5, 6, 7)
"""Columns of a new run that every start fills: epoch and head; id, kind, name, code and queue. None of them is null."""
_OWN = _NUMBERS[0]
"""How many columns of a new run are its own. The others hold its progress."""
_BAD_START = "what a run starts with is not JSON: it holds a control character"
_BAD_WORD = "the id, name or queue of a run holds a control character"
_id, _start_id = attrgetter("id"), attrgetter("start.id")


def start_texts(changes: Sequence[Change]) -> list[Any]:
    """For commit_entries: the new runs of a batch. Columns that are no texts stay arrays: they are empty as a rule."""
    if changes and all(map(_gives_names_only, changes)):
        return _named_texts(changes)
    columns = start_columns(changes)
    texts: list[Any] = list(columns)
    texts[0] = ids_text(columns[0])
    for position in _NUMBERS:
        texts[position] = _numbers(columns[position])
    for position in _WORDS:
        texts[position] = _joined(columns[position], _BAD_WORD)
    return texts


def _gives_names_only(change: Change) -> bool:
    start = change.start
    return start is not None and change.move is None and rules.is_plain_start(start) and rules.says_nothing_more(start)


def _named_texts(changes: Sequence[Change]) -> list[Any]:
    """The same where all other columns hold nothing but defaults, as of most starts: those are not made first."""
    changes = sorted(changes, key=_start_id)
    runs = [change.start for change in changes if change.start is not None]
    texts: list[Any] = [[]] * START_WIDTH
    texts[0] = ids_text([run.run_id for run in runs])
    texts[_NUMBERS[0]] = _numbers([change.epoch for change in changes])
    texts[_NUMBERS[1]] = _numbers([change.head + len(change.entries) for change in changes])
    names, codes = [run.name for run in runs], [run.code or run.name for run in runs]
    words = [run.id for run in runs], ["workflow"] * len(runs), names, codes, [run.queue for run in runs]
    for position, column in zip(_WORDS, words, strict=True):
        texts[position] = _joined(column, _BAD_WORD)
    return texts


def unowned_texts(runs: Sequence[NewRun]) -> list[Any]:
    """For start_runs: runs that wait for an owner, in order of their ids, with their start messages."""
    runs = sorted(runs, key=_id)
    columns = new_run_columns([unowned_row(run) for run in runs])
    texts: list[Any] = list(columns[:_OWN])
    texts[0] = ids_text(columns[0])
    for position in _WORDS:
        texts[position] = _joined(columns[position], _BAD_WORD)
    delays = _numbers([run.delay for run in runs]) if any(run.delay for run in runs) else ""
    bodies = _joined([run.start for run in runs], _BAD_START)
    return [*texts, delays, bodies, len(runs)]


MOST_TRAVELLING = 2_000
"""Longest start, in characters, that is kept in the row of its run: see the SQL."""
_ALIKE = attrgetter("kind", "name", "code", "queue")
_RARE = attrgetter(
    "chain_id", "parent_run_id", "parent_seq", "parent_policy", "timeout", "execution_timeout", "version", "debounce"
)
_RENEWING = frozenset({IfExists.RENEW, IfExists.RESTART})
_USUAL = {(None, None, 0, ParentPolicy.CANCEL, 0, 0, "", "")}


def plain_texts(runs: Sequence[NewRun]) -> list[Any] | None:
    """For start_plain: runs that wait for an owner, with their starts. None when one of them is not plain."""
    ids = [run.id for run in runs]
    if ids != [text_of(run.run_id) for run in runs]:  # the caller gave one of them its own id
        return None
    if set(map(_RARE, runs)) != _USUAL or any(run.if_exists in _RENEWING for run in runs):
        return None
    starts = [run.start for run in runs]
    if max(map(len, starts)) > MOST_TRAVELLING:
        return None
    kinds = set(map(_ALIKE, runs))
    alike, words = list(kinds.pop()), [""] * 4
    if any(_BETWEEN in word for word in alike):
        raise BadData(_BAD_WORD)  # as if it came with others
    if kinds:
        words = [_joined(list(column), _BAD_WORD) for column in zip(*map(_ALIKE, runs), strict=True)]
    columns = zip(*[(run.priority, run.tags, run.memo, run.flow_key, run.expires) for run in runs], strict=True)
    rest = [
        [] if set(column) == {usual} else list(column)
        for column, usual in zip(columns, (0, "{}", "null", "", 0), strict=True)
    ]
    delays = _numbers([run.delay for run in runs]) if any(run.delay for run in runs) else ""
    return [",".join(ids), alike, *words, *rest, delays, _joined(starts, _BAD_START)]


def _joined(words: Sequence[str], bad: str) -> str:
    if _BETWEEN in "".join(words):
        raise BadData(bad)
    return _BETWEEN.join(words)


def ids_text(ids: Iterable[RunId]) -> str:
    """Run ids with commas between them."""
    return b"".join([each.int.to_bytes(16) for each in ids]).hex(",", 16)


def _numbers(numbers: Sequence[int | None]) -> str:
    """With commas between them, and `null` for none: the quickest way is that of a JSON list."""
    return _encode(numbers)[1:-1].decode()
