"""A run with its journal, decoded, and what its entries mean."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, json

from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind
from batuta.journal.records import Message, MessageKind, Run, RunKind
from batuta.journal.states import PARKED, RunState

ANSWERS = (EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED)
CHILD_ANSWERS = (EntryKind.CHILD_DONE, EntryKind.CHILD_FAILED)
CLOSING = {
    CommandKind.COMPLETE: RunState.COMPLETED,
    CommandKind.FAIL: RunState.FAILED,
    CommandKind.CANCELLED: RunState.CANCELLED,
    CommandKind.CONTINUE: RunState.CONTINUED,
}
OUTSIDE = {
    EntryKind.TERMINATED: RunState.TERMINATED,
    EntryKind.TIMED_OUT: RunState.TIMED_OUT,
    EntryKind.CANCELLED: RunState.CANCELLED,
}


class Journal(Struct):
    """A run with its tape, decoded."""

    run: Run
    entries: list[Entry]
    bodies: list[Body]
    epochs: list[int]
    unread: list[Message]

    @property
    def key_base(self) -> str:
        start = self.bodies[0].start if self.bodies else UNSET
        return "" if start is UNSET else start.key_base

    def has_cancel(self) -> bool:
        """Whether a cancel has reached the run; a parked one has it in its inbox, for when it goes on."""
        waiting = self.run.state in PARKED and any(message.kind is MessageKind.CANCEL for message in self.unread)
        return waiting or any(entry.kind in (EntryKind.CANCEL_REQUESTED, EntryKind.CANCELLED) for entry in self.entries)

    def key(self, call: Body | Command) -> str:
        """The key of an activity that the run called. One that was routed has that of the call it came from."""
        return self.key_base if self.is_routed else f"{self.key_base}:{call.seq}:{call.name}"

    @property
    def is_routed(self) -> bool:
        """Whether the run is one call of an activity."""
        start = self.bodies[0].start if self.bodies else UNSET
        return start is not UNSET and start.options is not UNSET

    @property
    def was_cut_short(self) -> bool:
        """Whether it is a job that was ended from outside before anything of it was written."""
        return self.run.kind is RunKind.JOB and [entry.kind for entry in self.entries] == [EntryKind.TERMINATED]

    def result(self) -> Any:
        """What it returned; None when it did not."""
        last = self.bodies[-1].commands[-1:] if self.bodies else []
        return json.decode(last[0].value) if last and last[0].value is not UNSET else None

    def pairs(self) -> list[tuple[Entry, Body]]:
        return list(zip(self.entries, self.bodies, strict=True))

    def commands(self, *kinds: CommandKind) -> list[Command]:
        """Those of these kinds, in the order in which they were issued."""
        return [command for body in self.bodies for command in body.commands if command.kind in kinds]

    def answers(self) -> dict[str, Entry]:
        """Durable answers of activities, by key."""
        return {self.key(body): entry for entry, body in self.pairs() if entry.kind in ANSWERS}
