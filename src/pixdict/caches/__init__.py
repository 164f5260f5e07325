"""What pixdict keeps in Redis for a while: entries, claims, the state of runs of claims, and look-ups.

Without Redis everything goes on, only slower: the database has the last word.
"""

from __future__ import annotations

from msgspec import Struct

from batuta.cache import Cache
from pixdict.caches.claims import CachedClaim, ClaimCache
from pixdict.caches.entries import CachedEntry, EntryCache
from pixdict.caches.limits import LIMITS, Limits
from pixdict.caches.lookups import Found, LookupBridge, Lookups
from pixdict.caches.workflows import WorkflowMetadata, WorkflowStates

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
    "WorkflowMetadata",
    "WorkflowStates",
    "open_caches",
]


class Caches(Struct, frozen=True, kw_only=True, eq=False):
    """All of them, in one cache."""

    entries: EntryCache
    claims: ClaimCache
    workflows: WorkflowStates
    """Middleware for `connect(middleware=[...])`."""
    lookups: Lookups | None
    """None where there is no Bridge to ask."""


def open_caches(cache: Cache, bridge: LookupBridge | None = None) -> Caches:
    """The caches of a process. Close `cache` after the client and workers that use them."""
    return Caches(
        entries=EntryCache(cache),
        claims=ClaimCache(cache),
        workflows=WorkflowStates(cache),
        lookups=None if bridge is None else Lookups(cache, bridge),
    )
