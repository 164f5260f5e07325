"""Rules of claims around the machine: who may ask for which key, and what a claim does to its entry."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import Struct
from msgspec.structs import replace

from pixdict.dict import messages
from pixdict.dict.cids import cid_of
from pixdict.dict.claims import (
    Action,
    Claim,
    ClaimStatus,
    ClaimType,
    Ends,
    ExtendedClaim,
    Move,
    Role,
    claim_violations,
    decide,
    ends_of,
)
from pixdict.dict.entries import Entry, Reason
from pixdict.dict.keys import normalised
from pixdict.dict.problems import DirectoryRefused
from pixdict.directory.context import Context, random_uuid
from pixdict.directory.entries import check_key_limit, check_request_id, store_new_entry
from pixdict.directory.storage import StoredClaim


def create_claim(context: Context, asked: messages.CreateClaimRequest) -> messages.CreateClaimResponse:
    """Open a claim. The entry stays as it is until the donor confirms."""
    claim = asked.claim
    if violations := claim_violations(claim, check_digits=context.settings.check_digits):
        raise DirectoryRefused("ClaimInvalid", "fields are invalid", violations=violations)
    participant = claim.claimer_account.participant
    context.check_acts_for(participant)
    claim = replace(claim, key=normalised(claim.key_type, claim.key))
    donor, owned_since = _donor_of(context, claim)
    check_key_limit(context, claim.claimer_account, claim.claimer)
    ends = ends_of(claim.type, context.moment)
    made = ExtendedClaim(
        type=claim.type,
        key=claim.key,
        key_type=claim.key_type,
        claimer_account=claim.claimer_account,
        claimer=claim.claimer,
        donor_participant=donor,
        id=random_uuid(),
        status=ClaimStatus.OPEN,
        resolution_period_end=ends.resolution,
        completion_period_end=ends.completion,
        last_modified=context.moment,
    )
    context.storage.put_claim(StoredClaim(made, context.moment, owned_since), context.now)
    return messages.CreateClaimResponse(claim=made, **context.envelope)


def _donor_of(context: Context, claim: Claim) -> tuple[str, Any]:
    """The participant that holds the key, and since when its owner has it. Refuses claims that make no sense."""
    if context.storage.unfinished_claim(claim.key) is not None:
        raise DirectoryRefused("ClaimAlreadyExistsForKey", "a claim for this key is not finished")
    stored = context.storage.entry(claim.key)
    if stored is None or stored.entry.key_type != claim.key_type:
        raise DirectoryRefused("ClaimKeyNotFound", "the key is not registered")
    entry = stored.entry
    same_owner = entry.owner.tax_id_number == claim.claimer.tax_id_number
    if same_owner and entry.account.participant == claim.claimer_account.participant:
        raise DirectoryRefused("ClaimResultingEntryAlreadyExists", "the claimer has this key at this participant")
    if same_owner is not (claim.type == ClaimType.PORTABILITY):
        right = ClaimType.PORTABILITY if same_owner else ClaimType.OWNERSHIP
        raise DirectoryRefused("ClaimTypeInconsistent", f"a claim for this key must be of type {right}")
    return entry.account.participant, entry.key_ownership_date


def _existing(context: Context, claim_id: UUID) -> StoredClaim:
    stored = context.storage.claim(claim_id)
    if stored is None:
        raise DirectoryRefused("NotFound", f"there is no claim {claim_id}")
    return stored


def get_claim(context: Context, claim_id: UUID) -> messages.GetClaimResponse:
    """One claim, for its two participants [?]."""
    claim = _existing(context, claim_id).claim
    if not any(map(context.acts_for, (claim.donor_participant, claim.claimer_account.participant))):
        raise DirectoryRefused("Forbidden", "this claim is of other participants")
    return messages.GetClaimResponse(claim=claim, **context.envelope)


class _Act(Struct, frozen=True):
    """What a participant asks of a claim."""

    action: Action
    claim_id: UUID
    participant: str
    reason: str | None = None


def acknowledge_claim(
    context: Context, claim_id: UUID, asked: messages.AcknowledgeClaimRequest
) -> messages.AcknowledgeClaimResponse:
    """The donor has seen the claim."""
    act = _Act(Action.ACKNOWLEDGE, asked.claim_id, asked.participant)
    stored, move = _decided(context, claim_id, act)
    return messages.AcknowledgeClaimResponse(claim=_moved(context, stored, move), **context.envelope)


def confirm_claim(
    context: Context, claim_id: UUID, asked: messages.ConfirmClaimRequest
) -> messages.ConfirmClaimResponse:
    """The donor gives the key away: its entry is removed at once."""
    act = _Act(Action.CONFIRM, asked.claim_id, asked.participant, asked.reason)
    stored, move = _decided(context, claim_id, act)
    changes: dict[str, Any] = {"confirm_reason": asked.reason}
    if move is not None:
        end = stored.claim.completion_period_end
        if end is not None and asked.reason == Reason.USER_REQUESTED:
            changes["completion_period_end"] = min(end, context.moment)
        entry = context.storage.entry(stored.claim.key)
        if entry is not None:
            context.storage.remove_entry(entry, context.now)
    return messages.ConfirmClaimResponse(claim=_moved(context, stored, move, **changes), **context.envelope)


def cancel_claim(context: Context, claim_id: UUID, asked: messages.CancelClaimRequest) -> messages.CancelClaimResponse:
    """The claim ends. What was confirmed is not restored."""
    act = _Act(Action.CANCEL, asked.claim_id, asked.participant, asked.reason)
    stored, move = _decided(context, claim_id, act)
    changes = {"cancel_reason": asked.reason, "cancelled_by": move.role} if move else {}
    return messages.CancelClaimResponse(claim=_moved(context, stored, move, **changes), **context.envelope)


def complete_claim(
    context: Context, claim_id: UUID, asked: messages.CompleteClaimRequest
) -> messages.CompleteClaimResponse:
    """The claimer takes the key: its entry is made."""
    check_request_id(asked.request_id)
    act = _Act(Action.COMPLETE, asked.claim_id, asked.participant)
    stored, move = _decided(context, claim_id, act, request_id=asked.request_id)
    claim = stored.claim
    if move is not None:
        if context.storage.request(asked.participant, asked.request_id) is not None:
            raise DirectoryRefused("RequestIdAlreadyUsed", f"RequestId {asked.request_id} was used for another entry")
        entry = Entry(key=claim.key, key_type=claim.key_type, account=claim.claimer_account, owner=claim.claimer)
        owned_since = stored.key_ownership_date if claim.type == ClaimType.PORTABILITY else None
        made = store_new_entry(context, entry, asked.request_id, cid_of(entry, asked.request_id), owned_since)
        stored = replace(
            stored,
            request_id=asked.request_id,
            entry_creation_date=made.entry.creation_date,
            key_ownership_date=made.entry.key_ownership_date,
        )
    claim = _moved(context, stored, move)
    return messages.CompleteClaimResponse(
        claim=claim,
        entry_creation_date=stored.entry_creation_date or context.moment,
        key_ownership_date=stored.key_ownership_date or context.moment,
        **context.envelope,
    )


def _decided(
    context: Context, claim_id: UUID, act: _Act, *, request_id: UUID | None = None
) -> tuple[StoredClaim, Move | None]:
    """The claim and its next move, or None when this very act was done before. Raises DirectoryRefused."""
    if act.claim_id != claim_id:
        raise DirectoryRefused("BadRequest", "the ClaimId of the path is not that of the body")
    context.check_acts_for(act.participant)
    stored = _existing(context, claim_id)
    claim = stored.claim
    roles = _roles(claim, act.participant)
    if roles and _was_done(stored, act, roles, request_id):
        return stored, None
    ends = Ends(
        claim.resolution_period_end, claim.completion_period_end, ends_of(claim.type, stored.created).possession
    )
    move = decide(claim.type, claim.status, act.action, roles, act.reason, context.moment, ends)
    if isinstance(move, Move):
        return stored, move
    what = f"{act.action} with {act.reason}" if act.reason else act.action
    raise DirectoryRefused(move, f"{act.participant} cannot {what} a claim of type {claim.type} that is {claim.status}")


def _roles(claim: ExtendedClaim, participant: str) -> frozenset[Role]:
    sides = {Role.DONOR: claim.donor_participant, Role.CLAIMER: claim.claimer_account.participant}
    return frozenset(role for role, side in sides.items() if side == participant)


def _was_done(stored: StoredClaim, act: _Act, roles: frozenset[Role], request_id: UUID | None) -> bool:
    """Whether the claim is as this act left it."""
    claim = stored.claim
    match act.action:
        case Action.ACKNOWLEDGE:
            return claim.status == ClaimStatus.WAITING_RESOLUTION and Role.DONOR in roles
        case Action.CONFIRM:
            same = claim.confirm_reason == act.reason
            return claim.status == ClaimStatus.CONFIRMED and same and Role.DONOR in roles
        case Action.CANCEL:
            same = claim.cancel_reason == act.reason
            return claim.status == ClaimStatus.CANCELLED and same and claim.cancelled_by in roles
        case Action.COMPLETE:
            same = stored.request_id == request_id
            return claim.status == ClaimStatus.COMPLETED and same and Role.CLAIMER in roles


def _moved(context: Context, stored: StoredClaim, move: Move | None, **changes: Any) -> ExtendedClaim:
    """The claim after its move, stored. Without a move it stays as it is."""
    if move is None:
        return stored.claim
    claim = replace(stored.claim, status=move.to, last_modified=context.moment, **changes)
    context.storage.put_claim(replace(stored, claim=claim), context.now)
    return claim
