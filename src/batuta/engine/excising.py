"""A journal without the failure that a run is tried again for: what other branches of the code did after it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from batuta.authoring.definitions import Workflow
from batuta.engine.identity import RunIdentity
from batuta.engine.machine import Machine
from batuta.engine.past import Past
from batuta.engine.rehearsing import in_callbacks
from batuta.engine.replay import Replay, last_fork
from batuta.errors import InvalidInput, WorkflowBroken
from batuta.journal.entries import FROM_OUTSIDE, CommandKind, Entry, EntryKind, chained, decode_body
from batuta.journal.records import Run

_FAILED = (EntryKind.ACTIVITY_FAILED, EntryKind.CHILD_FAILED)
_STOPS = FROM_OUTSIDE | {EntryKind.CANCEL_REQUESTED}
_ENDS = (CommandKind.COMPLETE, CommandKind.FAIL, CommandKind.CANCELLED, CommandKind.CONTINUE)


async def without_failure(
    workflow: Workflow[..., Any], run: Run, entries: Sequence[Entry], point: int, namespace: str
) -> tuple[list[Entry], int]:
    """The journal with what can be kept of it in front, and the last entry of that. At least that is `point`, after
    which the failure comes; the code is asked what it would have done without it."""
    identity = RunIdentity(run.run_id, run.id, run.queue, namespace, run.chain_id)
    kept = await in_callbacks(_steps(workflow, identity, entries, point))
    first, last = list(entries[: point + 1]), {entry.ord for entry in kept}
    for entry in kept:
        moved = replace(entry, ord=len(first))
        first.append(replace(moved, crc=chained(moved, first[-1].crc)))
    rest = [entry for entry in entries[point + 1 :] if entry.ord not in last]
    return first + rest, len(first) - 1


def _steps(
    workflow: Workflow[..., Any], identity: RunIdentity, entries: Sequence[Entry], point: int
) -> Iterator[list[Entry] | None]:
    """Replays in slices; the last thing given are the entries after the failure that are the same without it."""
    machine = Machine(workflow, identity)
    if (fork := last_fork(entries)) is not None:
        machine.past = Past(identity, fork)
    kept: list[Entry] = []
    try:
        yield from Replay(machine, entries[: point + 1]).slices()
        for entry in entries[point + 1 :]:
            body = decode_body(entry)
            if entry.kind in _STOPS or any(one.kind in _ENDS for one in body.commands):
                break
            if entry.kind in _FAILED:
                continue
            replay = Replay(machine, [entry])
            try:
                replay.run()
            except (WorkflowBroken, InvalidInput):
                break
            if replay.warnings or machine.outcome is not None:
                break
            kept.append(entry)
        while kept and decode_body(kept[-1]).quiet:
            kept.pop()
        yield kept
    finally:
        machine.tear_down()
