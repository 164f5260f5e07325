"""Columns of a batch as texts, which the database takes apart: the driver takes several times as long for arrays.

It asks of every element of an array whether it is an array itself, which costs more than all the rest of a step's way
to the database.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any

from batuta.errors import BadData
from batuta.ids import RunId, text_of
from batuta.journal.entries import Entry, EntryKind
from batuta.journal.records import Change, IfExists, NewRun, ParentPolicy
from batuta.journal.states import RunState
from batuta.stores.postgres.batch import Columns, new_run_columns, unowned_row

_STARTED, _DONE, _COMPLETED = EntryKind.STARTED, EntryKind.ACTIVITY_DONE, RunState.COMPLETED
_BAD_ENTRY = "a journal entry is not JSON: it holds a control character"
_BETWEEN = "\x1f"
"""Stands between bodies. JSON writes control characters with an escape, so that none can hold it."""


def entry_texts(columns: Columns) -> list[Any]:
    """For commit_entries: the columns of `entry_columns`. Numbers with commas between them, nothing for null."""
    run_ids, epochs, expected, ords, kinds, ats, crcs, bodies, states, reasons = columns
    body = _joined(bodies, _BAD_ENTRY)
    return [
        ",".join([f"{run_id:032x}" for run_id in run_ids]),
        ",".join(map(str, epochs)),
        ",".join(["" if head is None else str(head) for head in expected]),
        ",".join(map(str, ords)),
        ",".join(kinds),
        ",".join(map(str, ats)),
        ",".join(map(str, crcs)),
        body,
        ",".join([state or "" for state in states]),
        reasons if any(reasons) else [],
    ]


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
        ",".join([str(change.epoch) for change in changes]),
        *_entry_texts(opening),
        *_entry_texts(closing),
        len(changes),
    ]


def _entry_texts(entries: Sequence[Entry]) -> tuple[str, str, str]:
    body = _joined([entry.body for entry in entries], _BAD_ENTRY)
    return ",".join([str(entry.at) for entry in entries]), ",".join([str(entry.crc) for entry in entries]), body


_NUMBERS, _WORDS = (19, 20), (1, 4, 5, 6, 7)
"""Columns of a new run that every start fills: epoch and head; id, kind, name, code and queue. None of them is null."""
_OWN = _NUMBERS[0]
"""So many columns of a new run are its own. The others say how far it is."""
_BAD_START = "what a run starts with is not JSON: it holds a control character"
_BAD_WORD = "the id, name or queue of a run holds a control character"
_id = attrgetter("id")


def start_texts(columns: Columns) -> list[Any]:
    """For commit_entries: the columns of `start_columns`, of which the others stay arrays: they are empty as a rule."""
    texts: list[Any] = list(columns)
    texts[0] = ",".join([run_id.hex for run_id in columns[0]])
    for position in _NUMBERS:
        texts[position] = ",".join(map(str, columns[position]))
    for position in _WORDS:
        texts[position] = _joined(columns[position], _BAD_WORD)
    return texts


def unowned_texts(runs: Sequence[NewRun]) -> list[Any]:
    """For start_runs: runs that wait for an owner, in order of their ids, with what their start messages hold."""
    runs = sorted(runs, key=_id)
    columns = new_run_columns([unowned_row(run) for run in runs])
    texts: list[Any] = list(columns[:_OWN])
    texts[0] = ids_text(columns[0])
    for position in _WORDS:
        texts[position] = _joined(columns[position], _BAD_WORD)
    delays = ",".join([str(run.delay) for run in runs]) if any(run.delay for run in runs) else ""
    bodies = _joined([run.start for run in runs], _BAD_START)
    return [*texts, delays, bodies, len(runs)]


MOST_TRAVELLING = 2_000
"""Characters of a start that lies in the row of its run: see the SQL."""
_ALIKE = attrgetter("kind", "name", "code", "queue")
_RARE = attrgetter(
    "chain_id", "parent_run_id", "parent_seq", "parent_policy", "timeout", "execution_timeout", "version", "debounce"
)
_RENEWING = frozenset({IfExists.RENEW, IfExists.RESTART})
_USUAL = {(None, None, 0, ParentPolicy.CANCEL, 0, 0, "", "")}


def plain_texts(runs: Sequence[NewRun]) -> list[Any] | None:
    """For start_plain: runs that wait for an owner, with what they start with. None when one of them is not plain."""
    ids = [run.id for run in runs]
    if ids != [text_of(run.run_id) for run in runs]:  # somebody gave one of them an id of its own
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
    delays = ",".join([str(run.delay) for run in runs]) if any(run.delay for run in runs) else ""
    return [",".join(ids), alike, *words, *rest, delays, _joined(starts, _BAD_START)]


def _joined(words: Sequence[str], bad: str) -> str:
    text = _BETWEEN.join(words)
    if words and text.count(_BETWEEN) != len(words) - 1:
        raise BadData(bad)
    return text


def ids_text(ids: Iterable[RunId]) -> str:
    """Run ids with commas between them."""
    return ",".join([f"{each.int:032x}" for each in ids])
