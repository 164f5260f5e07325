"""Entries, claims and look-ups for tests of caches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec.structs import replace

from batuta.cache import Cache, RedisCache, RedisOptions
from batuta.clock import ManualClock, as_datetime
from batuta.testing.valkey import ValkeyServer
from pixdict.caches import CachedClaim, CachedEntry
from pixdict.dict.entries import Account, ExtendedEntry, Person
from pixdict.errors import RateLimited
from pixdict.readings import LookUp

CREATED = datetime(2025, 10, 25, 10, tzinfo=UTC)
ENTRY = CachedEntry(
    id="550e8400-e29b-41d4-a716-446655440000",
    key_type="CPF",
    key_value="12345678900",
    account_ispb="00000000",
    account_number="12345-6",
    status="ACTIVE",
    created_at=CREATED,
)
CLAIM = CachedClaim(
    id="c1234567-89ab-cdef-0123-456789abcdef",
    workflow_id="claim-workflow-123",
    entry_id=ENTRY.id,
    claimer_ispb="11111111",
    owner_ispb="00000000",
    status="OPEN",
    expires_at=datetime(2125, 11, 24, 10, tzinfo=UTC),
    completion_period_days=30,
)
DAY = timedelta(days=1)
COMPANY = Person(type="LEGAL_PERSON", tax_id_number="12345678000195", name="Padaria Ltda")
HUMAN = Person(type="NATURAL_PERSON", tax_id_number="11122233300", name="João Silva")
PHONE, CPF = "+5511987654321", "11122233300"
ASK: dict[str, Any] = {"payer_id": "11122233300", "end_to_end_id": "E12345678202611181200abcdefghijk"}


class Rows:
    """A database of one row, which counts how often it is read."""

    def __init__(self, row: Any) -> None:
        self.row, self.reads = row, 0

    async def __call__(self) -> Any:
        self.reads += 1
        await asyncio.sleep(0)
        return self.row


class FakeBridge:
    """Answers with `owner`'s entry, or raises what is in `away`."""

    def __init__(self, clock: ManualClock | None = None, owner: Person = COMPANY, max_age: int = 180) -> None:
        self.clock, self.owner, self.max_age = clock or ManualClock(), owner, max_age
        self.asked: list[tuple[str, str, str]] = []
        self.away: Exception | None = None
        self.poor: set[str] = set()
        """Payers without tokens."""
        self.takes = 0.0
        """Seconds by the clock."""
        self.free = asyncio.Event()
        self.free.set()

    async def get_entry(self, key: str, *, payer_id: str, end_to_end_id: str) -> LookUp:
        self.asked.append((key, payer_id, end_to_end_id))
        await self.free.wait()
        if self.away is not None:
            raise self.away
        if payer_id in self.poor:
            raise RateLimited(60.0, "RateLimited")
        self.clock.advance(self.takes)
        return looked_up(key, self.owner, self.max_age, as_datetime(self.clock.now()))


def looked_up(key: str, owner: Person, max_age: int, at: datetime) -> LookUp:
    account = Account(participant="87654321", account_number="9", account_type="CACC", opening_date=CREATED)
    entry = ExtendedEntry(
        key=key, key_type="PHONE", account=account, owner=owner, creation_date=CREATED, key_ownership_date=CREATED
    )
    return LookUp(response_time=at, correlation_id="a" * 32, entry=entry, max_age=max_age)


def later(claim: CachedClaim, **changes: Any) -> CachedClaim:
    return replace(claim, **changes)


HASTY = RedisOptions(pool_size=20, min_idle=1, retries=0, dial_timeout=1, read_timeout=1)


@asynccontextmanager
async def breakable() -> AsyncIterator[tuple[Cache, ValkeyServer]]:
    """A cache in a Valkey that the test may stop."""
    with ValkeyServer() as server:
        backend = await RedisCache.connect(server.url, HASTY)
        async with Cache(backend, timeout=1, failures=3, retry_after=0.02) as cache:
            yield cache, server
