"""What a scenario acts with: callers over HTTP, the parts of `pixdict dev`, and its ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpcore2
import msgspec
from msgspec import Struct

from batuta.clock import SystemClock
from batuta.ids import new_secret
from pixdict.connect.keys.models import EntryRow
from pixdict.dev.stand import ISPB, Stand
from pixdict.scenarios.ledger import Ledger

PATIENCE = 60.0
"""Seconds until something that should happen counts as not happening."""
_LOOK = 0.05
NETWORK_TIMEOUT = 60.0
ACCEPTED = "201 or 202"


class Missing(Exception):
    """A part that the scenario needs is not there. Says how to get it."""


class Overdue(Exception):
    """Something did not happen in time."""


class Said(Struct, frozen=True):
    """An answer to a caller."""

    status: int
    headers: dict[str, str]
    body: Any

    @property
    def error(self) -> str:
        return str(self.body.get("error", "")) if isinstance(self.body, dict) else ""

    @property
    def id(self) -> str:
        return str(self.body.get("entry_id", "")) if isinstance(self.body, dict) else ""


class Stage:
    """Of one play. Every key and account on it is new."""

    def __init__(self, stand: Stand, ledger: Ledger, pool: httpcore2.AsyncConnectionPool) -> None:
        self.stand, self.ledger, self._pool = stand, ledger, pool
        self._clock = SystemClock()
        self._began = self._clock.monotonic()
        self._seen_before = [*stand.directory.service.seen]
        self._token = ""
        self.asked, self.answers = 0, Counter[str]()
        """Creations of keys, and the statuses that callers got."""

    @classmethod
    @asynccontextmanager
    async def on(cls, stand: Stand, ledger: Ledger) -> AsyncIterator[Stage]:
        """With a session of its own. Raises Missing."""
        async with httpcore2.AsyncConnectionPool(max_connections=50) as pool:
            stage = cls(stand, ledger, pool)
            found = await stage.ask("GET", "/api/v1/session")
            if found.status != 200:
                raise Missing(
                    "there are API keys: scenarios act without one, play them in a `pixdict dev` of their own"
                )
            stage._token = found.body["csrf_token"]
            yield stage

    # -- telling

    @property
    def seconds(self) -> float:
        """Since the beginning."""
        return self._clock.monotonic() - self._began

    def say(self, text: str) -> None:
        """What is being done."""
        self.ledger.steps.append((self.seconds, text))

    # -- callers

    async def ask(self, method: str, path: str, body: Any = None, **headers: str) -> Said:
        """One request to core. `headers`: with underscores for hyphens."""
        sent = {"x-csrf-token": self._token} if method != "GET" else {}
        content = None
        if body is not None:
            content, sent["content-type"] = msgspec.json.encode(body), "application/json"
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        answer = await self._pool.request(
            method,
            self.stand.url + path,
            headers=list(sent.items()),
            content=content,
            extensions={"timeout": {"read": NETWORK_TIMEOUT}},
        )
        named = {name.decode().lower(): value.decode() for name, value in answer.headers}
        return Said(answer.status, named, msgspec.json.decode(answer.content) if answer.content else None)

    async def create(self, number: str, *, key: str = "") -> Said:
        """`POST /api/v1/keys` for a phone number. `key`: of idempotency."""
        self.asked += 1
        headers = {"idempotency_key": key} if key else {}
        said = await self.ask("POST", "/api/v1/keys", body_of(number), **headers)
        self.answers[str(said.status)] += 1
        if said.id:
            self.note_run(f"create-{said.id}")
        return said

    def note_run(self, id: str) -> None:
        """A run that took part."""
        if id not in self.ledger.runs:
            self.ledger.runs.append(id)

    # -- looking

    async def until(self, what: str, found: Callable[[], Awaitable[Any]], patience: float = PATIENCE) -> Any:
        """What is found, once it is something. Raises Overdue."""
        until = self.seconds + patience
        while not (value := await found()):
            if self.seconds > until:
                raise Overdue(f"{what}: not within {patience:.0f} s")
            await asyncio.sleep(_LOOK)
        return value

    async def rows(self, numbers: Sequence[str]) -> list[EntryRow]:
        """Our rows of these keys, past the cache."""
        wanted = set(numbers)
        return [row for row in await self.stand.tables.entries(limit=500) if row.entry.key in wanted]

    async def until_active(self, numbers: Sequence[str], count: int) -> None:
        """Until so many of them are ACTIVE, and none is PENDING."""

        async def done() -> bool:
            statuses = Counter(row.status for row in await self.rows(numbers))
            return statuses["ACTIVE"] == count and not statuses["PENDING"]

        await self.until(f"{count} entries are ACTIVE", done)

    def at_directory(self, operation: str) -> Counter[str]:
        """The answers that the directory gave to an operation during this play."""
        before = {id(one) for one in self._seen_before}
        seen = [one for one in self.stand.directory.service.seen if id(one) not in before]
        return Counter(str(one.status) for one in seen if one.operation == operation)

    # -- proving

    def expect(self, fact: str, expected: Any, seen: Any, *, ok: bool | None = None) -> None:
        self.ledger.expect(fact, expected, seen, ok=ok)

    async def prove(self, numbers: Sequence[str], entries: int, answers: dict[str, int] | None = None) -> None:
        """The lines that every scenario of keys has. `answers`: those that callers should have got, those to accepted
        work as "201 or 202"."""
        self.expect("requests asked = answers given", self.asked, sum(self.answers.values()))
        if answers is not None:
            self.expect("answers given to callers", answers, self._accepted_together())
        rows = await self.rows(numbers)
        there = {number: self.stand.directory.storage.entry(number) for number in numbers}
        stored = {number: one.cid for number, one in there.items() if one is not None}
        self.expect("entries in the directory", entries, len(stored))
        active = [row for row in rows if row.status == "ACTIVE"]
        self.expect("entries in our table, ACTIVE", entries, len(active))
        self.expect("entries in our table, PENDING", 0, sum(row.status == "PENDING" for row in rows))
        same = sum(stored.get(row.entry.key or "") == row.cid for row in active)
        self.expect("CIDs: ours are the directory's", f"{entries} the same", f"{same} the same")

    def _accepted_together(self) -> dict[str, int]:
        """A creation that takes longer than its caller waits is accepted, too."""
        told = Counter[str]()
        for status, count in self.answers.items():
            told[ACCEPTED if status in ("201", "202") else status] += count
        return dict(told)


def new_number() -> str:
    """A phone number that was never used."""
    return f"+5561{900_000_000 + int.from_bytes(new_secret(6)) % 100_000_000}"


def body_of(number: str) -> dict[str, Any]:
    """A creation. Each number has an account and an owner of its own: both may have few keys."""
    digits = number[-9:]
    return {
        "key_type": "PHONE",
        "key_value": number,
        "account": {
            "participant": ISPB,
            "branch": "0001",
            "account_number": digits,
            "account_type": "CACC",
            "opening_date": "2010-01-10T03:00:00Z",
        },
        "owner": {"type": "NATURAL_PERSON", "tax_id_number": f"11{digits}", "name": "Maria de Souza"},
    }
