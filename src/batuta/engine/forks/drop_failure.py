"""A journal without the failure that a run is tried again for: what other branches of the code did after it is kept."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from batuta.authoring.definitions import Workflow
from batuta.engine.forks.dry_run import in_callbacks
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay, last_fork
from batuta.errors import InvalidInput, WorkflowBroken
from batuta.journal.entries import Entry, EntryKind, chained, decode_body
from batuta.journal.kinds import CALL_ERRORS, CLOSING_COMMANDS, CLOSING_ENTRIES
from batuta.journal.records import Run

_STOPS = frozenset({*CLOSING_ENTRIES, EntryKind.CANCEL_REQUESTED})
_SLICE = 200


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


async def replayed_to(
    workflow: Workflow[..., Any], run: Run, entries: Sequence[Entry], point: int, namespace: str
) -> int:
    """The last entry, at most `point`, up to which today's code does what the journal says, and has not ended."""
    identity = RunIdentity(run.run_id, run.id, run.queue, namespace, run.chain_id)
    return await in_callbacks(_same(workflow, identity, entries, point))


def _same(
    workflow: Workflow[..., Any], identity: RunIdentity, entries: Sequence[Entry], point: int
) -> Iterator[int | None]:
    """Replays in slices; the last thing given is the entry."""
    machine = _machine(workflow, identity, entries)
    last = -1
    try:
        for entry in entries[: point + 1]:
            try:
                Replay(machine, [entry]).run()
            except (WorkflowBroken, InvalidInput):
                break
            if machine.outcome is not None:
                break
            last = entry.ord
            if last % _SLICE == 0:
                yield None
        while last >= 0 and decode_body(entries[last]).quiet:
            last -= 1
        yield last
    finally:
        machine.tear_down()


def _machine(workflow: Workflow[..., Any], identity: RunIdentity, entries: Sequence[Entry]) -> Machine:
    machine = Machine(workflow, identity)
    if (fork := last_fork(entries)) is not None:
        machine.descend(fork)
    return machine


def _steps(
    workflow: Workflow[..., Any], identity: RunIdentity, entries: Sequence[Entry], point: int
) -> Iterator[list[Entry] | None]:
    """Replays in slices; the last thing given are the entries after the failure that are the same without it."""
    machine = _machine(workflow, identity, entries)
    kept: list[Entry] = []
    try:
        yield from Replay(machine, entries[: point + 1]).slices()
        for entry in entries[point + 1 :]:
            body = decode_body(entry)
            if entry.kind in _STOPS or any(one.kind in CLOSING_COMMANDS for one in body.commands):
                break
            if entry.kind in CALL_ERRORS:
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
