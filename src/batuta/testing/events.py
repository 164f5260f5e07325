"""The events of a test, in order: read from the journals of its runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from msgspec import UNSET, Raw, UnsetType

from batuta.clock import SECOND
from batuta.durations import human_duration
from batuta.ids import RunId
from batuta.journal.entries import Body, Command, CommandKind, EntryKind, decode_body
from batuta.journal.failures import Failure
from batuta.journal.kinds import CALL_ANSWERS
from batuta.journal.records import PAUSES, Attempt, RunFilter
from batuta.journal.store import Store

_ALL = 1_000
_LONGEST = 60
_ENDS = {
    CommandKind.COMPLETE: "; it completes",
    CommandKind.FAIL: "; it fails",
    CommandKind.CANCELLED: "; it is cancelled",
    CommandKind.CONTINUE: "; it continues as new",
}


class Happening(NamedTuple):
    """One thing that happened to a run."""

    seconds: float
    """Since the first one."""
    what: str

    def __str__(self) -> str:
        return f"{self.seconds:12.3f}  {self.what}"


async def what_happened(store: Store, written: Mapping[tuple[RunId, int], int]) -> list[Happening]:
    """Every input of every run, every attempt that failed and was made again, every pause. Of a thousand runs at most.

    `written`: where entries stand in the order in which they were. Without it, what happened in the same moment is
    told run by run.
    """
    runs = sorted((await store.list_runs(RunFilter(), None, _ALL)).runs, key=lambda run: (run.created_at, run.run_id))
    found: list[tuple[int, int, str]] = []
    for run in runs:
        entries = await store.journal(run.run_id)
        bodies = [decode_body(entry) for entry in entries]
        asked = {one.seq: one for body in bodies for one in body.commands}
        lines = [
            (entry.at, written.get((run.run_id, entry.ord), 0), _input(entry.kind, body, asked.get(body.seq)))
            for entry, body in zip(entries, bodies, strict=True)
        ]
        attempts = [one for one in await store.attempts(run.run_id) if one.number]
        lines += [(one.ended_at, 0, _note(one, asked)) for one in attempts if one.ended_at]
        prefix = f"{run.id}: " if len(runs) > 1 else ""
        found += [(at, place, prefix + what) for at, place, what in lines]
    found.sort(key=lambda one: one[:2])
    return [Happening((at - found[0][0]) / SECOND, what) for at, _, what in found]


def _input(kind: EntryKind, body: Body, asked: Command | None) -> str:
    """`asked`: the command that it answers."""
    end = next((_ENDS[one.kind] + _outcome(one.value, one.error) for one in body.commands if one.kind in _ENDS), "")
    name = body.name if asked is None else asked.name
    if kind in CALL_ANSWERS and asked is not None:
        verb = "fails" if body.error is not UNSET else "returns"
        return f"{name}{_arguments(asked.value)} {verb}{_outcome(body.value, body.error)}{end}"
    if kind is EntryKind.TIMER_FIRED and asked is not None and asked.value is not UNSET:
        return f"a timer of {human_duration(int(bytes(asked.value)) / SECOND)} fires{end}"
    if kind is EntryKind.STARTED and body.start is not UNSET:
        return f"{body.start.name}{_arguments(body.value)} starts{end}"
    if kind in (EntryKind.SIGNAL, EntryKind.UPDATE):
        return f"{kind} {name}{_outcome(body.value, UNSET)}{end}"
    return f"{str(kind).replace('_', ' ')}{f' {name}' if name else ''}{end}"


def _note(attempt: Attempt, asked: Mapping[int, Command]) -> str:
    if attempt.seq == PAUSES:
        return (
            f"it is resumed, after a pause of {human_duration(((attempt.ended_at or 0) - attempt.started_at) / SECOND)}"
        )
    name = asked[attempt.seq].name if attempt.seq in asked else attempt.name
    return f"{name} fails in attempt {attempt.number}, and is tried again"


def _arguments(value: Raw | UnsetType) -> str:
    text = "" if value is UNSET else bytes(value).decode()
    return f"({_short(text[1:-1])})" if text.startswith("[") else "(...)"


def _outcome(value: Raw | UnsetType, error: Failure | UnsetType) -> str:
    if error is not UNSET:
        return f" with {error.kind}: {_short(error.message)}"
    return "" if value is UNSET else f" {_short(bytes(value).decode())}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."
