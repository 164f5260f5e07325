"""Where core reads entries and claims: the cache, then the tables, then the replica while the tables are away."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar
from uuid import UUID

from batuta.resilience.degradation import AWAY, Reading, read_from
from pixdict.caches import CachedClaim, CachedEntry, ClaimCache, EntryCache
from pixdict.caches.rows import is_open, is_settled
from pixdict.connect.keys import KeyTables
from pixdict.connect.keys.models import ClaimRow, EntryRow
from pixdict.dict.keys import KeyType, key_type_of, normalised_key
from pixdict.errors import DatabaseTimeout

T = TypeVar("T")
Through = Callable[[Callable[[], Awaitable[T | None]]], Awaitable[T | None]]
"""`get_or_load` of a cache, with its key."""
_LONGEST_ID = 100
"""Of a claim of ours; longer ones come from outside, and the cache would refuse them."""


class Reads:
    """Of one core. `caches`: entries and claims; None reads the tables each time."""

    def __init__(
        self, tables: KeyTables, replica: KeyTables | None, caches: tuple[EntryCache, ClaimCache] | None
    ) -> None:
        self._caches = caches
        self._entry_of_id = _reader(KeyTables.entry, tables, replica)
        self._entry_of_key = _reader(KeyTables.entry_of_key, tables, replica)
        self._entries = _reader(KeyTables.entries, tables, replica)
        self._claim = _reader(KeyTables.claim, tables, replica)
        self._claims = _reader(KeyTables.claims, tables, replica)
        self._entry_ids = _reader(KeyTables.entry_ids, tables, replica)

    async def entry(self, id: str) -> Reading[CachedEntry | None]:
        """By our id, or by the value of the key."""
        key, is_uuid = normalised_key(id), _is_uuid(id)
        key_type = key_type_of(key)
        found: Reading[CachedEntry | None] | None = None
        if is_uuid or key_type is None:
            found = await self._entry(id)
            if found.value is not None:
                return found
        by_key = await self._entry_by_key(key, key_type)
        return by_key if by_key.value is not None or found is None else found

    async def _entry(self, id: str) -> Reading[CachedEntry | None]:
        async def read() -> tuple[Reading[CachedEntry | None], bool]:
            return _entry_of(await self._entry_of_id(id))

        if self._caches is None or not _is_uuid(id):
            return (await read())[0]
        entries = self._caches[0]
        return await _cached(lambda load: entries.by_id(id, load), read)

    async def _entry_by_key(self, key: str, key_type: KeyType | None) -> Reading[CachedEntry | None]:
        async def read() -> tuple[Reading[CachedEntry | None], bool]:
            return _entry_of(await self._entry_of_key(key))

        if self._caches is None or key_type is None:
            return (await read())[0]
        entries = self._caches[0]
        return await _cached(lambda load: entries.by_key(key_type, key, load), read)

    async def entries(self, **wanted: Any) -> Reading[list[CachedEntry]]:
        """The newest first."""
        found: Reading[list[EntryRow]] = await self._entries(**wanted)
        return Reading(value=[CachedEntry.of(row) for row in found.value], source=found.source)

    async def claim(self, id: str) -> Reading[CachedClaim | None]:
        """By our id."""

        async def read() -> tuple[Reading[CachedClaim | None], bool]:
            found: Reading[ClaimRow | None] = await self._claim(id)
            if (row := found.value) is None:
                return Reading(value=None, source=found.source), False
            entry = (await self.entry(row.key)).value if row.key else None
            claim = CachedClaim.of(row, "" if entry is None else entry.id)
            return Reading(value=claim, source=found.source), is_open(row)

        if self._caches is None or len(id) > _LONGEST_ID:
            return (await read())[0]
        claims = self._caches[1]
        return await _cached(lambda load: claims.by_id(id, load), read)

    async def claims(self, **wanted: Any) -> Reading[list[CachedClaim]]:
        """The newest first."""
        found: Reading[list[ClaimRow]] = await self._claims(**wanted)
        ids = (await self._entry_ids([row.key for row in found.value])).value
        return Reading(value=[CachedClaim.of(row, ids.get(row.key, "")) for row in found.value], source=found.source)


def _entry_of(found: Reading[EntryRow | None]) -> tuple[Reading[CachedEntry | None], bool]:
    """What is shown, and whether it may be kept."""
    row = found.value
    shown = None if row is None else CachedEntry.of(row)
    return Reading(value=shown, source=found.source), row is not None and is_settled(row)


async def _cached(
    through: Through[T], read: Callable[[], Awaitable[tuple[Reading[T | None], bool]]]
) -> Reading[T | None]:
    """From the cache, or read. A replica may be behind: what it says is not kept."""
    ours: list[Reading[T | None]] = []

    async def load() -> T | None:
        found, may_be_kept = await read()
        ours.append(found)
        return found.value if may_be_kept and found.source == "primary" else None

    kept = await through(load)
    if ours:
        return ours[0]
    return (await read())[0] if kept is None else Reading(value=kept, source="primary")


def _is_uuid(id: str) -> bool:
    try:
        return str(UUID(id)) == id
    except ValueError:
        return False


def _reader(read: Callable[..., Awaitable[Any]], primary: KeyTables, replica: KeyTables | None) -> Any:
    """Reads from the replica while the primary is away, if there is one."""

    async def first(*args: Any, **wanted: Any) -> Any:
        return await read(primary, *args, **wanted)

    async def second(*args: Any, **wanted: Any) -> Any:
        return await read(replica, *args, **wanted)

    async def alone(*args: Any, **wanted: Any) -> Reading[Any]:
        return Reading(value=await first(*args, **wanted), source="primary")

    return alone if replica is None else read_from(first, second, errors=(*AWAY, DatabaseTimeout))
