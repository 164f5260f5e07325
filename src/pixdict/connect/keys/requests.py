"""What core and connect tell each other over the bus."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from pixdict.connect.keys.models import Asked, ClaimAct, EntryChange, NewClaim, NewEntry, Outcome

REQUESTS, RESPONSES, EVENTS = "dict-requests", "dict-responses", "core-events"
"""Topics: what core asks, how it ended, and what the rest of the institution should know."""


class CreateEntry(Struct, frozen=True, kw_only=True, tag_field="type", tag="entry.create"):
    """Our row is there: PENDING."""

    new: NewEntry

    @property
    def asked(self) -> Asked:
        return self.new.asked


class UpdateEntry(Struct, frozen=True, kw_only=True, tag_field="type", tag="entry.update"):
    id: str
    change: EntryChange
    asked: Asked


class DeleteEntry(Struct, frozen=True, kw_only=True, tag_field="type", tag="entry.delete"):
    id: str
    reason: str
    asked: Asked


class CreateClaim(Struct, frozen=True, kw_only=True, tag_field="type", tag="claim.create"):
    """Our row is there: PENDING."""

    new: NewClaim

    @property
    def asked(self) -> Asked:
        return self.new.asked


class ActOnClaim(Struct, frozen=True, kw_only=True, tag_field="type", tag="claim.act"):
    id: str
    run: str
    """The id of the run that the claim is."""
    act: ClaimAct

    @property
    def asked(self) -> Asked:
        return self.act.asked


Request = CreateEntry | UpdateEntry | DeleteEntry | CreateClaim | ActOnClaim


def type_of(request: Any) -> str:
    """The type of its message."""
    return str(request.__struct_config__.tag)


class Response(Struct, frozen=True, kw_only=True):
    """How a request ended."""

    subject: Literal["entry", "claim"]
    id: str
    outcome: Outcome
