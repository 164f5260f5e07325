"""A live run and the runs around it: what comes of the store's word, and of messages from parent and children."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import UNSET, json

from batuta.engine.kin import parent_mark, refusal_failure
from batuta.engine.routes import routed_answer
from batuta.journal.entries import Body, Command, CommandKind, EntryKind
from batuta.journal.records import Message, MessageKind, Move, Refusal
from batuta.settings import MOST_UNDURABLE

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun

_ASKED = (CommandKind.CHILD, CommandKind.SEND)

CANCEL_AGAIN = '"again"'
"""The body of a cancel that is meant for a run that heard one before."""

Input = tuple[EntryKind, Body]


def child_input(run: LiveRun, message: Message) -> Input | None:
    """A child's end. None when it is about a child of a run before this one, or nobody waits for it."""
    if message.name and message.name != str(run.run_id):
        return None
    body = json.decode(message.body, type=Body)
    kin = run.machine.kin
    if kin is not None and body.seq in kin.routed:
        return routed_answer(kin.routed[body.seq], body)
    if kin is None or body.seq not in kin.children:
        return None
    return (EntryKind.CHILD_FAILED if body.error is not UNSET else EntryKind.CHILD_DONE), body


def cancel_input(run: LiveRun, message: Message) -> Input | None:
    """A cancel. None when it is a parent's and not for this run, which only has the id of its child; or when another
    one came before, from whomever: it must not cancel the clean-up."""
    if message.body == CANCEL_AGAIN:
        return EntryKind.CANCEL_REQUESTED, Body(reason=message.name)
    if run.machine.cancel_requested:
        return None
    if message.body != "null" and (run.parent is None or message.body != parent_mark(*run.parent)):
        return None
    return EntryKind.CANCEL_REQUESTED, Body(reason=message.name)


def store_answers(run: LiveRun, commands: Sequence[Command], refusals: Sequence[Refusal]) -> list[Input]:
    """Inputs for the code that waits to hear whether the store took what these commands sent; refusals first."""
    kin = run.machine.kin
    if kin is None:
        return []
    namespace = run.identity.namespace
    inputs: list[Input] = []
    for refusal in refusals:
        kin.unsettled.discard(refusal.seq)
        if refusal.seq in kin.asked or refusal.seq in kin.children:
            inputs.append((EntryKind.REFUSED, Body(seq=refusal.seq, error=refusal_failure(refusal, namespace))))
        elif refusal.seq in kin.routed:
            failure = refusal_failure(refusal, namespace)
            inputs.append(
                (EntryKind.ACTIVITY_FAILED, Body(refusal.seq, kin.routed[refusal.seq].pending.name, error=failure))
            )
    refused = {refusal.seq for refusal in refusals}
    for command in commands:
        asked = command.kind in _ASKED or (command.kind is CommandKind.ACTIVITY and command.to)
        if asked and command.seq not in refused:
            kin.unsettled.discard(command.seq)
            if command.seq in kin.asked:
                inputs.append((EntryKind.ACCEPTED, Body(seq=command.seq)))
    return inputs


def send_again(run: LiveRun) -> None:
    """After a replay: what was sent, and whose sender may not have heard the store's word, is sent once more."""
    kin = run.machine.kin
    if kin is None:
        return
    # Refusals go first, and a run goes no further ahead of what is durable: what is older was taken, or is refused.
    again = kin.unanswered(MOST_UNDURABLE)
    if again is not None:
        commands = [Command(one.parent_seq, CommandKind.CHILD, one.name) for one in again.children]
        run.open_change().effects = again
        run.effects += [*commands, *kin.sent.values()]


def parent_message(run: LiveRun, move: Move) -> Message | None:
    """What the store has told the parent of a run that closed, for a parent in this process."""
    kin, continued = run.machine.kin, run.identity.chain_id != run.run_id
    if run.parent is None or not move.outcome or continued or (kin is not None and kin.has_sent):
        return None  # what it, or a run before it, sent must come first: the parent reads its inbox
    return Message(message_id=f"child:{run.run_id}", kind=MessageKind.CHILD, name=str(run.parent[0]), body=move.outcome)
