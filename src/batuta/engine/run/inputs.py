"""Turns the messages of a run into inputs of turns; some are no input."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, MsgspecError, json
from msgspec.structs import replace

from batuta.engine.activities.external_completion import BEAT, HURRY
from batuta.engine.machine.children import parent_mark
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.routing import routed_answer
from batuta.ids import RunId
from batuta.journal.codec_envelope import refuse_coded
from batuta.journal.entries import Body, EntryKind
from batuta.journal.message_headers import without_headers
from batuta.journal.records import Attempt, Message, MessageKind

Input = tuple[EntryKind, Body]
"""The input of a turn."""

CANCEL_AGAIN = '"again"'
"""The body of a cancel that is meant for a run that heard one before."""

_decode = json.Decoder(Body).decode
_FIRST = {MessageKind.TERMINATE: 0, MessageKind.START: 1}
_UNBEGUN = _FIRST | {MessageKind.CANCEL: 2}


class InputReader:
    """A run that is given messages: owned by a worker, or a copy for queries."""

    __slots__ = ("identity", "machine", "parent")

    identity: RunIdentity
    machine: Machine
    parent: tuple[RunId, int] | None
    """Its run id, and the command that began this run."""

    def in_reading_order(self, messages: Sequence[Message]) -> list[Message]:
        """As a run that has not begun reads them: a terminated run never begins, and messages to the run before in its
        chain may be older than its start.

        A run that is cancelled before it began does not run: its code meets start and cancel together, and so ends
        before its first line."""
        order = _FIRST
        if any(one.kind is MessageKind.CANCEL and self.cancel_input(one) is not None for one in messages):
            begun = [self._unbegun(one) if one.kind is MessageKind.START else one for one in messages]
            order = _FIRST if begun == messages else _UNBEGUN
            messages = begun
        return sorted(messages, key=lambda message: order.get(message.kind, len(order)))

    def _unbegun(self, message: Message) -> Message:
        """A start that waits for the next input; unchanged when the run goes on for another one, which may have begun
        something that only the clean-up ends."""
        body = _decode(message.body)
        if self.identity.chain_id != self.identity.run_id and body.start is not UNSET and body.start.attempt == 1:
            return message
        body.quiet = True
        return replace(message, body=json.encode(body).decode())

    def as_input(self, message: Message) -> Input | None:
        """The input that a message is to the run's code; None when it is nothing to it."""
        match message.kind:
            case MessageKind.START:
                found: Input | None = EntryKind.STARTED, _decode(message.body)
            case MessageKind.CANCEL:
                found = self.cancel_input(message)
            case MessageKind.CHILD:
                found = self._child_input(message)
            case _:
                found = readable_input(message)
        if found is not None:
            found[1].message_id = message.message_id
        return found

    def cancel_input(self, message: Message) -> Input | None:
        """A cancel. None when it is a parent's and not for this run, which only has the id of its child; or when
        another one came before: it must not cancel the clean-up."""
        if message.body != CANCEL_AGAIN:
            if self.machine.cancel_requested:
                return None
            if message.body != "null" and (self.parent is None or message.body != parent_mark(*self.parent)):
                return None
        return EntryKind.CANCEL_REQUESTED, Body(reason=message.name)

    def _child_input(self, message: Message) -> Input | None:
        """A child's end. None when it is about a child of a run before this one, or no code waits for it."""
        if message.name and message.name != str(self.identity.run_id):
            return None
        body = _decode(message.body)
        related = self.machine.related
        if related is not None and body.seq in related.routed:
            return routed_answer(related.routed[body.seq], body)
        if related is None or body.seq not in related.children:
            return None
        return (EntryKind.CHILD_FAILED if body.error is not UNSET else EntryKind.CHILD_DONE), body

    def answered_early(self, messages: Sequence[Message], attempts: Sequence[Attempt]) -> set[int]:
        """Calls whose answer is in the inbox: they need not be executed again."""
        found = set()
        for message in messages:
            if message.kind is MessageKind.ACTIVITY and message.name == str(self.identity.run_id):
                body = _decode(message.body)
                ended = (one.number for one in attempts if one.seq == body.seq and one.ended_at is not None)
                if body.reason not in (BEAT, HURRY) and body.attempts > max(ended, default=0):
                    found.add(body.seq)
        return found


def readable_input(message: Message) -> Input:
    refuse_coded(message.body, f"message {message.message_id!r}")
    kind = EntryKind.UPDATE if message.kind is MessageKind.UPDATE else EntryKind.SIGNAL
    value, headers = without_headers(message.body)
    return kind, Body(name=message.name, value=value, message_id=message.message_id, headers=headers)


def pause_of(messages: Sequence[Message]) -> Message | None:
    """The message that says that a run is to be held."""
    return next((message for message in messages if message.kind is MessageKind.PAUSE), None)


def damaged(messages: Sequence[Message]) -> str:
    """Names the message that cannot be read, or says that it is none of these."""
    for message in messages:
        try:
            if message.kind in (MessageKind.SIGNAL, MessageKind.UPDATE):
                without_headers(message.body)
            elif message.kind in (MessageKind.START, MessageKind.CHILD, MessageKind.ACTIVITY):
                _decode(message.body)
        except (MsgspecError, RecursionError):
            return f"message {message.message_id!r}"
    return "an attempt"
