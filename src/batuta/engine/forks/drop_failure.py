"""A journal without the failure that a run is tried again for: what other branches of the code did after it is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import replace

from batuta.authoring.definitions import Workflow
from batuta.engine.forks.dry_run import in_callbacks
from batuta.engine.forks.split import audible
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay, last_fork
from batuta.errors import InvalidInput, WorkflowBroken
from batuta.journal.entries import Entry, EntryKind, chained, decode_body
from batuta.journal.kinds import CALL_ERRORS, CLOSING_COMMANDS, CLOSING_ENTRIES
from batuta.journal.records import Run

T = TypeVar("T")

_STOPS = frozenset({*CLOSING_ENTRIES, EntryKind.CANCEL_REQUESTED})
_SLICE = 200


async def without_failure(
    workflow: Workflow[..., Any], run: Run, entries: Sequence[Entry], point: int, namespace: str
) -> tuple[list[Entry], int]:
    """The journal with what can be kept of it in front, and the last entry of that. At least that is `point`, after
    which the failure comes; the code is asked what it would have done without it."""
    kept = await _replayed(workflow, run, entries, namespace, lambda machine: _unaffected(machine, entries, point))
    first, last = list(entries[: point + 1]), {entry.ord for entry in kept}
    for entry in kept:
        moved = replace(entry, ord=len(first))
        first.append(replace(moved, crc=chained(moved, first[-1].crc)))
    rest = [entry for entry in entries[point + 1 :] if entry.ord not in last]
    return first + rest, len(first) - 1


async def replayed_to(
    workflow: Workflow[..., Any], run: Run, entries: Sequence[Entry], point: int, namespace: str
) -> int:
    """The last entry, at most `point`, up to which today's code does what the journal says, and has not ended."""
    return await _replayed(workflow, run, entries, namespace, lambda machine: _last_same(machine, entries, point))


async def _replayed(
    workflow: Workflow[..., Any],
    run: Run,
    entries: Sequence[Entry],
    namespace: str,
    replay: Callable[[Machine], Iterator[T | None]],
) -> T:
    """What a replay in slices gives at its end."""

    def steps() -> Iterator[T | None]:
        machine = Machine(workflow, RunIdentity(run.run_id, run.id, run.queue, namespace, run.chain_id))
        try:
            if (fork := last_fork(entries)) is not None:
                machine.descend(fork)
            yield from replay(machine)
        finally:
            machine.tear_down()

    return await in_callbacks(steps())


def _last_same(machine: Machine, entries: Sequence[Entry], point: int) -> Iterator[int | None]:
    last = -1
    for entry in entries[: point + 1]:
        if _run(machine, entry) is None:
            break
        last = entry.ord
        if last % _SLICE == 0:
            yield None
    yield audible(entries, last)


def _unaffected(machine: Machine, entries: Sequence[Entry], point: int) -> Iterator[list[Entry] | None]:
    """The entries after the failure that are the same without it."""
    kept: list[Entry] = []
    yield from Replay(machine, entries[: point + 1]).slices()
    for entry in entries[point + 1 :]:
        body = decode_body(entry)
        if entry.kind in _STOPS or any(one.kind in CLOSING_COMMANDS for one in body.commands):
            break
        if entry.kind in CALL_ERRORS:
            continue
        replay = _run(machine, entry)
        if replay is None or replay.warnings:
            break
        kept.append(entry)
    yield kept[: audible(kept, len(kept) - 1) + 1]


def _run(machine: Machine, entry: Entry) -> Replay | None:
    """Replay the entry. None: the code does something else, or has ended."""
    replay = Replay(machine, [entry])
    try:
        replay.run()
    except (WorkflowBroken, InvalidInput):
        return None
    return replay if machine.outcome is None else None
