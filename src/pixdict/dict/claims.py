"""Claims: taking over a key of another owner (ownership), or moving one's own to another institution (portability).

The machine is a table: who may do what in which state, and after which time. The directory moves no claim by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct

from pixdict.dict.entries import (
    Account,
    Moment,
    Person,
    Reason,
    account_identity,
    account_violations,
    key_violations,
    person_violations,
)
from pixdict.dict.keys import KeyType, normalised
from pixdict.dict.problems import Violation


class Claim(Struct, frozen=True, kw_only=True, rename="pascal"):
    """What a claimer asks for."""

    type: str
    key: str
    key_type: str
    claimer_account: Account
    claimer: Person


class ExtendedClaim(Struct, frozen=True, kw_only=True, rename="pascal"):
    """A claim as the directory returns it."""

    type: str
    key: str
    key_type: str
    claimer_account: Account
    claimer: Person
    donor_participant: str
    id: UUID
    status: str
    resolution_period_end: Moment
    completion_period_end: Moment | None = None
    last_modified: Moment
    confirm_reason: str | None = None
    cancel_reason: str | None = None
    cancelled_by: str | None = None


def is_of_same_claimer(claim: ExtendedClaim, wanted: Claim) -> bool:
    """Whether a claim of the directory is this one, which may be spelled otherwise: times come back less precise, and
    a CNPJ in capital letters."""
    same_key = normalised(claim.key_type, claim.key) == normalised(wanted.key_type, wanted.key)
    same_account = account_identity(claim.claimer_account) == account_identity(wanted.claimer_account)
    return same_key and same_account and claim.claimer.tax_id_number == wanted.claimer.tax_id_number


class ClaimType(StrEnum):
    OWNERSHIP = "OWNERSHIP"
    PORTABILITY = "PORTABILITY"


class ClaimStatus(StrEnum):
    OPEN = "OPEN"
    WAITING_RESOLUTION = "WAITING_RESOLUTION"
    CONFIRMED = "CONFIRMED"
    CANCELLED = "CANCELLED"
    COMPLETED = "COMPLETED"


class Action(StrEnum):
    """What a participant does to a claim."""

    ACKNOWLEDGE = "acknowledge"
    CONFIRM = "confirm"
    CANCEL = "cancel"
    COMPLETE = "complete"


class Role(StrEnum):
    """A side of a claim. In a claim of ownership one participant may have both."""

    DONOR = "DONOR"
    CLAIMER = "CLAIMER"


UNFINISHED = frozenset({ClaimStatus.OPEN, ClaimStatus.WAITING_RESOLUTION, ClaimStatus.CONFIRMED})
LISTED_STATUSES = frozenset(ClaimStatus)

RESOLUTION_PERIOD = timedelta(days=7)
COMPLETION_PERIOD = timedelta(days=7)
"""After the resolution period; claims of ownership only."""
POSSESSION_PERIOD = timedelta(days=30)
"""Within it a claimer must prove that the key is theirs; claims of ownership only."""

CLAIMABLE: dict[str, frozenset[KeyType]] = {
    ClaimType.OWNERSHIP: frozenset({KeyType.PHONE}),
    ClaimType.PORTABILITY: frozenset({KeyType.CPF, KeyType.CNPJ, KeyType.PHONE, KeyType.EMAIL}),
}


class After(StrEnum):
    """The end of a period that an act must wait for."""

    RESOLUTION = "resolution"
    COMPLETION = "completion"
    POSSESSION = "possession"


class Move(NamedTuple):
    """One allowed act. `reason` is None for acts without one."""

    type: ClaimType
    status: ClaimStatus
    action: Action
    role: Role
    reason: Reason | None
    to: ClaimStatus
    after: After | None = None


def _moves() -> Iterator[Move]:
    ownership, portability = ClaimType.OWNERSHIP, ClaimType.PORTABILITY
    opened, waiting, confirmed = ClaimStatus.OPEN, ClaimStatus.WAITING_RESOLUTION, ClaimStatus.CONFIRMED
    cancelled, completed = ClaimStatus.CANCELLED, ClaimStatus.COMPLETED
    donor, claimer = Role.DONOR, Role.CLAIMER
    silence, fraud = Reason.DEFAULT_OPERATION, Reason.FRAUD

    for kind in ClaimType:
        yield Move(kind, opened, Action.ACKNOWLEDGE, donor, None, waiting)
        yield Move(kind, waiting, Action.CONFIRM, donor, Reason.USER_REQUESTED, confirmed)
    yield Move(portability, waiting, Action.CONFIRM, donor, Reason.ACCOUNT_CLOSURE, confirmed)
    yield Move(ownership, waiting, Action.CONFIRM, donor, silence, confirmed, After.RESOLUTION)

    for status in (opened, waiting):
        for role in Role:
            yield Move(portability, status, Action.CANCEL, role, Reason.USER_REQUESTED, cancelled)
            yield Move(portability, status, Action.CANCEL, role, fraud, cancelled)
        for reason in (Reason.ACCOUNT_CLOSURE, Reason.RFB_VALIDATION):
            yield Move(portability, status, Action.CANCEL, claimer, reason, cancelled)
        yield Move(portability, status, Action.CANCEL, donor, silence, cancelled, After.RESOLUTION)
    yield Move(portability, opened, Action.CANCEL, claimer, Reason.RECONCILIATION, cancelled)
    for reason in (fraud, Reason.RECONCILIATION, Reason.RFB_VALIDATION):
        yield Move(portability, confirmed, Action.CANCEL, claimer, reason, cancelled)

    for status in (opened, waiting, confirmed):
        for reason in CLAIM_REASONS:
            after = After.POSSESSION if reason is silence else None
            yield Move(ownership, status, Action.CANCEL, claimer, reason, cancelled, after)
        yield Move(ownership, status, Action.CANCEL, donor, fraud, cancelled)

    yield Move(ownership, confirmed, Action.COMPLETE, claimer, None, completed, After.COMPLETION)
    yield Move(portability, confirmed, Action.COMPLETE, claimer, None, completed)


CLAIM_REASONS = (
    Reason.USER_REQUESTED,
    Reason.ACCOUNT_CLOSURE,
    Reason.FRAUD,
    Reason.DEFAULT_OPERATION,
    Reason.RECONCILIATION,
    Reason.RFB_VALIDATION,
)
MOVES: tuple[Move, ...] = tuple(_moves())
CONFIRM_REASONS = frozenset(move.reason for move in MOVES if move.action is Action.CONFIRM and move.reason)
_TOO_EARLY = {
    After.RESOLUTION: "ClaimResolutionPeriodNotEnded",
    After.COMPLETION: "ClaimCompletionPeriodNotEnded",
    After.POSSESSION: "ClaimCompletionPeriodNotEnded",
}


class Ends(NamedTuple):
    """When the periods of a claim end."""

    resolution: datetime
    completion: datetime | None
    possession: datetime | None

    def of(self, period: After) -> datetime:
        """The end of one of them."""
        end = {
            After.RESOLUTION: self.resolution,
            After.COMPLETION: self.completion,
            After.POSSESSION: self.possession,
        }[period]
        return end or self.resolution


def ends_of(claim_type: str, created: datetime) -> Ends:
    """The periods of a new claim."""
    resolution = created + RESOLUTION_PERIOD
    if claim_type == ClaimType.PORTABILITY:
        return Ends(resolution, None, None)
    return Ends(resolution, resolution + COMPLETION_PERIOD, created + POSSESSION_PERIOD)


def decide(
    claim_type: str,
    status: str,
    action: Action,
    roles: frozenset[Role],
    reason: str | None,
    now: datetime,
    ends: Ends,
) -> Move | str:
    """The move that an act makes, or the name of the problem. `roles` are those of the participant that acts."""
    moves = [move for move in MOVES if (move.type, move.status, move.action) == (claim_type, status, action)]
    if not roles:
        return "Forbidden"
    if not moves:
        return "ClaimOperationInvalid"
    moves = [move for move in moves if move.role in roles]
    if not moves:
        return "Forbidden"
    moves = [move for move in moves if move.reason == reason]
    if not moves:
        return "InvalidReason"
    move = next((move for move in moves if move.after is None or now >= ends.of(move.after)), None)
    return move or _TOO_EARLY[moves[0].after or After.RESOLUTION]


def claim_violations(claim: Claim, *, check_digits: bool = False) -> list[Violation]:
    """All that is wrong with the fields of a new claim."""
    found = list(key_violations(claim.key_type, claim.key, "claim.key", check_digits=check_digits))
    claimable = CLAIMABLE.get(claim.type)
    if claimable is None:
        found.append(Violation(reason="unknown type of claim", value=claim.type, property="claim.type"))
    elif claim.key_type not in claimable:
        why = f"keys of this type cannot be claimed by {claim.type}"
        found.append(Violation(reason=why, value=claim.key_type, property="claim.keyType"))
    found += account_violations(claim.claimer_account, "claim.claimerAccount")
    found += person_violations(claim.claimer, "claim.claimer")
    return found
