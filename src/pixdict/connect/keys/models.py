"""What the workflows of keys and claims take and keep."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from batuta import NonRetryable
from pixdict.dict.claims import Claim
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


class NewEntry(Struct, frozen=True, kw_only=True):
    """A key to create. `id` is our own name for it."""

    id: str
    entry: Entry
    reason: str = "USER_REQUESTED"


class EntryChange(Struct, frozen=True, kw_only=True):
    """What to change of an entry; None leaves it as it is."""

    account: Account | None = None
    owner: Person | None = None
    reason: str = "USER_REQUESTED"


class NewClaim(Struct, frozen=True, kw_only=True):
    """A claim to open. `id` is our own name for it: the run is called `claim-{id}`."""

    id: str
    claim: Claim


class EntryRow(Struct, frozen=True, kw_only=True):
    """An entry in our own table."""

    id: str
    status: str
    request_id: str
    entry: Entry
    cid: str = ""
    problem: str = ""


class ClaimRow(Struct, frozen=True, kw_only=True):
    """A claim in our own table. `side` is DONOR or CLAIMER."""

    id: str
    side: str
    status: str
    key: str
    directory_id: str = ""
    problem: str = ""


class EntryNotActive(NonRetryable):
    """The entry is not there, or is just being changed otherwise."""


class Compensated(NonRetryable):
    """A claim was opened at the directory, could not be stored here, and was cancelled again."""


COMPENSATED = "Failed to create claim. Compensating transaction executed."
