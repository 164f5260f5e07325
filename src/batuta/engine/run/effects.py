"""Commands that reach beyond their run: what the store is to do for them, in the transaction of their turn.

Among these is the next run of a chain under one id: continue-as-new, and another try of a run that failed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence

from msgspec import UNSET, Raw, json

from batuta.authoring.definitions import code_of
from batuta.authoring.retry import Retry
from batuta.clock import SECOND
from batuta.engine.machine.machine import Machine
from batuta.ids import derived_run_id, derived_seed, jitter
from batuta.journal.entries import Body, Carried, Command, CommandKind, Entry, StartInfo
from batuta.journal.records import Change, Effects, Output, OutputKind, Successor

log = logging.getLogger("batuta.engine")

_MANY = 1_000
"""Signals that are carried on without a word."""

_RELATED = (CommandKind.ACTIVITY, CommandKind.CHILD, CommandKind.SEND, CommandKind.CANCEL)

_SAGAS = (CommandKind.UNDO, CommandKind.KEEP, CommandKind.CHILD)


def effects_of(change: Change) -> Effects:
    """The effects of the change."""
    if change.effects is None:
        change.effects = Effects()
    return change.effects


def add_effects(machine: Machine, change: Change, entry: Entry, commands: Sequence[Command]) -> None:
    """Add to the change what the commands of this entry's turn ask of the store."""
    effects = effects_of(change)
    for command in commands:
        if command.kind in _RELATED:
            if command.to:  # else it is an activity that stays here, or its cancel
                machine.kinship().add_to(effects, command)
        elif command.kind is CommandKind.PUBLISH:
            output = Output(kind=OutputKind.PUBLISHED, name=command.name, ord=entry.ord, at=entry.at)
            output.value = _text(command)
            put_output(effects, output)
        elif command.kind is CommandKind.ANSWER:
            put_output(effects, _answer(entry, command))
        elif command.kind is CommandKind.CONTINUE:
            _add_successor(machine, effects, entry, command)
        elif command.kind is CommandKind.FAIL:
            _add_retry(machine, effects, entry, command)
    if machine.sagas is not None and any(command.kind in _SAGAS for command in commands):
        machine.sagas.add_to(effects.outputs, entry.ord)


def put_output(effects: Effects, output: Output) -> None:
    """Each output once: a newer one takes the place of what the same change had said before."""
    outputs = effects.outputs
    outputs[:] = [other for other in outputs if other.name != output.name or other.kind is not output.kind]
    outputs.append(output)


def _answer(entry: Entry, command: Command) -> Output:
    output = Output(kind=OutputKind.ANSWER, name=command.to, ord=entry.ord, at=entry.at)
    if command.error is not UNSET:
        output.error = json.encode(command.error).decode()
    else:
        output.value = _text(command)
    return output


def _text(command: Command) -> str:
    return "null" if command.value is UNSET else bytes(command.value).decode()


# -- the next run of a chain


def _add_successor(machine: Machine, effects: Effects, entry: Entry, command: Command) -> None:
    """The run continues as new: with the arguments of its last command."""
    arguments = bytes(command.value) if command.value is not UNSET else b"[]"
    effects.successor = _successor(machine, command.seq, entry.at, arguments, command.name.partition("@")[2])


def _add_retry(machine: Machine, effects: Effects, entry: Entry, command: Command) -> None:
    """The run failed: another one follows, if its policy says so. Not after a cancel, which would be forgotten."""
    start, failure = machine.start, command.error
    if start.retry is UNSET or failure is UNSET or machine.cancel_requested:
        return
    policy = json.decode(start.retry, type=Retry)
    delay = policy.delay_after(failure, start.attempt, jitter())
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
    carried = machine.message_handlers.unreceived() if machine.message_handlers is not None else []
    if len(carried) > _MANY:
        _warn(machine, carried)
    start = StartInfo(
        before.name,
        derived_seed(before.seed, run_id),
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
        parent=before.parent,
        slot=before.slot,
        chain_at=before.chain_at or machine.started_at,
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
            "run %s carries %s signals that its code has not received (%s): receive them in the workflow, or do not "
            "send them",
            id,
            f"{len(carried):,}",
            text,
        )
    )
