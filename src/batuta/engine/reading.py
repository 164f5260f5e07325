"""How messages reach a live run: updates are validated before their turn, and a run that would close without having
seen all that it was sent goes back and sees it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
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
from batuta.journal.entries import Body, EntryKind
from batuta.journal.headed import without_headers
from batuta.journal.records import Effects, Message, MessageKind, Output, OutputKind

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun

log = logging.getLogger("batuta.engine")

MESSAGES = (EntryKind.SIGNAL, EntryKind.UPDATE)
_ANSWERS = (EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED)
_KIN_ANSWERS = (EntryKind.CHILD_DONE, EntryKind.CHILD_FAILED, EntryKind.ACCEPTED, EntryKind.REFUSED)

Input = tuple[EntryKind, Body]
"""What a turn consumes."""


_FIRST = {MessageKind.TERMINATE: 0, MessageKind.START: 1}


def to_begin_with(messages: Sequence[Message]) -> list[Message]:
    """As a run that has not begun reads them: one that is to be ended never begins, and messages to the run before in
    its chain may be older than its start."""
    return sorted(messages, key=lambda message: _FIRST.get(message.kind, len(_FIRST)))


def as_input(run: LiveRun, message: Message) -> Input | None:
    """What a message is to the run's code; None when it is nothing to it."""
    match message.kind:
        case MessageKind.START:
            found: Input | None = EntryKind.STARTED, json.decode(message.body, type=Body)
        case MessageKind.CANCEL:
            found = cancel_input(run, message)
        case MessageKind.CHILD:
            found = child_input(run, message)
        case _:
            found = readable_input(message)
    if found is not None:
        found[1].message_id = message.message_id
    return found


def is_awaited(run: LiveRun, kind: EntryKind, body: Body) -> bool:
    """False for an answer that no code waits for: it is no input. A message with one is read all the same."""
    machine = run.machine
    if kind in _ANSWERS:
        awaited = body.seq in machine.activities or (machine.kin is not None and body.seq in machine.kin.routed)
    elif kind in _KIN_ANSWERS:
        awaited = machine.kin is not None and machine.kin.is_awaited(body)
    else:
        return True
    if not awaited and body.message_id:
        run.open_change().consumed += (body.message_id,)
    return awaited


def readable_input(message: Message) -> Input:
    refuse_coded(message.body, f"message {message.message_id!r}")
    kind = EntryKind.UPDATE if message.kind is MessageKind.UPDATE else EntryKind.SIGNAL
    value, headers = without_headers(message.body)
    return kind, Body(name=message.name, value=value, message_id=message.message_id, headers=headers)


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
    change.consumed += (body.message_id,)
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
