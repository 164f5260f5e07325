"""What pixdict keeps in Redis for a while: entries, claims, the state of runs of claims, and look-ups.

Without Redis everything goes on, only slower: the database has the last word.
"""

from __future__ import annotations

from msgspec import Struct

from batuta.cache import Cache, Entity
from batuta.resilience.idempotency import KeptAnswer
from pixdict.caches.claims import CachedClaim, ClaimCache
from pixdict.caches.entries import CachedEntry, EntryCache
from pixdict.caches.limits import LIMITS, Limits
from pixdict.caches.lookups import Found, LookupBridge, Lookups
from pixdict.caches.rows import RowCaches
from pixdict.caches.workflows import WorkflowMetadata, WorkflowStates
from pixdict.connect.keys.tables import KeyTables

ANSWERS = "core:idempotency:{request_id}"

__all__ = [
    "LIMITS",
    "CachedClaim",
    "CachedEntry",
    "Caches",
    "ClaimCache",
    "EntryCache",
    "Found",
    "Limits",
    "Lookups",
    "RowCaches",
    "WorkflowMetadata",
    "WorkflowStates",
    "open_caches",
]


class Caches(Struct, frozen=True, kw_only=True, eq=False):
    """All of them, in one cache."""

    cache: Cache

    entries: EntryCache
    claims: ClaimCache
    workflows: WorkflowStates
    """Middleware for `connect(middleware=[...])`."""
    lookups: Lookups | None
    """None where there is no Bridge to ask."""

    def rows(self, tables: KeyTables) -> RowCaches:
        """For `KeyTables(watch=...)`: what changes in the tables changes here."""
        return RowCaches(self.entries, self.claims, tables)

    def answers(self, keep: float) -> Entity[KeptAnswer]:
        """Answers to idempotency keys of core, as long as the store keeps them."""
        return Entity(self.cache, ANSWERS, KeptAnswer, lifetime=keep, early=0)


def open_caches(cache: Cache, bridge: LookupBridge | None = None) -> Caches:
    """The caches of a process. Close `cache` after the client and workers that use them."""
    return Caches(
        cache=cache,
        entries=EntryCache(cache),
        claims=ClaimCache(cache),
        workflows=WorkflowStates(cache),
        lookups=None if bridge is None else Lookups(cache, bridge),
    )
