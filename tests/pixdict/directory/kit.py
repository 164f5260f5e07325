"""Participants that ask a directory in the same process. Every answer is checked against the official file."""

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote
from uuid import UUID, uuid4

from msgspec import Struct

from batuta.clock import SECOND, ManualClock
from pixdict.dict import messages, signatures, xml
from pixdict.dict.claims import Claim
from pixdict.dict.entries import Account, Entry, Person
from pixdict.dict.operations import OPERATIONS
from pixdict.dict.problems import Problem
from pixdict.directory.requests import Reply, Request
from pixdict.directory.service import Service
from pixdict.directory.settings import DirectorySettings
from pixdict.directory.storage import Storage
from tests.pixdict.directory import openapi

A, B, C = "12345678", "87654321", "55555555"
START = 1_767_312_000 * SECOND
"""2 January 2026, 00:00 UTC: the beginning of a minute and of a day."""
OPENED = datetime(2010, 1, 10, 3, tzinfo=UTC)
CPF, CNPJ, PHONE, EMAIL = "11122233300", "11222333000181", "+5561988887777", "mail@mail.com"
DAY = 86_400


def account(participant: str = A, number: str = "0007654321", **changes: Any) -> Account:
    fields: dict[str, Any] = {"branch": "0001", "account_type": "CACC", "opening_date": OPENED} | changes
    return Account(participant=participant, account_number=number, **fields)


def person(tax_id: str = CPF, name: str = "João Silva") -> Person:
    kind = "NATURAL_PERSON" if len(tax_id) == 11 else "LEGAL_PERSON"
    return Person(type=kind, tax_id_number=tax_id, name=name)


def create(
    key: str | None = PHONE,
    key_type: str = "PHONE",
    *,
    at: Account | None = None,
    owner: Person | None = None,
    reason: str = "USER_REQUESTED",
    request_id: UUID | None = None,
) -> messages.CreateEntryRequest:
    entry = Entry(key=key, key_type=key_type, account=at or account(), owner=owner or person())
    return messages.CreateEntryRequest(entry=entry, reason=reason, request_id=request_id or uuid4())


def claim(
    kind: str = "OWNERSHIP",
    key: str = PHONE,
    key_type: str = "PHONE",
    *,
    at: Account | None = None,
    claimer: Person | None = None,
) -> messages.CreateClaimRequest:
    other = claimer or person(CPF if kind == "PORTABILITY" else "99988877766", "Maria Souza")
    made = Claim(type=kind, key=key, key_type=key_type, claimer_account=at or account(B), claimer=other)
    return messages.CreateClaimRequest(claim=made)


class Answer:
    """What came back."""

    def __init__(self, operation: str, reply: Reply) -> None:
        openapi.check(operation, reply.status, reply.content_type, reply.body)
        self.status, self.headers, self.body = reply.status, reply.headers, reply.body
        kind: type[Struct] = OPERATIONS[operation].response if reply.status < 400 else Problem
        self.message: Any = xml.from_bytes(kind, reply.body, strict=True)

    @property
    def problem(self) -> str:
        """The name of the problem; "" when there is none."""
        return self.message.name if isinstance(self.message, Problem) else ""

    @property
    def wrong(self) -> list[str | None]:
        """The fields that a problem names."""
        return [violation.property for violation in self.message.violations or ()]


class Bank:
    """A participant."""

    def __init__(self, service: Service, ispb: str, signer: signatures.Signer | None = None) -> None:
        self.service, self.ispb, self.signer = service, ispb, signer

    def ask(
        self,
        operation: str,
        message: Struct | bytes | None = None,
        *,
        value: str = "",
        headers: Mapping[str, str] | None = None,
        **parameters: Any,
    ) -> Answer:
        """One request. `value` is the variable part of the path."""
        found = OPERATIONS[operation]
        path = re.sub(r"{\w+}", quote(value, safe=""), found.path)
        sent = {"PI-RequestingParticipant": self.ispb} if headers is None else headers
        request = Request(
            method=found.method,
            path="/api/v2" + path,
            parameters={name: one if isinstance(one, list) else [str(one)] for name, one in parameters.items()},
            headers={name.lower(): one for name, one in sent.items()},
            body=self._bytes(message),
        )
        return Answer(operation, self.service.handle(request))

    def _bytes(self, message: Struct | bytes | None) -> bytes:
        if message is None or isinstance(message, bytes):
            return message or b""
        root = xml.to_element(message)
        return xml.serialised(signatures.sign(root, self.signer) if self.signer else root)

    def create(self, *arguments: Any, **options: Any) -> Answer:
        return self.ask("createEntry", create(*arguments, **{"at": account(self.ispb)} | options))

    def look_up(self, key: str, payer: str = CPF, payment: str = "", **parameters: Any) -> Answer:
        headers = {
            "PI-RequestingParticipant": self.ispb,
            "PI-PayerId": payer,
            "PI-EndToEndId": payment or f"E{uuid4().hex[:31]}",
        }
        return self.ask("getEntry", value=key, headers=headers, **parameters)

    def delete(self, key: str, reason: str = "USER_REQUESTED", participant: str = "") -> Answer:
        message = messages.DeleteEntryRequest(key=key, participant=participant or self.ispb, reason=reason)
        return self.ask("deleteEntry", message, value=key)

    def claim(self, *arguments: Any, **options: Any) -> Answer:
        return self.ask("createClaim", claim(*arguments, **{"at": account(self.ispb)} | options))

    def act(self, action: str, claim_id: UUID, reason: str | None = None, request_id: UUID | None = None) -> Answer:
        kind: Any = OPERATIONS[f"{action}Claim"].request
        fields: dict[str, Any] = {"claim_id": claim_id, "participant": self.ispb}
        if action in ("confirm", "cancel"):
            fields["reason"] = reason
        if action == "complete":
            fields["request_id"] = request_id or uuid4()
        return self.ask(f"{action}Claim", kind(**fields), value=str(claim_id))

    def tokens(self, policy: str, payer: str = "") -> int:
        return self.service.balance(policy, self.ispb, payer)


def service(settings: DirectorySettings | None = None, path: Any = ":memory:") -> Service:
    """A directory whose clock stands still."""
    return Service(settings or DirectorySettings(), Storage(path), ManualClock(START))
