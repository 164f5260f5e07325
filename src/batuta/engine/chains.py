"""Runs that follow each other under one id: continue-as-new, and another try of a run that failed."""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, json

from batuta.authoring.definitions import code_of
from batuta.authoring.names import readable
from batuta.authoring.retry import Retry
from batuta.clock import SECOND
from batuta.engine.routes import with_attempts
from batuta.ids import derived_run_id, jitter, seed_of
from batuta.journal.entries import Body, Carried, Command, CommandKind, Entry, StartInfo
from batuta.journal.outcomes import completed_outcome, ended_outcome
from batuta.journal.records import Effects, Move, Successor
from batuta.journal.states import RunState

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun
    from batuta.engine.machine import Machine

log = logging.getLogger("batuta.engine")

_MANY = 1_000
"""Signals that are carried on without a word."""

_CLOSES = {
    CommandKind.COMPLETE: RunState.COMPLETED,
    CommandKind.FAIL: RunState.FAILED,
    CommandKind.CANCELLED: RunState.CANCELLED,
    CommandKind.CONTINUE: RunState.CONTINUED,
}


def add_successor(run: LiveRun, effects: Effects, entry: Entry, command: Command) -> None:
    """The run continues as new: with the arguments of its last command."""
    arguments = bytes(command.value) if command.value is not UNSET else b"[]"
    effects.successor = _successor(run.machine, command.seq, entry.at, arguments, command.name.partition("@")[2])


def add_retry(run: LiveRun, effects: Effects, entry: Entry, command: Command) -> None:
    """The run failed: another one follows, if its policy says so. Not after a cancel, which would be forgotten."""
    machine = run.machine
    start, failure = machine.start, command.error
    if start.retry is UNSET or failure is UNSET or machine.cancel_requested:
        return
    policy = json.decode(start.retry, type=Retry)
    if not failure.retryable or not failure.kinds.isdisjoint(policy.never):
        return
    delay = policy.delay(start.attempt, jitter())
    if delay is not None:
        effects.successor = _successor(
            machine,
            command.seq,
            entry.at,
            machine.arguments,
            start.version,
            attempt=start.attempt + 1,
            delay=round(delay * SECOND),
        )


def _successor(
    machine: Machine, seq: int, at: int, arguments: bytes, version: str, *, attempt: int = 1, delay: int = 0
) -> Successor:
    before = machine.start
    run_id = derived_run_id(at, machine.mark(seq), seq)
    carried = machine.mailbox.unreceived() if machine.mailbox is not None else []
    if len(carried) > _MANY:
        _warn(machine, carried)
    start = StartInfo(
        before.name,
        seed_of(run_id),
        str(run_id),
        version=version,
        timeout=before.timeout,
        execution_timeout=before.execution_timeout,
        attempt=attempt,
        retry=before.retry,
        carried=carried,
        trace=before.trace,
        headers=before.headers,
        delay=delay,
    )
    return Successor(
        run_id=run_id,
        name=before.name,
        code=code_of(before.name, start.version),
        queue=machine.identity.queue,
        version=start.version,
        delay=delay,
        timeout=before.timeout,
        execution_timeout=before.execution_timeout,
        start=json.encode(Body(value=Raw(arguments), start=start)).decode(),
    )


def _warn(machine: Machine, carried: list[Carried]) -> None:
    """They are acknowledged, so they must go on; each run of the chain begins with reading and writing them all."""
    id, names = machine.identity.id, Counter(letter.name for letter in carried).most_common(3)
    text = ", ".join(f"{count:,} of {name!r}" for name, count in names)
    machine.log(
        lambda: log.warning(
            "run %s carries %s signals that its code has not received (%s): it should "
            "receive them, or nobody should send them",
            id,
            f"{len(carried):,}",
            text,
        )
    )


def closing_move(run: LiveRun, outcome: Command) -> Move:
    """How the command that ends a run's code closes the run."""
    change = run.change
    if change is not None and change.effects is not None and change.effects.successor is not None:
        return Move(RunState.CONTINUED, reason=_why_again(run, outcome), children=had_children(run))
    state = _CLOSES[outcome.kind]
    if run.parent is None:
        kin = run.machine.kin
        return Move(state) if kin is None else Move(state, children=kin.had_children)
    if outcome.kind is CommandKind.COMPLETE:
        told = completed_outcome(run.parent[1], outcome.value)
    else:
        cause = outcome.error if outcome.error is not UNSET else None
        told = ended_outcome(run.parent[1], run.identity.id, state, cause=cause)
    if run.machine.start.options is not UNSET and change is not None and change.entries:
        told = with_attempts(told, change.entries[-1])
    return Move(state, outcome=told, children=had_children(run))


def ended_move(run: LiveRun, state: RunState, reason: str) -> Move:
    """How a run is closed that its code did not end."""
    told = ended_outcome(run.parent[1], run.identity.id, state, reason) if run.parent is not None else ""
    return Move(state, reason=reason, outcome=told, children=had_children(run))


def had_children(run: LiveRun) -> bool:
    kin = run.machine.kin
    return kin is not None and kin.had_children


def _why_again(run: LiveRun, outcome: Command) -> str:
    if outcome.kind is not CommandKind.FAIL or outcome.error is UNSET:
        return ""
    error = outcome.error
    return readable(f"attempt {run.machine.start.attempt} failed with {error.kind}: {error.message}"[:1000])
