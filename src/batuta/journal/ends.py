"""How a run has ended: its row says so, and the last entry of its journal."""

from __future__ import annotations

from batuta.errors import PayloadDamaged
from batuta.journal.entries import Command, CommandKind, Entry, EntryKind, decode_body
from batuta.journal.kinds import CLOSING_COMMANDS, CLOSING_ENTRIES, ENTRY_KINDS
from batuta.journal.records import Run
from batuta.journal.states import CLOSED, RunState

_FOLLOWED = (CommandKind.CONTINUE, CommandKind.FAIL)
"""Ends after which another run of the chain goes on: it asked for it, or it failed and is tried again."""


def ends_as(end: CommandKind | EntryKind | None, state: RunState) -> bool:
    """Whether a journal with this end belongs to a run in this state."""
    if isinstance(end, EntryKind):
        return ENTRY_KINDS[end].closes is state
    if end is None:
        return state not in CLOSED or state is RunState.CONTINUED
    return end in _FOLLOWED if state is RunState.CONTINUED else CLOSING_COMMANDS[end] is state


def closing_command(run: Run, last: Entry | None) -> Command | None:
    """The command that closed the run; None when it was closed from outside.

    Raises PayloadDamaged unless the last entry of its journal closes it as its row says: with the state of the row
    alone, somebody who can write to the database could choose whether a run has failed.
    """
    command: Command | None = None
    end: CommandKind | EntryKind | None = None
    if last is not None:
        if last.kind in CLOSING_ENTRIES:
            end = last.kind
        elif (commands := decode_body(last).commands) and commands[-1].kind in CLOSING_COMMANDS:
            command = commands[-1]
            end = command.kind
    if run.state in CLOSED and not ends_as(end, run.state):
        raise PayloadDamaged(f"run {run.id!r} is {run.state}, and its journal does not end so")
    return command
