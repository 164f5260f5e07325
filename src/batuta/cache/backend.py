"""The interface of a place where a cache keeps its bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from msgspec import Struct


class CacheInfo(Struct, frozen=True, kw_only=True):
    """How the place itself is doing."""

    kind: str
    keys: int
    memory_used: int
    """Bytes."""
    memory_max: int
    """Bytes; 0 if there is no limit."""
    evicted: int
    """Values dropped for lack of memory since it began."""
    hits: int = 0
    misses: int = 0
    """Look-ups of single keys by all clients since the server began."""


class CacheBackend(Protocol):
    """Every value has a lifetime. Times are seconds. Whatever goes wrong is raised; the cache above decides."""

    @property
    def where(self) -> str:
        """Where it is, without passwords."""
        ...

    async def get(self, key: str) -> bytes | None: ...

    async def get_with_lifetime(self, key: str) -> tuple[bytes, float] | None:
        """The value, and for how long it will still be there."""
        ...

    async def put(self, key: str, value: bytes, lifetime: float) -> None:
        """Write a value. A load under way (`lock`) can't overwrite it any more."""
        ...

    async def put_loaded(self, key: str, value: bytes, lifetime: float, token: str) -> bool:
        """Write a value that was loaded under a lock, and release the lock; False if the lock is not held any more."""
        ...

    async def lock(self, key: str, token: str, lifetime: float) -> bool:
        """Take the lock for loading a value; False while another process has it."""
        ...

    async def unlock(self, key: str, token: str) -> None:
        """Release it, if it is still held."""
        ...

    async def delete(self, keys: Iterable[str]) -> None:
        """Drop values. Loads under way can't bring the old ones back."""
        ...

    async def count(self, key: str, amount: int, lifetime: float) -> int:
        """Add to a counter, which ends `lifetime` after its first addition, and return it. One atomic operation.
        What is given back after its end is not subtracted from the next one."""
        ...

    async def add_members(self, key: str, members: Iterable[str], lifetime: float) -> None:
        """Add to a set and give it a new lifetime."""
        ...

    async def remove_members(self, key: str, members: Iterable[str]) -> None: ...

    async def members(self, key: str) -> set[str]: ...

    async def info(self) -> CacheInfo: ...

    async def without_lifetime(self, limit: int) -> list[str]:
        """Keys that would stay for ever: there should be none. Looks at all keys, bit by bit."""
        ...

    async def close(self) -> None: ...
