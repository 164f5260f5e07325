"""The JSON of keys and claims: what comes in, and what goes out. Names of fields are those of document C."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from msgspec import Meta, Struct

from pixdict.caches import CachedClaim, CachedEntry
from pixdict.dict.claims import Claim
from pixdict.dict.entries import Account, Entry, Moment, Person
from pixdict.dict.keys import normalised

Key = Annotated[str, Meta(max_length=200)] | None
"""An idempotency key in a body."""


class AccountBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An account of ours."""

    participant: str
    """The ISPB."""
    branch: str | None = None
    account_number: str
    account_type: str
    opening_date: Moment

    def account(self) -> Account:
        return Account(**{name: getattr(self, name) for name in self.__struct_fields__})

    @classmethod
    def of(cls, account: Account) -> AccountBody:
        return cls(**{name: getattr(account, name) for name in account.__struct_fields__})


class PersonBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A person (CPF) or a company (CNPJ)."""

    type: str
    tax_id_number: str
    name: str
    trade_name: str | None = None

    def person(self) -> Person:
        return Person(**{name: getattr(self, name) for name in self.__struct_fields__})

    @classmethod
    def of(cls, person: Person) -> PersonBody:
        return cls(**{name: getattr(person, name) for name in person.__struct_fields__})


class CreateKeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key to create. The directory makes those of type EVP."""

    key_type: str
    key_value: str | None = None
    account: AccountBody
    owner: PersonBody
    reason: str = "USER_REQUESTED"
    idempotency_key: Key = None

    def entry(self) -> Entry:
        key = None if self.key_value is None else normalised(self.key_type, self.key_value)
        return Entry(key=key, key_type=self.key_type, account=self.account.account(), owner=self.owner.person())


class UpdateKeyBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of an entry."""

    account: AccountBody | None = None
    owner: PersonBody | None = None
    reason: str = "USER_REQUESTED"
    idempotency_key: Key = None


class CreateClaimBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key of others to claim."""

    type: str
    key_type: str
    key_value: str
    account: AccountBody
    claimer: PersonBody
    idempotency_key: Key = None

    def claim(self) -> Claim:
        return Claim(
            type=self.type,
            key=normalised(self.key_type, self.key_value),
            key_type=self.key_type,
            claimer_account=self.account.account(),
            claimer=self.claimer.person(),
        )


class ActBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to do to a claim."""

    reason: str = "USER_REQUESTED"
    idempotency_key: Key = None


class EntryAnswer(Struct, frozen=True, kw_only=True):
    """What became of a request for an entry."""

    entry_id: str
    status: str


class ClaimAnswer(Struct, frozen=True, kw_only=True):
    """What became of a request for a claim."""

    claim_id: str
    status: str


class EntryView(Struct, frozen=True, kw_only=True):
    """An entry of ours."""

    id: str
    key_type: str
    key_value: str
    account_ispb: str
    account_number: str
    status: str
    created_at: datetime
    account: AccountBody
    owner: PersonBody
    cid: str = ""
    problem: str = ""
    """Why it failed, or why the last request for it did."""

    @classmethod
    def of(cls, cached: CachedEntry) -> EntryView:
        entry = cached.entry
        assert entry is not None  # noqa: S101 - `CachedEntry.of` gives it
        return cls(
            id=cached.id,
            key_type=cached.key_type,
            key_value=cached.key_value,
            account_ispb=cached.account_ispb,
            account_number=cached.account_number,
            status=cached.status,
            created_at=cached.created_at,
            account=AccountBody.of(entry.account),
            owner=PersonBody.of(entry.owner),
            cid=cached.cid,
            problem=cached.problem,
        )


class EntryList(Struct, frozen=True, kw_only=True):
    """Entries, the newest first."""

    keys: list[EntryView]
    cursor: str | None
    """Gets the next page; null: that was the last."""


class ClaimView(Struct, frozen=True, kw_only=True):
    """A claim of either side."""

    id: str
    external_id: str
    """The directory's."""
    workflow_id: str
    entry_id: str | None
    """Ours, while we have the key."""
    side: str
    type: str
    key_type: str
    key_value: str
    claimer_ispb: str
    owner_ispb: str
    """"": the directory has not said it yet."""
    status: str
    expires_at: datetime | None
    completion_period_days: int | None
    created_at: datetime | None
    problem: str = ""

    @classmethod
    def of(cls, cached: CachedClaim) -> ClaimView:
        found = {name: getattr(cached, name) for name in cls.__struct_fields__}
        return cls(**found | {"entry_id": cached.entry_id or None})


class ClaimList(Struct, frozen=True, kw_only=True):
    """Claims, the newest first."""

    claims: list[ClaimView]
    cursor: str | None


def cursor_of(rows: list[Any], limit: int) -> str | None:
    """Where the next page begins. There is one when this one is full."""
    if len(rows) < limit or rows[-1].created_at is None:
        return None
    time = rows[-1].created_at.astimezone(UTC).isoformat().replace("+00:00", "Z")  # a + in a URL is a space
    return f"{time}|{rows[-1].id}"
