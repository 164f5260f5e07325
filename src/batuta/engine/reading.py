"""How messages reach a live run: updates are validated before their turn, and a run that would close without having
seen all that it was sent goes back and sees it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, Raw, json

from batuta.authoring.failures import to_failure
from batuta.engine.effects import put_output
from batuta.engine.machine import Machine
from batuta.engine.relations import cancel_input, child_input
from batuta.engine.waiters import Answers
from batuta.errors import UpdateRejected, WorkflowBroken
from batuta.ids import RunId
from batuta.journal.coded import refuse_coded
from batuta.journal.entries import Body, Command, EntryKind, decode_body
from batuta.journal.records import Change, Effects, Message, MessageKind, Output, OutputKind

if TYPE_CHECKING:
    from batuta.engine.live import Effect, LiveRun

log = logging.getLogger("batuta.engine")

_MESSAGES = (EntryKind.SIGNAL, EntryKind.UPDATE)

Input = tuple[EntryKind, Body]
"""What a turn consumes."""


_TO_STOP = (MessageKind.CANCEL, MessageKind.TERMINATE, MessageKind.PAUSE)

_FIRST = {MessageKind.TERMINATE: 0, MessageKind.START: 1}


def to_begin_with(messages: Sequence[Message]) -> list[Message]:
    """As a run that has not begun reads them: one that is to be ended never begins, and messages to the run before in
    its chain may be older than its start."""
    return sorted(messages, key=lambda message: _FIRST.get(message.kind, len(_FIRST)))


def is_bygone(message: Message, since: int) -> bool:
    """Whether it was to end or hold the run before, in whose place another one goes on since then."""
    return message.kind in _TO_STOP and message.at <= since


def as_input(run: LiveRun, message: Message) -> Input | None:
    """What a message is to the run's code; None when it is nothing to it."""
    match message.kind:
        case MessageKind.START:
            is_mine = message.message_id == f"start:{run.run_id}"  # not that of a run that never began
            found: Input | None = (EntryKind.STARTED, json.decode(message.body, type=Body)) if is_mine else None
        case MessageKind.CANCEL:
            found = cancel_input(run, message)
        case MessageKind.CHILD:
            found = child_input(run, message)
        case _:
            found = _readable(message)
    if found is not None:
        found[1].message_id = message.message_id
    return found


def _readable(message: Message) -> Input:
    refuse_coded(message.body, f"message {message.message_id!r}")
    kind = EntryKind.UPDATE if message.kind is MessageKind.UPDATE else EntryKind.SIGNAL
    return kind, Body(name=message.name, value=Raw(message.body.encode()), message_id=message.message_id)


# -- updates


def accepts(run: LiveRun, machine: Machine, body: Body) -> bool:
    """Whether the run takes the update. One that it rejects is answered; one whose validator acts parks the run."""
    try:
        machine.messages().validate(body.name, body.value if body.value is not UNSET else Raw(b"[]"))
    except WorkflowBroken as error:
        run.park(str(error))
        return False
    except Exception as error:  # noqa: BLE001 - whatever a validator raises says no
        _reject(run, body, error)
        return False
    return True


def _reject(run: LiveRun, body: Body, error: Exception) -> None:
    """No entry: the message is consumed and answered, and the run never knew."""
    rejected = UpdateRejected(body.name, run.identity.id, str(error) or type(error).__name__)
    rejected.__cause__ = error
    failure = to_failure(rejected)
    failure.traceback = ""
    change = run.open_change()
    change.consumed.append(body.message_id)
    if change.effects is None:
        change.effects = Effects()
    at, text = run.machine.at, json.encode(failure).decode()
    put_output(
        change.effects, Output(kind=OutputKind.ANSWER, name=body.message_id, ord=max(run.head, 0), at=at, error=text)
    )


def tell_answers(answers: Answers, chain_id: RunId, effects: Effects) -> None:
    """Updates are answered: whoever waits for that in this process need not look for it."""
    for output in effects.outputs:
        if output.kind is OutputKind.ANSWER:
            answers.settle((chain_id, output.name), output)


# -- a close that was refused


class Redo:
    """What a run did between what is durable and the close that was refused, to be done again after all was read.

    With `then` it is not done again: that is called instead.
    """

    def __init__(self, change: Change, effects: Sequence[Effect], then: Callable[[], None] | None = None) -> None:
        self.inputs: list[Input] = [(entry.kind, decode_body(entry)) for entry in change.entries]
        self.times = [entry.at for entry in change.entries]
        taken = {body.message_id for _, body in self.inputs}
        self._rejected = [one for one in change.consumed if one not in taken]
        self._change = change
        self._effects = [effect for effect in effects if not isinstance(effect, Command)]
        self.then = then or _nothing
        if then is not None:
            self.inputs.clear()

    def add(self, more: tuple[Change, list[Effect]] | None) -> None:
        """What else came to be written meanwhile, beside inputs."""
        if more is not None:
            change, effects = more
            self._change.attempts += change.attempts
            self._rejected += change.consumed
            self._effects += [effect for effect in effects if not isinstance(effect, Command)]
            if change.effects is not None:
                self._change.effects = self._change.effects or Effects()
                self._change.effects.outputs += change.effects.outputs

    def restore(self, run: LiveRun) -> None:
        """What stands in the refused change beside its entries: attempts, and the answers to rejected updates."""
        if not (self._change.attempts or self._rejected):
            return
        change = run.open_change()
        change.attempts += self._change.attempts
        change.consumed += self._rejected
        run.effects += self._effects
        if self._rejected and self._change.effects is not None:
            change.effects = change.effects or Effects()
            for output in self._change.effects.outputs:
                if output.kind is OutputKind.ANSWER and output.name in self._rejected:
                    put_output(change.effects, output)


def _nothing() -> None: ...


def redo(run: LiveRun, again: Redo, messages: Sequence[Message]) -> None:
    """The run is at its last durable entry: give it the same inputs, with the unread messages before the last one.

    They are put before the code together, and it runs when the last is there: so it cannot end before it could see
    them, in whatever order it takes them.
    """
    again.restore(run)
    if not again.inputs:
        return
    for (kind, body), at in zip(again.inputs[:-1], again.times, strict=False):
        run.run_turn(kind, body, at)
    tail = _tail(run, again.inputs[-1], messages)
    accepted = [one for one in tail if one[0] is not EntryKind.UPDATE or accepts(run, run.machine, one[1])]
    for kind, body in accepted:
        if run.leaving:
            return  # a turn failed, or a validator acted: it is parked where it was
        body.quiet = body is not accepted[-1][1]
        run.run_turn(kind, body)


def _tail(run: LiveRun, last: Input, messages: Sequence[Message]) -> list[Input]:
    """The unread messages and the input that ended the run, in their order; what is not a message comes last."""
    kind, body = last
    readable = [one for one in messages if one.kind in (MessageKind.SIGNAL, MessageKind.UPDATE)]
    unread = [one for one in readable if one.message_id not in run.seen or one.message_id == body.message_id]
    run.seen.update(one.message_id for one in unread)
    inputs = [_readable(one) for one in sorted(unread, key=lambda one: one.number)]
    if kind in _MESSAGES:
        return inputs
    return [last, *inputs] if kind is EntryKind.STARTED else [*inputs, last]
