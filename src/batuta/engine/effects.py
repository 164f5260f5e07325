"""Commands that reach beyond their run: what the store is to do for them, in the transaction of their turn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from batuta.journal.entries import Command, CommandKind, Entry
from batuta.journal.records import Change, Effects

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


_ADD: dict[CommandKind, Callable[[LiveRun, Effects, Entry, Command], None]] = {}
