"""What the workflows of keys and claims take and keep."""

from __future__ import annotations

from datetime import datetime
from enum import StrEnum
from typing import Literal
from uuid import UUID

from msgspec import Struct

from batuta import NonRetryable
from pixdict.dict.claims import Claim, Role
from pixdict.dict.entries import Account, Entry, Person


class EntryStatus(StrEnum):
    """Of an entry in our own table. The directory's entries have none."""

    PENDING = "PENDING"
    ACTIVE = "ACTIVE"
    FAILED = "FAILED"
    DELETING = "DELETING"
    DELETED = "DELETED"
    TRANSFERRED = "TRANSFERRED"
    """Given away by a claim."""


class Asked(Struct, frozen=True, kw_only=True):
    """Which request a run is for. Empty: it was started without one, and answers no one."""

    request: str = ""
    """The id of the message that asked."""
    trace_id: str = ""


NO_REQUEST = Asked()


class NewEntry(Struct, frozen=True, kw_only=True):
    """A key to create. `id` is our own name for it."""

    id: str
    entry: Entry
    reason: str = "USER_REQUESTED"
    request_id: UUID | None = None
    """What every call for it will have. With it our row is there already; without it the run inserts the row."""
    asked: Asked = NO_REQUEST


class EntryChange(Struct, frozen=True, kw_only=True):
    """What to change of an entry; None leaves it as it is."""

    account: Account | None = None
    owner: Person | None = None
    reason: str = "USER_REQUESTED"


class NewClaim(Struct, frozen=True, kw_only=True):
    """A claim to open. `id` is our own name for it: the run is called `claim-{id}`."""

    id: str
    claim: Claim
    request_id: UUID | None = None
    """As of a new entry."""
    asked: Asked = NO_REQUEST


class ClaimAct(Struct, frozen=True, kw_only=True):
    """What a person wants of a claim that is open."""

    action: Literal["confirm", "cancel", "prove"]
    reason: str = "USER_REQUESTED"
    asked: Asked = NO_REQUEST


class How(StrEnum):
    """How a request ended."""

    DONE = "done"
    REFUSED = "refused"
    """By the directory, or because of the state of our own row: an answer."""
    EXHAUSTED = "exhausted"
    """The directory was away for all attempts. Nothing is undone; the run is a dead letter, or goes on."""
    UNDONE = "undone"
    """A step after the directory failed, and everything was undone."""


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of a request: kept in our row, and published to `dict-responses`."""

    request: str
    how: How
    status: str
    """Of the entry or claim."""
    problem: str = ""
    """The name of the problem and what is known about it."""
    trace_id: str = ""


class EntryRow(Struct, frozen=True, kw_only=True):
    """An entry in our own table."""

    id: str
    status: str
    request_id: str
    entry: Entry
    cid: str = ""
    problem: str = ""
    request: str = ""
    """The last request for it; "": there was none."""
    outcome: Outcome | None = None
    """Of that request; None: it is under way."""
    created_at: datetime | None = None


class ClaimRow(Struct, frozen=True, kw_only=True):
    """A claim in our own table. `side` is DONOR or CLAIMER."""

    id: str
    side: str
    status: str
    key: str
    directory_id: str = ""
    problem: str = ""
    request: str = ""
    outcome: Outcome | None = None
    claim: Claim | None = None
    """What is claimed: of a claim that another institution opened, as the directory has it."""
    donor: str = ""
    """The ISPB of the institution that has the key, once the directory has said it."""
    expires_at: datetime | None = None
    """The end of the resolution period."""
    created_at: datetime | None = None

    @property
    def run(self) -> str:
        """The id of the run that the claim is."""
        return f"answer-{self.directory_id}" if self.side == Role.DONOR else f"claim-{self.id}"


class EntryNotActive(NonRetryable):
    """The entry is not there, or is just being changed otherwise."""


class Compensated(NonRetryable):
    """A step after the directory failed, and everything was undone: at the directory, too."""


class NotCompensated(NonRetryable):
    """A step after the directory failed, and it could not be undone there: the compensation is a dead letter."""


class AttemptsExhausted(NonRetryable):
    """The directory was away for all attempts."""


class AuditUnavailable(Exception):
    """The audit log took no event. Worth another attempt."""


COMPENSATED = "Failed to create claim. Compensating transaction executed."
COMPENSATED_ENTRY = "Failed to create entry. Compensating transaction executed."
COMPENSATED_UPDATE = "Failed to update entry. Compensating transaction executed."
NOT_COMPENSATED = "a step after the directory failed and could not be undone there: reprocess its dead letter"
