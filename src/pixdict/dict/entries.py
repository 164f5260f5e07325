"""Entries: a key, the account it leads to, and who owns it; and what the directory takes as one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated

from msgspec import Meta, Struct

from pixdict.dict.headers import ISPB
from pixdict.dict.keys import KeyType, has_valid_check_digits, is_key
from pixdict.dict.problems import Violation

Moment = Annotated[datetime, Meta(tz=True)]
"""A time with its zone."""


class Account(Struct, frozen=True, kw_only=True, rename="pascal"):
    """An account that payments go to."""

    participant: str
    branch: str | None = None
    account_number: str
    account_type: str
    opening_date: Moment


class Person(Struct, frozen=True, kw_only=True, rename="pascal"):
    """Who owns or claims a key: a person (CPF) or a company (CNPJ)."""

    type: str
    tax_id_number: str
    name: str
    trade_name: str | None = None


class Entry(Struct, frozen=True, kw_only=True, rename="pascal"):
    """A key and where it leads. `key` is absent when the directory shall make one (EVP)."""

    key: str | None = None
    key_type: str
    account: Account
    owner: Person


class ExtendedEntry(Struct, frozen=True, kw_only=True, rename="pascal"):
    """An entry as the directory returns it."""

    key: str
    key_type: str
    account: Account
    owner: Person
    creation_date: Moment
    key_ownership_date: Moment
    open_claim_creation_date: Moment | None = None


NATURAL_PERSON, LEGAL_PERSON = "NATURAL_PERSON", "LEGAL_PERSON"
ACCOUNT_TYPES = frozenset({"CACC", "TRAN", "SLRY", "SVGS", "OTHR"})
KEYS_PER_ACCOUNT = {NATURAL_PERSON: 5, LEGAL_PERSON: 20}


class Reason(StrEnum):
    """Why an entry or a claim is changed."""

    USER_REQUESTED = "USER_REQUESTED"
    ACCOUNT_CLOSURE = "ACCOUNT_CLOSURE"
    BRANCH_TRANSFER = "BRANCH_TRANSFER"
    DEFAULT_OPERATION = "DEFAULT_OPERATION"
    RECONCILIATION = "RECONCILIATION"
    FRAUD = "FRAUD"
    RFB_VALIDATION = "RFB_VALIDATION"


CREATE_REASONS = frozenset({Reason.USER_REQUESTED, Reason.RECONCILIATION})
UPDATE_REASONS = CREATE_REASONS | {Reason.BRANCH_TRANSFER, Reason.RFB_VALIDATION}
UPDATE_REASONS_EVP = UPDATE_REASONS - {Reason.USER_REQUESTED}
DELETE_REASONS = CREATE_REASONS | {Reason.ACCOUNT_CLOSURE, Reason.FRAUD, Reason.RFB_VALIDATION}

_BRANCH = re.compile(r"[0-9]{1,4}")
_ACCOUNT_NUMBER = re.compile(r"[a-zA-Z0-9]{1,20}")
_PERSON_NAME = re.compile(r"[A-Za-zÀ-ÖØ-öø-ÿ' -]+")
_COMPANY_NAME = re.compile(r"[\u0020-\u007E\u00A1-\u00FF]+")
_TAX_ID = {NATURAL_PERSON: re.compile(r"[0-9]{11}"), LEGAL_PERSON: re.compile(r"[0-9]{14}")}
_NAME = {NATURAL_PERSON: _PERSON_NAME, LEGAL_PERSON: _COMPANY_NAME}
_MAX_NAME, _MAX_TRADE_NAME = 150, 100
_FIRST_YEAR = 1000
"""Of those with four digits."""


def account_identity(account: Account) -> str:
    """What makes two accounts the same one; the opening date does not."""
    parts = (account.participant, account.branch or "", account.account_number, account.account_type)
    return "&".join(parts)


def key_violations(key_type: str, key: str, where: str, *, check_digits: bool = False) -> Iterator[Violation]:
    """What is wrong with a key; `where` is the path of the element that holds it."""
    if key_type not in KeyType.__members__:
        yield Violation(reason="unknown key type", value=key_type, property=f"{where}Type")
    elif not is_key(key_type, key):
        yield Violation(reason=f"is not a key of type {key_type}", value=key, property=where)
    elif check_digits and not has_valid_check_digits(key_type, key):
        yield Violation(reason="wrong check digits", value=key, property=where)


def account_violations(account: Account, where: str) -> Iterator[Violation]:
    """What is wrong with an account."""
    if not ISPB.fullmatch(account.participant):
        yield Violation(reason="is not an ISPB", value=account.participant, property=f"{where}.participant")
    if account.branch is not None and not _BRANCH.fullmatch(account.branch):
        yield Violation(reason="must have 1 to 4 digits", value=account.branch, property=f"{where}.branch")
    if not _ACCOUNT_NUMBER.fullmatch(account.account_number):
        number = account.account_number
        yield Violation(reason="must have 1 to 20 letters or digits", value=number, property=f"{where}.accountNumber")
    if account.account_type not in ACCOUNT_TYPES:
        yield Violation(reason="unknown account type", value=account.account_type, property=f"{where}.accountType")
    if not is_spelled_in_utc(account.opening_date):
        date = account.opening_date.isoformat()
        yield Violation(reason="is not of the years 1000 to 9999", value=date, property=f"{where}.openingDate")


def is_spelled_in_utc(moment: datetime) -> bool:
    """Whether documents and databases can hold a time. A zone may move it out of the calendar."""
    try:
        return moment.astimezone(UTC).year >= _FIRST_YEAR
    except OverflowError:
        return False


def person_violations(person: Person, where: str) -> Iterator[Violation]:
    """What is wrong with an owner or claimer."""
    if person.type not in _TAX_ID:
        yield Violation(reason="unknown type of person", value=person.type, property=f"{where}.type")
        return
    if not _TAX_ID[person.type].fullmatch(person.tax_id_number):
        number = person.tax_id_number
        yield Violation(reason=f"does not fit a {person.type}", value=number, property=f"{where}.taxIdNumber")
    if len(person.name) > _MAX_NAME or not _NAME[person.type].fullmatch(person.name):
        yield Violation(reason=f"is not a name of a {person.type}", value=person.name, property=f"{where}.name")
    trade_name = person.trade_name
    if trade_name is None:
        return
    if person.type == NATURAL_PERSON:
        yield Violation(reason="only companies have one", value=trade_name, property=f"{where}.tradeName")
    elif len(trade_name) > _MAX_TRADE_NAME or not _COMPANY_NAME.fullmatch(trade_name) or not trade_name.strip("*"):
        yield Violation(reason="is not a trade name", value=trade_name, property=f"{where}.tradeName")


def entry_violations(entry: Entry, *, check_digits: bool = False) -> list[Violation]:
    """All that is wrong with an entry that shall be created."""
    found: list[Violation] = []
    if entry.key_type == KeyType.EVP:
        if entry.key is not None:
            found.append(Violation(reason="the directory makes this key", value=entry.key, property="entry.key"))
    elif entry.key is None:
        found.append(Violation(reason="is missing", property="entry.key"))
    else:
        found += key_violations(entry.key_type, entry.key, "entry.key", check_digits=check_digits)
    found += account_violations(entry.account, "entry.account")
    found += person_violations(entry.owner, "entry.owner")
    return found
