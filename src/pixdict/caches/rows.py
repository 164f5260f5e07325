"""Our rows in the caches: written through as they change, and read through them."""

from __future__ import annotations

import logging

from pixdict.caches.claims import CachedClaim, ClaimCache
from pixdict.caches.entries import CachedEntry, EntryCache
from pixdict.connect.keys.models import ClaimRow, EntryRow, EntryStatus
from pixdict.connect.keys.tables import KeyTables

log = logging.getLogger("pixdict.caches")


class RowCaches:
    """For `KeyTables(..., watch=...)`. Only an active entry and an open claim are written: what is under way will
    change within seconds, perhaps in another process, so it is dropped, and the next look reads the table."""

    def __init__(self, entries: EntryCache, claims: ClaimCache, tables: KeyTables) -> None:
        self._entries, self._claims, self._tables = entries, claims, tables

    async def entry_changed(self, row: EntryRow) -> None:
        cached = CachedEntry.of(row)
        await (self._entries.put(cached) if is_settled(row) else self._entries.delete(cached))

    async def claim_changed(self, row: ClaimRow) -> None:
        try:
            entry = await self._tables.entry_of_key(row.key)
        except Exception as error:  # noqa: BLE001 - the change is durable, so it must not fail for this
            log.warning("the entry of claim %s cannot be read: %r", row.id, error)
            entry = None
        cached = CachedClaim.of(row, "" if entry is None else entry.id)
        await (self._claims.put(cached) if is_open(row) else self._claims.delete(cached))


def is_settled(row: EntryRow) -> bool:
    """Nothing is under way that would change it."""
    return row.status == EntryStatus.ACTIVE and (not row.request or row.outcome is not None)


def is_open(row: ClaimRow) -> bool:
    """The directory has it, and nothing that a person asked is under way."""
    opened = row.status in ("OPEN", "WAITING_RESOLUTION", "CONFIRMED")
    return opened and (not row.request or row.outcome is not None)
