"""A directory that answers as a test says, over real HTTP, and a Bridge in front of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import Struct

from batuta import connect
from batuta.cache import Cache
from pixdict.bridge import Bridge, BridgeClient, BridgeSettings, serve
from pixdict.dict import messages, xml
from pixdict.dict.claims import Claim, ExtendedClaim
from pixdict.dict.entries import Account, Entry, ExtendedEntry, Person
from pixdict.dict.policies import OFFICIAL, Scope
from pixdict.dict.problems import DirectoryRefused

ISPB = "12345678"
NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
REQUEST = UUID("a946d533-7f22-42a5-9a9b-e87cd55c0f4d")
OTHER = UUID("b946d533-7f22-42a5-9a9b-e87cd55c0f4d")
CLAIM = UUID("c946d533-7f22-42a5-9a9b-e87cd55c0f4d")
E2E = "E12345678202611181200abcdefghijk"

ACCOUNT = Account(
    participant=ISPB,
    branch="0001",
    account_number="123",
    account_type="CACC",
    opening_date=datetime(2020, 1, 1, tzinfo=UTC),
)
OWNER = Person(type="NATURAL_PERSON", tax_id_number="11122233300", name="João Silva")
KEY = "+5511987654321"
ENTRY = Entry(key=KEY, key_type="PHONE", account=ACCOUNT, owner=OWNER)
WANTED = Claim(type="PORTABILITY", key="+5511987654321", key_type="PHONE", claimer_account=ACCOUNT, claimer=OWNER)
EXTENDED = ExtendedEntry(
    key="+5511987654321", key_type="PHONE", account=ACCOUNT, owner=OWNER, creation_date=NOW, key_ownership_date=NOW
)
CLAIMED = ExtendedClaim(
    type="PORTABILITY",
    key="+5511987654321",
    key_type="PHONE",
    claimer_account=ACCOUNT,
    claimer=OWNER,
    donor_participant="87654321",
    id=CLAIM,
    status="OPEN",
    resolution_period_end=NOW,
    last_modified=NOW,
)
ENVELOPE: dict[str, Any] = {"response_time": NOW, "correlation_id": "a" * 32}


class Asked(NamedTuple):
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Raw(NamedTuple):
    """An answer as bytes."""

    status: int
    body: bytes
    headers: str = ""


DROP, SILENCE = "drop", "silence"
"""Read the request and close the connection, or say nothing."""

Answer = Struct | Raw | DirectoryRefused | str


def policies(**balances: int) -> messages.ListPoliciesResponse:
    """The official policies of category A, full but for some."""
    found = []
    for name, rule in OFFICIAL.items():
        if rule.scope is Scope.PSP:
            limit = rule.limit("A" if "A" in rule.limits else "")
            tokens = balances.get(name, limit.capacity)
            found.append(
                messages.Policy(
                    name=name,
                    available_tokens=tokens,
                    capacity=limit.capacity,
                    refill_tokens=limit.refill,
                    refill_period_sec=limit.period,
                )
            )
    return messages.ListPoliciesResponse(category="A", policies=found, **ENVELOPE)


class FakeDirectory:
    """`answers[(method, path)]` is a list: the last one is given again and again."""

    def __init__(self) -> None:
        self.answers: dict[tuple[str, str], list[Answer]] = {("GET", "/api/v2/policies/"): [policies()]}
        self.asked: list[Asked] = []
        self.url = ""

    def on(self, method: str, path: str, *answers: Answer) -> None:
        self.answers[method, path] = list(answers)

    def times(self, path: str) -> int:
        return sum(one.path.partition("?")[0] == path for one in self.asked)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (head := await _head(reader)) is not None:
                line, *rest = head.split("\r\n")
                headers = {name.lower(): value for name, _, value in (one.partition(": ") for one in rest if one)}
                method, path, _ = line.split(" ")
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                self.asked.append(Asked(method, path, headers, body))
                answer = self._answer(method, path.partition("?")[0])
                if answer == DROP:
                    return
                if answer == SILENCE:
                    await asyncio.sleep(30)
                writer.write(_written(answer))
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def _answer(self, method: str, path: str) -> Answer:
        found = self.answers.get((method, path))
        if not found:
            return DirectoryRefused("NotFound")
        return found.pop(0) if len(found) > 1 else found[0]


async def _head(reader: asyncio.StreamReader) -> str | None:
    try:
        return (await reader.readuntil(b"\r\n\r\n")).decode().removesuffix("\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None


def _written(answer: Any) -> bytes:
    status, kind, more = 200, "application/xml", ""
    if isinstance(answer, Raw):
        status, body, more = answer
    elif isinstance(answer, DirectoryRefused):
        status, kind, body = answer.status, "application/problem+xml", xml.to_bytes(answer.problem())
        more = f"Retry-After: {answer.retry_after}\r\n" if answer.retry_after else ""
    else:
        body = xml.to_bytes(answer)
    head = f"HTTP/1.1 {status} -\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{more}\r\n"
    return head.encode() + body


@asynccontextmanager
async def directory() -> AsyncIterator[FakeDirectory]:
    fake = FakeDirectory()
    server = await asyncio.start_server(fake.serve, "127.0.0.1", 0)
    fake.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    try:
        yield fake
    finally:
        server.close()


class Stand(NamedTuple):
    directory: FakeDirectory
    bridge: Bridge
    client: BridgeClient
    batuta: Any


@asynccontextmanager
async def stand(
    *, store: str = "memory://", fake: FakeDirectory | None = None, cache: Cache | None = None, **settings: Any
) -> AsyncIterator[Stand]:
    """A directory, a Bridge and a client. Waits between attempts are short."""
    async with directory() as made, connect(store) as batuta:
        used = fake or made
        given = BridgeSettings(
            **{"directory": used.url, "participant": ISPB, "first_wait": 0.001, "timeout": 2.0, **settings}
        )
        async with serve(given, batuta, cache=cache, grace=0.0) as bridge, BridgeClient(bridge.address) as client:
            yield Stand(used, bridge, client, batuta)


Act = Callable[[BridgeClient], Any]
