"""Payloads that lie in the store, written otherwise: when keys are changed. Values, no I/O."""

from __future__ import annotations

from msgspec import Struct, field

from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Attempt, Message, Output


class Rewrite(Struct, kw_only=True):
    """New texts for existing rows of one closed run; everything else in the rows stays. Missing rows stay missing."""

    run_id: RunId
    entries: list[Entry] = field(default_factory=list)
    """`body` and `crc`."""
    attempts: list[Attempt] = field(default_factory=list)
    """`error` and `details`."""
    outputs: list[Output] = field(default_factory=list)
    """Published values, and answers of its chain: `value` and `error`."""
    messages: list[Message] = field(default_factory=list)
    """Of its chain, read or not: `body`."""
    memo: str | None = None
    reason: str | None = None
    letter: str | None = None
    """The message of its dead letter."""
