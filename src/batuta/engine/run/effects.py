"""Commands that reach beyond their run: what the store is to do for them, in the transaction of their turn."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, json

from batuta.engine.machine.machine import Machine
from batuta.engine.run.chains import add_retry, add_successor
from batuta.journal.entries import Command, CommandKind, Entry
from batuta.journal.records import Change, Effects, Output, OutputKind

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
            add_successor(machine, effects, entry, command)
        elif command.kind is CommandKind.FAIL:
            add_retry(machine, effects, entry, command)
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
