"""Compensations as the journal keeps them: what a saga registered, and whether it was undone."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import UNSET, Raw, Struct, json

from batuta.journal.entries import CommandKind, Entry, EntryKind, decode_body

COMPENSATE = "batuta.compensate"
"""The workflow that calls compensations. Every worker has it."""


class Compensation(Struct, omit_defaults=True):
    """A call that undoes a step."""

    seq: int
    """The command that registered it."""
    name: str
    args: Raw
    options: Raw
    """JSON of its ActivityOptions."""
    key: str
    """Its stable key: the same whichever run calls it."""
    undoes: str = ""
    """The activity that it undoes, where that is known."""

    @property
    def label(self) -> str:
        """For people: `refund (of charge)`."""
        return f"{self.name} (of {self.undoes})" if self.undoes else self.name


class Registered(Struct, omit_defaults=True):
    """The value of an UNDO command, whose name is that of the compensation."""

    args: Raw
    options: Raw
    undoes: str = ""


def covered(value: Raw) -> list[int]:
    """The compensations that a KEEP command settles."""
    return json.decode(value, type=list[int])


def handed_over(value: Raw) -> list[int]:
    """The compensations that a run of COMPENSATE is started with."""
    return [one.seq for one in json.decode(value, type=tuple[list[Compensation]])[0]]


def is_compensated(entries: Sequence[Entry]) -> bool:
    """Whether steps of this journal were undone, or are being undone: they cannot be counted on any more."""
    waiting: set[int] = set()
    for entry in entries:
        for command in decode_body(entry).commands:
            if command.kind is CommandKind.CHILD and command.name == COMPENSATE:
                return True
            if command.kind is CommandKind.UNDO:
                waiting.add(command.seq)
            elif command.kind is CommandKind.KEEP and command.value is not UNSET:
                waiting.difference_update(covered(command.value))
    return bool(waiting) and entries[-1].kind is EntryKind.TIMED_OUT
