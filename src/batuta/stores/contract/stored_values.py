"""Kinds and states as they are stored in the database. An unknown value is reported and affects only its own row."""

from __future__ import annotations

from enum import StrEnum
from typing import TypeVar

from msgspec import MsgspecError
from msgspec.json import Decoder

from batuta.errors import PayloadDamaged
from batuta.journal.dead_letters import LetterState
from batuta.journal.entries import EntryKind
from batuta.journal.records import LetterReason, MessageKind, OutputKind, ParentPolicy, RunKind
from batuta.journal.states import RunState

T = TypeVar("T")
K = TypeVar("K", bound=StrEnum)


class StoredValues(dict[str, K]):
    """The members of an enum by their stored texts. An unknown text raises PayloadDamaged, or counts as `otherwise` if
    that is given."""

    def __init__(self, members: type[K], what: str, otherwise: K | None = None) -> None:
        super().__init__({member.value: member for member in members})
        self._what, self._otherwise = what, otherwise

    def __missing__(self, text: str) -> K:
        if self._otherwise is not None:
            return self._otherwise
        raise self.unknown(text)

    def unknown(self, text: str) -> PayloadDamaged:
        return PayloadDamaged(
            f"unknown {self._what} {text[:50]!r} in the database: a newer Batuta may have written it (upgrade this "
            "worker), or the row is damaged (restore it from a backup)"
        )


def readable_or(decoder: Decoder[T], text: str, otherwise: T) -> T:
    """Decode bookkeeping that only affects how things are shown; `otherwise` if it is damaged."""
    try:
        return decoder.decode(text)
    except (MsgspecError, RecursionError):
        return otherwise


RUN_STATES = StoredValues(RunState, "state of a run", RunState.NEEDS_CODE)
"""A run whose row cannot be understood is shown as parked."""
RUN_KINDS = StoredValues(RunKind, "kind of a run", RunKind.WORKFLOW)
ENTRY_KINDS = StoredValues(EntryKind, "kind of an entry")
MESSAGE_KINDS = StoredValues(MessageKind, "kind of a message")
OUTPUT_KINDS = StoredValues(OutputKind, "kind of an output")
POLICIES = StoredValues(ParentPolicy, "parent policy", ParentPolicy.ABANDON)
LETTER_STATES = StoredValues(LetterState, "state of a dead letter")
LETTER_REASONS = StoredValues(LetterReason, "cause of a dead letter")
