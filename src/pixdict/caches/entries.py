"""Our own entries, for five minutes, by id and by key (C-02)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime

from msgspec import Struct

from batuta.cache import Cache, Entity
from pixdict.connect.keys.models import EntryRow
from pixdict.dict.entries import Entry

BY_ID = "dict:entry:id:{entry_id}"
BY_KEY = "dict:entry:key:{key_type}:{key_value}"
LIFETIME = 300.0


class CachedEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An entry, with the fields of document C, and more that our API shows."""

    id: str
    key_type: str
    key_value: str
    account_ispb: str
    account_number: str
    status: str
    created_at: datetime
    entry: Entry | None = None
    cid: str = ""
    problem: str = ""

    @classmethod
    def of(cls, row: EntryRow) -> CachedEntry:
        entry = row.entry
        return cls(
            id=row.id,
            key_type=entry.key_type,
            key_value=entry.key or "",
            account_ispb=entry.account.participant,
            account_number=entry.account.account_number,
            status=row.status,
            created_at=row.created_at or entry.account.opening_date,
            entry=entry,
            cid=row.cid,
            problem=row.problem,
        )


Load = Callable[[], Awaitable[CachedEntry | None]]
"""Reads it from the database. It may be called without a waiting caller, to have a new value before the old one
ends: so it opens a connection of its own."""


class EntryCache:
    """Written after the change is durable, deleted when an entry goes or changes its status. The database decides."""

    def __init__(self, cache: Cache) -> None:
        self._by_id = Entity(cache, BY_ID, CachedEntry, lifetime=LIFETIME)
        self._by_key = Entity(cache, BY_KEY, CachedEntry, lifetime=LIFETIME)

    async def put(self, entry: CachedEntry) -> None:
        """Write it under both keys. A key may have had several entries: unless this one is active, the database says at
        the next look which of them is meant."""
        key = {"key_type": entry.key_type, "key_value": entry.key_value}
        writes = [self._by_id.put(entry, entry_id=entry.id)]
        if entry.key_value:  # an EVP has none until the directory has made it
            is_active = entry.status == "ACTIVE"
            writes.append(self._by_key.put(entry, **key) if is_active else self._by_key.delete(**key))
        await asyncio.gather(*writes)

    async def by_id(self, id: str, load: Load) -> CachedEntry | None:
        """The entry, from the cache or loaded."""
        return await self._by_id.get_or_load(load, entry_id=id)

    async def by_key(self, key_type: str, key_value: str, load: Load) -> CachedEntry | None:
        """The entry of a key, from the cache or loaded."""
        return await self._by_key.get_or_load(load, key_type=key_type, key_value=key_value)

    async def delete(self, entry: CachedEntry) -> None:
        """Drop it, after it was deleted or changed its status."""
        deletes = [self._by_id.delete(entry_id=entry.id)]
        if entry.key_value:
            deletes.append(self._by_key.delete(key_type=entry.key_type, key_value=entry.key_value))
        await asyncio.gather(*deletes)
