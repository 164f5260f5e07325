"""The meaning of each kind of entry and command. The machine, timelines, forks, verify and commands ask this table."""

from __future__ import annotations

from msgspec import Struct

from batuta.journal.entries import CommandKind, EntryKind
from batuta.journal.states import CLOSED, RunState


class EntryMeaning(Struct, frozen=True):
    """The meaning of an entry of one kind."""

    answers: CommandKind | None = None
    """The kind of the command that it settles."""
    failure: bool = False
    """The answer is an error."""
    message: bool = False
    """A client or another run sent it."""
    closes: RunState | None = None
    """It closes the run from outside, without a turn of the code."""


ENTRY_KINDS: dict[EntryKind, EntryMeaning] = {
    EntryKind.STARTED: EntryMeaning(),
    EntryKind.ACTIVITY_DONE: EntryMeaning(answers=CommandKind.ACTIVITY),
    EntryKind.ACTIVITY_FAILED: EntryMeaning(answers=CommandKind.ACTIVITY, failure=True),
    EntryKind.TIMER_FIRED: EntryMeaning(answers=CommandKind.TIMER),
    EntryKind.SIGNAL: EntryMeaning(message=True),
    EntryKind.UPDATE: EntryMeaning(message=True),
    EntryKind.CHILD_DONE: EntryMeaning(answers=CommandKind.CHILD),
    EntryKind.CHILD_FAILED: EntryMeaning(answers=CommandKind.CHILD, failure=True),
    EntryKind.CANCEL_REQUESTED: EntryMeaning(message=True),
    EntryKind.ACCEPTED: EntryMeaning(answers=CommandKind.SEND),
    EntryKind.REFUSED: EntryMeaning(answers=CommandKind.SEND, failure=True),
    EntryKind.FORKED: EntryMeaning(),
    EntryKind.TERMINATED: EntryMeaning(closes=RunState.TERMINATED),
    EntryKind.TIMED_OUT: EntryMeaning(closes=RunState.TIMED_OUT),
    EntryKind.CANCELLED: EntryMeaning(closes=RunState.CANCELLED),
}

CLOSING_COMMANDS: dict[CommandKind, RunState] = {
    CommandKind.COMPLETE: RunState.COMPLETED,
    CommandKind.FAIL: RunState.FAILED,
    CommandKind.CANCELLED: RunState.CANCELLED,
    CommandKind.CONTINUE: RunState.CONTINUED,
}
"""Commands by which code ends its run, with the state that the run gets."""

CLOSING_ENTRIES = {kind: one.closes for kind, one in ENTRY_KINDS.items() if one.closes is not None}
"""Entries that close a run from outside, with the state that the run gets. They are always the last entry."""


def _answers_to(*commands: CommandKind, failure: bool | None = None) -> frozenset[EntryKind]:
    return frozenset(
        kind
        for kind, one in ENTRY_KINDS.items()
        if one.answers in commands and (failure is None or one.failure is failure)
    )


ACTIVITY_ANSWERS = _answers_to(CommandKind.ACTIVITY)
CALL_RESULTS = _answers_to(CommandKind.ACTIVITY, CommandKind.CHILD, failure=False)
CALL_ERRORS = _answers_to(CommandKind.ACTIVITY, CommandKind.CHILD, failure=True)
CALL_ANSWERS = CALL_RESULTS | CALL_ERRORS
"""Answers of activities and children."""
STORE_ANSWERS = _answers_to(CommandKind.SEND)
"""The store's answer to a child or a message of a command."""
FAILURES = frozenset(kind for kind, one in ENTRY_KINDS.items() if one.failure)
MESSAGES = frozenset(kind for kind, one in ENTRY_KINDS.items() if one.message)

_FOLLOWED = (CommandKind.CONTINUE, CommandKind.FAIL)
"""Ends after which another run of the chain goes on: it asked for it, or it failed and is tried again."""


def ends_as(end: CommandKind | EntryKind | None, state: RunState) -> bool:
    """Whether a journal with this end belongs to a run in this state."""
    if isinstance(end, EntryKind):
        return ENTRY_KINDS[end].closes is state
    if end is None:
        return state not in CLOSED or state is RunState.CONTINUED
    return end in _FOLLOWED if state is RunState.CONTINUED else CLOSING_COMMANDS[end] is state
