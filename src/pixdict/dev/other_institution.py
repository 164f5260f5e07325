"""What another institution does to ours, as actions of the page Simulator: it has keys, and claims one of ours."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Literal
from uuid import UUID

from msgspec import Meta, Struct

from batuta import Batuta
from batuta.errors import InvalidInput
from batuta.ids import new_secret
from batuta.server import Action
from pixdict.bridge import BridgeClient
from pixdict.dict.claims import Claim
from pixdict.dict.entries import Account, Entry, Person
from pixdict.dict.keys import key_type_of
from pixdict.directory import Directory
from pixdict.errors import BridgeError, BridgeUnavailable, InvalidArgument, NotFound, RateLimited

_FAILURES = (BridgeError, BridgeUnavailable, InvalidArgument, NotFound, RateLimited)

Key = Annotated[str, Meta(min_length=1, max_length=77)]


class HasKey(Struct, kw_only=True, forbid_unknown_fields=True):
    key: Key = "+5561977776666"
    tax_id_number: str = "11122233300"
    name: str = "João Silva"


class ClaimsKey(Struct, kw_only=True, forbid_unknown_fields=True):
    key: Key = "+5561988887777"
    kind: Literal["OWNERSHIP", "PORTABILITY"] = "PORTABILITY"


def actions_of(directory: Directory, speaks: BridgeClient, ispb: str) -> list[Action]:
    """`speaks`: to the Bridge of the other institution."""
    account = Account(
        participant=ispb,
        branch="0002",
        account_number="0000123456",
        account_type="CACC",
        opening_date=datetime(2012, 3, 4, 3, tzinfo=UTC),
    )

    async def create(_: Batuta, given: HasKey) -> str:
        kind = "NATURAL_PERSON" if len(given.tax_id_number) == 11 else "LEGAL_PERSON"
        owner = Person(type=kind, tax_id_number=given.tax_id_number, name=given.name)
        entry = Entry(key=given.key, key_type=str(key_type_of(given.key)), account=account, owner=owner)
        try:
            await speaks.create_entry(entry, reason="USER_REQUESTED", request_id=_request_id())
        except _FAILURES as error:
            raise InvalidInput(str(error)) from error
        return f"Institution {ispb} has {given.key} now: POST /api/v1/claims claims it."

    async def claim(batuta: Batuta, given: ClaimsKey) -> str:
        found = directory.storage.entry(given.key)
        if found is None:
            raise InvalidInput(f"key {given.key!r} is not in the directory: create it first")
        entry = found.entry
        claimer = Person(type="NATURAL_PERSON", tax_id_number="99988877766", name="Maria Souza")
        wanted = Claim(
            type=given.kind,
            key=given.key,
            key_type=entry.key_type,
            claimer_account=account,
            claimer=entry.owner if given.kind == "PORTABILITY" else claimer,
        )
        try:
            opened = await speaks.create_claim(wanted, request_id=_request_id())
        except _FAILURES as error:
            raise InvalidInput(str(error)) from error
        await batuta.schedules.trigger("poll-claims")
        return f"Claim {opened.id} is open: see the page Claims."

    return [
        Action(title="Others create a key", form=HasKey, act=create, about=f"Institution {ispb} creates one."),
        Action(title="Others claim a key", form=ClaimsKey, act=claim, about=f"Institution {ispb} claims one of ours."),
    ]


def _request_id() -> UUID:
    return UUID(bytes=new_secret(16), version=4)
