"""Our claims, for a minute: whole, their status alone, and which an entry has (C-03)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from datetime import datetime
from typing import Final

from msgspec import Struct

from batuta.cache import Cache, Entity, MemberSet
from batuta.clock import as_datetime
from pixdict.connect.keys.models import ClaimRow
from pixdict.dict.claims import POSSESSION_PERIOD, ClaimType

BY_ID = "dict:claim:id:{claim_id}"
STATUS = "dict:claim:status:{claim_id}"
OF_ENTRY = "dict:claim:index:entry:{entry_id}"
LIFETIME, INDEX_LIFETIME = 60.0, 300.0
ENDED: Final = frozenset({"CANCELLED", "COMPLETED", "FAILED"})
EXPIRED: Final = "EXPIRED"
"""Not of the directory: the time of the claim is over, and somebody has to act."""
_WHOLE: Final = ""
"""A member of the index that no claim is called: the others are all the claims of the entry."""


class CachedClaim(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A claim, with the fields of document C, and more that our API shows."""

    id: str
    workflow_id: str
    entry_id: str
    """Empty while there is no entry of ours."""
    claimer_ispb: str
    owner_ispb: str
    status: str
    expires_at: datetime | None = None
    completion_period_days: int | None = None
    external_id: str = ""
    """The directory's."""
    side: str = ""
    type: str = ""
    key_type: str = ""
    key_value: str = ""
    created_at: datetime | None = None
    problem: str = ""

    @classmethod
    def of(cls, row: ClaimRow, entry_id: str = "") -> CachedClaim:
        claim = row.claim
        return cls(
            id=row.id,
            workflow_id=row.run,
            entry_id=entry_id,
            claimer_ispb="" if claim is None else claim.claimer_account.participant,
            owner_ispb=row.donor,
            status=row.status,
            expires_at=row.expires_at,
            completion_period_days=POSSESSION_PERIOD.days if claim and claim.type == ClaimType.OWNERSHIP else None,
            external_id=row.directory_id,
            side=row.side,
            type="" if claim is None else claim.type,
            key_type="" if claim is None else claim.key_type,
            key_value=row.key,
            created_at=row.created_at,
            problem=row.problem,
        )

    def status_at(self, now: datetime) -> str:
        """EXPIRED for one whose time is over, otherwise its status."""
        waits = self.status not in ENDED and self.status != "CONFIRMED"
        return EXPIRED if waits and self.expires_at is not None and self.expires_at <= now else self.status


Load = Callable[[], Awaitable[CachedClaim | None]]
"""Reads it from the database. See `pixdict.caches.entries.Load`."""


class ClaimCache:
    """Written after the change is durable, deleted when a claim ends. The database decides."""

    def __init__(self, cache: Cache) -> None:
        self._clock = cache.clock
        self._by_id = Entity(cache, BY_ID, CachedClaim, lifetime=LIFETIME)
        self._status = Entity(cache, STATUS, str, lifetime=LIFETIME)
        self._of_entry = MemberSet(cache, OF_ENTRY, lifetime=INDEX_LIFETIME)

    async def put(self, claim: CachedClaim) -> None:
        """Write it, its status, and its place among the claims of its entry. One that has ended is dropped."""
        if claim.status in ENDED:
            await self.delete(claim)
            return
        writes = [
            self._by_id.put(claim, claim_id=claim.id),
            self._status.put(self._status_of(claim), claim_id=claim.id),
        ]
        if claim.entry_id:
            writes.append(self._of_entry.add(claim.id, entry_id=claim.entry_id))
        await asyncio.gather(*writes)

    async def by_id(self, id: str, load: Load) -> CachedClaim | None:
        """The claim, from the cache or loaded."""
        return await self._by_id.get_or_load(load, claim_id=id)

    async def status(self, id: str, load: Load) -> str | None:
        """Its status alone, from the cache or of the claim that is loaded."""

        async def status() -> str | None:
            claim = await load()
            return None if claim is None else self._status_of(claim)

        return await self._status.get_or_load(status, claim_id=id)

    async def of_entry(self, entry_id: str, load: Callable[[], Awaitable[Iterable[str]]]) -> set[str]:
        """The ids of the claims of an entry, from the cache or loaded. A claim that is written during the load is in
        the answer of the next look: both only add."""
        found = await self._of_entry.members(entry_id=entry_id)
        if _WHOLE not in found:
            found = set(await load())
            await self._of_entry.add(_WHOLE, *found, entry_id=entry_id)
        return found - {_WHOLE}

    async def delete(self, claim: CachedClaim) -> None:
        """Drop it, and what is known of the claims of its entry."""
        deletes = [self._by_id.delete(claim_id=claim.id), self._status.delete(claim_id=claim.id)]
        if claim.entry_id:
            deletes.append(self._of_entry.delete(entry_id=claim.entry_id))
        await asyncio.gather(*deletes)

    def _status_of(self, claim: CachedClaim) -> str:
        return claim.status_at(as_datetime(self._clock.now()))
