"""Reconciliation: verifiers, changes of the set of identifiers, entries by identifier."""

from __future__ import annotations

import re

from batuta.clock import as_datetime
from pixdict.dict import messages
from pixdict.dict.keys import KeyType
from pixdict.dict.problems import DirectoryRefused, Violation
from pixdict.directory.context import Context
from pixdict.directory.query import Page

_HEX = re.compile(r"[0-9a-fA-F]{64}")


def create_sync_verification(
    context: Context, asked: messages.CreateSyncVerificationRequest
) -> messages.CreateSyncVerificationResponse:
    """Compare a participant's verifier with ours."""
    given = asked.sync_verification
    check_key_type(given.key_type)
    if not _HEX.fullmatch(given.participant_sync_verifier):
        raise DirectoryRefused("BadRequest", "ParticipantSyncVerifier must have 64 hexadecimal digits")
    context.check_acts_for(given.participant)
    ours = context.storage.vsync(given.participant, given.key_type)
    result = "OK" if ours == given.participant_sync_verifier.lower() else "NOK"
    verification = messages.ExtendedSyncVerification(
        participant=given.participant,
        key_type=given.key_type,
        participant_sync_verifier=given.participant_sync_verifier,
        id=context.storage.add_verification(given.participant, given.key_type, ours, result, context.now),
        result=result,
    )
    return messages.CreateSyncVerificationResponse(sync_verification=verification, **context.envelope)


def check_key_type(key_type: str) -> None:
    """Raises DirectoryRefused."""
    if key_type not in KeyType.__members__:
        wrong = Violation(reason="unknown key type", value=key_type, property="keyType")
        raise DirectoryRefused("BadRequest", "KeyType is invalid", violations=[wrong])


def list_cid_set_events(
    context: Context, participant: str, key_type: str, page: Page
) -> messages.ListCidSetEventsResponse:
    """Changes in the order of their times. Without any, both verifiers are that at the end of the window."""
    check_key_type(key_type)
    context.check_acts_for(participant)
    end = min(page.before, context.now)
    found = context.storage.events(participant, key_type, page.after, end, page.limit + 1)
    events = found[: page.limit]
    at_end = context.storage.vsync_at(participant, key_type, end)
    return messages.ListCidSetEventsResponse(
        has_more_elements=len(found) > page.limit,
        participant=participant,
        key_type=key_type,
        start_time=as_datetime(events[0].at if events else min(page.after, end)),
        end_time=as_datetime(events[-1].at if events else end),
        sync_verifier_start=events[0].vsync if events else at_end,
        sync_verifier_end=events[-1].vsync if events else at_end,
        cid_set_events=[
            messages.CidSetEvent(type=event.type, cid=event.cid, timestamp=as_datetime(event.at)) for event in events
        ],
        **context.envelope,
    )


def get_entry_by_cid(context: Context, cid: str) -> messages.GetEntryByCidResponse:
    """The live entry with that identifier, for the participant that holds it [?]."""
    if not _HEX.fullmatch(cid):
        raise DirectoryRefused("BadRequest", "a CID has 64 hexadecimal digits")
    stored = context.storage.entry_of_cid(cid.lower())
    if stored is None:
        raise DirectoryRefused("NotFound", "no live entry has this CID")
    if not context.acts_for(stored.entry.account.participant):
        raise DirectoryRefused("Forbidden", "the entry is held by another participant")
    return messages.GetEntryByCidResponse(
        cid=stored.cid, entry=stored.entry, request_id=stored.request_id, **context.envelope
    )
