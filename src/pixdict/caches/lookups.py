"""Keys of other institutions, looked up through the Bridge.

The rules of the directory: only keys of legal persons may be kept, for 180 seconds at most and never longer than its
answer says, and an answer that is older is not used even where no other can be had.
"""

from __future__ import annotations

import hashlib
from datetime import datetime, timedelta
from typing import Final, Literal, Protocol

from msgspec import Struct

from batuta.cache import Cache, Entity
from batuta.clock import as_datetime
from pixdict.dict.entries import LEGAL_PERSON, ExtendedEntry
from pixdict.dict.keys import KeyType, key_type_of, normalised
from pixdict.errors import InvalidArgument
from pixdict.readings import LookUp

BY_KEY = "dict:lookup:key:{key_hash}"
LONGEST: Final = 180
"""Seconds that a look-up may be kept."""
_CALL: Final = 25.0
"""Seconds: longer than a call of the Bridge takes."""


class LookupBridge(Protocol):
    """The part of the Bridge's client that is needed."""

    async def get_entry(self, key: str, *, payer_id: str, end_to_end_id: str) -> LookUp: ...


class Found(Struct, frozen=True, kw_only=True):
    """A look-up, and where it comes from."""

    entry: ExtendedEntry
    source: Literal["bridge", "cache"]
    age: float
    """Seconds since the Bridge was asked."""


class _Kept(Struct, frozen=True, kw_only=True):
    entry: ExtendedEntry
    asked_at: datetime
    until: datetime


class Lookups:
    """Look-ups. No value is loaded before the old one ends: each costs the payer a token, so each look-up has
    a waiting caller."""

    def __init__(self, cache: Cache, bridge: LookupBridge) -> None:
        self._bridge, self._clock = bridge, cache.clock
        self._kept = Entity(cache, BY_KEY, _Kept, lifetime=LONGEST, lifetime_of=self._left, early=0, load_time=_CALL)

    async def find(self, key: str, *, payer_id: str, end_to_end_id: str) -> Found:
        """The entry of a key. What is kept is an answer also while the Bridge is away. Raises what the Bridge's client
        does, and InvalidArgument for what is no key."""
        key_type = key_type_of(key)
        if key_type is None:
            raise InvalidArgument(f"key {key[:80]!r} is no key: a CPF, CNPJ, phone, e-mail address or EVP")
        ours: list[_Kept] = []
        asked = False

        async def ask() -> _Kept | None:
            nonlocal asked
            asked = True
            ours.append(await self._ask(key, payer_id, end_to_end_id))
            return ours[0] if self._left(ours[0]) > 0 else None

        if key_type == KeyType.CPF:  # of a natural person
            await ask()
            return self._found(ours[0], "bridge")
        key_hash = hash_of(key)
        try:
            kept = await self._kept.get_or_load(ask, key_hash=key_hash)
        except Exception:
            if asked:
                raise
            kept = None  # somebody else's look-up failed: that may have been for lack of tokens of another payer
        if ours:
            return self._found(ours[0], "bridge")
        if kept is not None and self._left(kept) > 0:
            return self._found(kept, "cache")
        if await ask() is not None:
            await self._kept.put(ours[0], key_hash=key_hash)
        return self._found(ours[0], "bridge")

    async def delete(self, key: str) -> None:
        """Drop what is kept of a key, which is known to have changed."""
        await self._kept.delete(key_hash=hash_of(key))

    async def _ask(self, key: str, payer_id: str, end_to_end_id: str) -> _Kept:
        asked_at = self._now()
        answer = await self._bridge.get_entry(key, payer_id=payer_id, end_to_end_id=end_to_end_id)
        may_be_kept = answer.entry.owner.type == LEGAL_PERSON
        seconds = max(0, min(answer.max_age, LONGEST)) if may_be_kept else 0
        return _Kept(entry=answer.entry, asked_at=asked_at, until=asked_at + timedelta(seconds=seconds))

    def _found(self, kept: _Kept, source: Literal["bridge", "cache"]) -> Found:
        return Found(entry=kept.entry, source=source, age=max(0.0, (self._now() - kept.asked_at).total_seconds()))

    def _left(self, kept: _Kept) -> float:
        return (kept.until - self._now()).total_seconds()

    def _now(self) -> datetime:
        return as_datetime(self._clock.now())


def hash_of(key: str) -> str:
    """What stands in the cache in place of the key."""
    key_type = key_type_of(key)
    return hashlib.sha256(normalised(key_type or "", key).encode()).hexdigest()
