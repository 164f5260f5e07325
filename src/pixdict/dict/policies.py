"""Rate limits of the directory: which policies there are, and how large their buckets are.

The numbers are those of the official API document. Clients trust the numbers that `/policies/` returns, never these.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

MINUTE, DAY = 60, 86_400
CATEGORIES = "ABCDEFGH"
"""Letters of a participant's category."""


class Scope(StrEnum):
    """Who shares a bucket: all users of a participant, or one user of a participant."""

    PSP = "PSP"
    USER = "USER"


class Limit(Struct, frozen=True):
    """The size of a bucket: `refill` tokens come back each `period` (seconds), up to `capacity`."""

    refill: int
    capacity: int
    period: int = MINUTE


class PolicyRule(Struct, frozen=True):
    """One policy. `limits` has one limit for all (""), or one for each category ("A" to "H") or kind of payer."""

    name: str
    limits: Mapping[str, Limit]
    scope: Scope = Scope.PSP

    def limit(self, variant: str) -> Limit:
        """The limit for a category, or for "PF" and "PJ"."""
        return self.limits.get(variant) or self.limits[""]


ENTRIES_READ_USER_ANTISCAN = "ENTRIES_READ_USER_ANTISCAN"
ENTRIES_READ_USER_ANTISCAN_V2 = "ENTRIES_READ_USER_ANTISCAN_V2"
ENTRIES_READ_PARTICIPANT_ANTISCAN = "ENTRIES_READ_PARTICIPANT_ANTISCAN"

PERSON, COMPANY = "PF", "PJ"
_USER = {PERSON: Limit(2, 100), COMPANY: Limit(20, 1_000)}
_BY_CATEGORY = {
    "A": Limit(25_000, 50_000),
    "B": Limit(20_000, 40_000),
    "C": Limit(15_000, 30_000),
    "D": Limit(8_000, 16_000),
    "E": Limit(2_500, 5_000),
    "F": Limit(250, 500),
    "G": Limit(25, 250),
    "H": Limit(2, 50),
}
_SAME_FOR_ALL = {
    "ENTRIES_WRITE": Limit(1_200, 36_000),
    "ENTRIES_UPDATE": Limit(600, 600),
    "CLAIMS_READ": Limit(600, 18_000),
    "CLAIMS_WRITE": Limit(1_200, 36_000),
    "CLAIMS_LIST_WITH_ROLE": Limit(40, 200),
    "CLAIMS_LIST_WITHOUT_ROLE": Limit(10, 50),
    "SYNC_VERIFICATIONS_WRITE": Limit(10, 50),
    "CIDS_FILES_WRITE": Limit(40, 200, DAY),
    "CIDS_FILES_READ": Limit(10, 50),
    "CIDS_EVENTS_LIST": Limit(20, 100),
    "CIDS_ENTRIES_READ": Limit(1_200, 36_000),
    "INFRACTION_REPORTS_READ": Limit(600, 18_000),
    "INFRACTION_REPORTS_WRITE": Limit(1_200, 36_000),
    "INFRACTION_REPORTS_LIST_WITH_ROLE": Limit(40, 200),
    "INFRACTION_REPORTS_LIST_WITHOUT_ROLE": Limit(10, 50),
    "KEYS_CHECK": Limit(70, 70),
    "REFUNDS_READ": Limit(1_200, 36_000),
    "REFUNDS_WRITE": Limit(2_400, 72_000),
    "REFUND_LIST_WITH_ROLE": Limit(40, 200),
    "REFUND_LIST_WITHOUT_ROLE": Limit(10, 50),
    "FRAUD_MARKERS_READ": Limit(600, 18_000),
    "FRAUD_MARKERS_WRITE": Limit(1_200, 36_000),
    "FRAUD_MARKERS_LIST": Limit(600, 18_000),
    "PERSONS_STATISTICS_READ": Limit(12_000, 36_000),
    "POLICIES_READ": Limit(60, 200),
    "POLICIES_LIST": Limit(6, 20),
    "EVENT_LIST": Limit(40, 200),
}

OFFICIAL: Mapping[str, PolicyRule] = {
    rule.name: rule
    for rule in (
        PolicyRule(ENTRIES_READ_USER_ANTISCAN, _USER, Scope.USER),
        PolicyRule(ENTRIES_READ_USER_ANTISCAN_V2, _USER, Scope.USER),
        PolicyRule(ENTRIES_READ_PARTICIPANT_ANTISCAN, _BY_CATEGORY),
        PolicyRule("ENTRIES_STATISTICS_READ", _BY_CATEGORY),
        *(PolicyRule(name, {"": limit}) for name, limit in _SAME_FOR_ALL.items()),
    )
}
"""The policies of version 2.12.1: 29 of participants and two of their users."""


def policies(overrides: Mapping[str, Limit | Mapping[str, Limit]] | None = None) -> dict[str, PolicyRule]:
    """The official table with other limits for some policies; a name that is not in the table is a new policy."""
    table = dict(OFFICIAL)
    for name, given in (overrides or {}).items():
        limits = {"": given} if isinstance(given, Limit) else given
        table[name] = replace(table[name], limits=limits) if name in table else PolicyRule(name, limits)
    return table


def payer_kind(payer_id: str) -> str:
    """Whether a payer is a person (CPF, 11 digits) or a company (CNPJ)."""
    return PERSON if len(payer_id) == 11 else COMPANY
