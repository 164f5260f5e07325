"""Commands that reach beyond their run: what the store is to do for them, in the transaction of their turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, json

from batuta.engine.chains import add_retry, add_successor
from batuta.engine.routes import routed_run
from batuta.journal.entries import Command, CommandKind, Entry
from batuta.journal.records import Change, Effects, Output, OutputKind

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun


def add_effects(run: LiveRun, change: Change, entry: Entry, commands: Sequence[Command]) -> None:
    """Add to the change what the commands of this entry's turn ask of the store."""
    if change.effects is None:
        change.effects = Effects()
    for command in commands:
        add = _ADD.get(command.kind)
        if add is not None:
            add(run, change.effects, entry, command)


def _add_activity(run: LiveRun, effects: Effects, _entry: Entry, command: Command) -> None:
    if command.to:  # it was sent to another queue
        kin = run.machine.kinship()
        route = kin.routed.get(command.seq)
        if route is not None:  # otherwise it was cancelled in the turn that called it
            effects.children.append(routed_run(run.machine, route))
            kin.unsettled.add(command.seq)


def _add_child(run: LiveRun, effects: Effects, _entry: Entry, command: Command) -> None:
    kin = run.machine.kinship()
    pending = kin.children.get(command.seq)
    if pending is not None:  # otherwise it was cancelled in the turn that started it, and never began
        effects.children.append(kin.child_run(pending))
        kin.unsettled.add(command.seq)


def _add_send(run: LiveRun, effects: Effects, _entry: Entry, command: Command) -> None:
    kin = run.machine.kinship()
    effects.sends.append(kin.signal(command))
    if command.seq in kin.asked:
        kin.unsettled.add(command.seq)


def _add_cancel(run: LiveRun, effects: Effects, _entry: Entry, command: Command) -> None:
    if command.to:  # of a child; an activity's stays here
        effects.sends.append(run.machine.kinship().child_cancel(command))


def put_output(effects: Effects, output: Output) -> None:
    """Each output once: a newer one takes the place of what the same change had said before."""
    outputs = effects.outputs
    outputs[:] = [other for other in outputs if other.name != output.name or other.kind is not output.kind]
    outputs.append(output)


def _publish(_run: LiveRun, effects: Effects, entry: Entry, command: Command) -> None:
    put_output(
        effects, Output(kind=OutputKind.PUBLISHED, name=command.name, ord=entry.ord, at=entry.at, value=_text(command))
    )


def _answer(_run: LiveRun, effects: Effects, entry: Entry, command: Command) -> None:
    output = Output(kind=OutputKind.ANSWER, name=command.to, ord=entry.ord, at=entry.at)
    if command.error is not UNSET:
        output.error = json.encode(command.error).decode()
    else:
        output.value = _text(command)
    put_output(effects, output)


def _text(command: Command) -> str:
    return "null" if command.value is UNSET else bytes(command.value).decode()


_ADD: dict[CommandKind, Callable[[LiveRun, Effects, Entry, Command], None]] = {
    CommandKind.ACTIVITY: _add_activity,
    CommandKind.CHILD: _add_child,
    CommandKind.SEND: _add_send,
    CommandKind.CANCEL: _add_cancel,
    CommandKind.CONTINUE: add_successor,
    CommandKind.FAIL: add_retry,
    CommandKind.PUBLISH: _publish,
    CommandKind.ANSWER: _answer,
}
