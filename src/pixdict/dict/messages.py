"""Every request and answer of the directory's API: one struct is one document."""

from __future__ import annotations

from typing import Annotated
from uuid import UUID

from msgspec import Struct

from pixdict.dict.claims import Claim, ExtendedClaim
from pixdict.dict.entries import Account, Entry, ExtendedEntry, Moment, Person
from pixdict.dict.xml import Attribute, Text, items


class _Request(Struct, frozen=True, kw_only=True, rename="pascal"):
    pass


class _Answer(Struct, frozen=True, kw_only=True, rename="pascal"):
    """Begins with when it was made, and an id to find it by."""

    response_time: Moment
    correlation_id: str


# Entries


class CreateEntryRequest(_Request, frozen=True, kw_only=True):
    entry: Entry
    reason: str
    request_id: UUID


class CreateEntryResponse(_Answer, frozen=True, kw_only=True):
    entry: ExtendedEntry


class UpdateEntryRequest(_Request, frozen=True, kw_only=True):
    key: str
    account: Account | None = None
    owner: Person | None = None
    reason: str


class UpdateEntryResponse(_Answer, frozen=True, kw_only=True):
    entry: ExtendedEntry


class DeleteEntryRequest(_Request, frozen=True, kw_only=True):
    key: str
    participant: str
    reason: str


class DeleteEntryResponse(_Answer, frozen=True, kw_only=True):
    key: str


# Statistics


class Windows(Struct, frozen=True, kw_only=True):
    """Counts of 90 days, 12 months and 60 months."""

    d90: Annotated[int, Attribute] = 0
    m12: Annotated[int, Attribute] = 0
    m60: Annotated[int, Attribute] = 0


class Settlements(Struct, frozen=True, kw_only=True, rename="pascal"):
    watermark: Moment
    settlements: Windows = Windows()


class FraudMarkers(Struct, frozen=True, kw_only=True, rename="pascal"):
    watermark: Moment
    application_frauds: Windows = Windows()
    mule_accounts: Windows = Windows()
    scammer_accounts: Windows = Windows()
    other_frauds: Windows = Windows()
    unknown_frauds: Windows = Windows()
    total_fraud_transaction_amount: Windows = Windows()
    distinct_fraud_reporters: Windows = Windows()


class InfractionReports(Struct, frozen=True, kw_only=True, rename="pascal"):
    watermark: Moment
    open_reports: int = 0
    open_reports_distinct_reporters: int = 0
    rejected_reports: Windows = Windows()


class PersonEntries(Struct, frozen=True, kw_only=True, rename="pascal"):
    watermark: Moment
    registered_accounts: int = 0


class KeyEntries(Struct, frozen=True, kw_only=True, rename="pascal"):
    watermark: Moment
    distinct_accounts: Windows = Windows()


class PersonStatistics(Struct, frozen=True, kw_only=True, rename="pascal"):
    spi: Settlements
    fraud_markers: FraudMarkers
    infraction_reports: InfractionReports
    entries: PersonEntries


class KeyStatistics(Struct, frozen=True, kw_only=True, rename="pascal"):
    spi: Settlements
    fraud_markers: FraudMarkers
    infraction_reports: InfractionReports
    entries: KeyEntries


class GetEntryResponse(_Answer, frozen=True, kw_only=True):
    entry: ExtendedEntry
    owner_statistics: PersonStatistics | None = None
    key_statistics: KeyStatistics | None = None


class GetEntryStatisticsResponse(_Answer, frozen=True, kw_only=True):
    key: str
    owner_statistics: PersonStatistics
    key_statistics: KeyStatistics


class GetPersonStatisticsResponse(_Answer, frozen=True, kw_only=True):
    tax_id_number: str
    person_statistics: PersonStatistics


# Existence


class CheckKeysRequest(_Request, frozen=True, kw_only=True):
    keys: Annotated[list[str], items("Key")]


class CheckedKey(Struct, frozen=True, kw_only=True, rename="camel"):
    """A key and whether it is registered."""

    key: Annotated[str, Text]
    has_entry: Annotated[bool, Attribute]


class CheckKeysResponse(_Answer, frozen=True, kw_only=True):
    keys: Annotated[list[CheckedKey], items("Key")]


# Claims


class CreateClaimRequest(_Request, frozen=True, kw_only=True):
    claim: Claim


class CreateClaimResponse(_Answer, frozen=True, kw_only=True):
    claim: ExtendedClaim


class AcknowledgeClaimRequest(_Request, frozen=True, kw_only=True):
    claim_id: UUID
    participant: str


class AcknowledgeClaimResponse(_Answer, frozen=True, kw_only=True):
    claim: ExtendedClaim


class ConfirmClaimRequest(_Request, frozen=True, kw_only=True):
    claim_id: UUID
    participant: str
    reason: str


class ConfirmClaimResponse(_Answer, frozen=True, kw_only=True):
    claim: ExtendedClaim


class CancelClaimRequest(_Request, frozen=True, kw_only=True):
    claim_id: UUID
    participant: str
    reason: str


class CancelClaimResponse(_Answer, frozen=True, kw_only=True):
    claim: ExtendedClaim


class CompleteClaimRequest(_Request, frozen=True, kw_only=True):
    claim_id: UUID
    participant: str
    request_id: UUID


class CompleteClaimResponse(_Answer, frozen=True, kw_only=True):
    claim: ExtendedClaim
    entry_creation_date: Moment
    key_ownership_date: Moment


class GetClaimResponse(_Answer, frozen=True, kw_only=True):
    claim: ExtendedClaim


class ListClaimsResponse(_Answer, frozen=True, kw_only=True):
    has_more_elements: bool
    claims: Annotated[list[ExtendedClaim], items("Claim")] = []


# Reconciliation


class SyncVerification(Struct, frozen=True, kw_only=True, rename="pascal"):
    participant: str
    key_type: str
    participant_sync_verifier: str


class ExtendedSyncVerification(Struct, frozen=True, kw_only=True, rename="pascal"):
    participant: str
    key_type: str
    participant_sync_verifier: str
    id: int
    result: str
    """OK or NOK"""


class CreateSyncVerificationRequest(_Request, frozen=True, kw_only=True):
    sync_verification: SyncVerification


class CreateSyncVerificationResponse(_Answer, frozen=True, kw_only=True):
    sync_verification: ExtendedSyncVerification


class CidSetEvent(Struct, frozen=True, kw_only=True, rename="pascal"):
    type: str
    """ADDED or REMOVED"""
    cid: str
    timestamp: Moment


class ListCidSetEventsResponse(_Answer, frozen=True, kw_only=True):
    has_more_elements: bool
    participant: str
    key_type: str
    start_time: Moment
    end_time: Moment
    sync_verifier_start: str
    sync_verifier_end: str
    cid_set_events: Annotated[list[CidSetEvent], items("CidSetEvent")] = []


class GetEntryByCidResponse(_Answer, frozen=True, kw_only=True):
    cid: str
    entry: ExtendedEntry
    request_id: UUID


# Policies


class Policy(Struct, frozen=True, kw_only=True, rename="pascal"):
    """The state of one bucket. `available_tokens` may be negative."""

    available_tokens: int
    capacity: int
    refill_tokens: int
    refill_period_sec: int
    name: str


class ListPoliciesResponse(_Answer, frozen=True, kw_only=True):
    category: str
    policies: Annotated[list[Policy], items("Policy")]


class GetPolicyResponse(_Answer, frozen=True, kw_only=True):
    category: str
    policy: Policy
