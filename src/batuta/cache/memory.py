"""A cache in this process: for one process, for tests, and where there is no Redis."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from batuta.cache.backend import CacheInfo
from batuta.cache.keys import lock_key
from batuta.clock import Clock, SystemClock
from batuta.names import check_number

_OVERHEAD = 100  # bytes of Python's own for a key and a value, roughly


class MemoryCache:
    """A dictionary with lifetimes and a limit of memory. The least recently used value goes first."""

    def __init__(self, *, max_bytes: int = 64 * 1024 * 1024, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        check_number("max_bytes", max_bytes, 1, whole=True)
        self._max_bytes = max_bytes
        self._found: OrderedDict[str, tuple[bytes | int | set[str], float]] = OrderedDict()
        self._bytes = 0
        self._evicted = self._hits = self._misses = 0
        self.where = "memory://"

    async def get(self, key: str) -> bytes | None:
        found = self._counted(key)
        return found[0] if found and isinstance(found[0], bytes) else None

    async def get_with_lifetime(self, key: str) -> tuple[bytes, float] | None:
        found = self._counted(key)
        if found is None or not isinstance(found[0], bytes):
            return None
        return found[0], found[1] - self._clock.monotonic()

    def _counted(self, key: str) -> tuple[object, float] | None:
        found = self._look(key)
        if found is None:
            self._misses += 1
        else:
            self._hits += 1
        return found

    async def put(self, key: str, value: bytes, lifetime: float) -> None:
        self._drop(lock_key(key))
        self._write(key, value, lifetime)

    async def put_loaded(self, key: str, value: bytes, lifetime: float, token: str) -> bool:
        held = await self.get(lock_key(key)) == token.encode()
        if held:
            await self.put(key, value, lifetime)
        return held

    async def lock(self, key: str, token: str, lifetime: float) -> bool:
        if self._look(lock_key(key)) is not None:
            return False
        self._write(lock_key(key), token.encode(), lifetime)
        return True

    async def unlock(self, key: str, token: str) -> None:
        if await self.get(lock_key(key)) == token.encode():
            self._drop(lock_key(key))

    async def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._drop(key)
            self._drop(lock_key(key))

    async def count(self, key: str, amount: int, lifetime: float) -> int:
        found = self._look(key)
        if found is None and amount < 0:
            return 0
        now = self._clock.monotonic()
        before, end = found if found is not None else (0, now + lifetime)
        number = amount + (before if isinstance(before, int) else 0)
        self._write(key, number, end - now)
        return number

    async def add_members(self, key: str, members: Iterable[str], lifetime: float) -> None:
        self._write(key, await self.members(key) | set(members), lifetime)

    async def remove_members(self, key: str, members: Iterable[str]) -> None:
        if (found := self._look(key)) is not None and isinstance(found[0], set):
            self._write(key, found[0] - set(members), found[1] - self._clock.monotonic())

    async def members(self, key: str) -> set[str]:
        found = self._look(key)
        return set(found[0]) if found and isinstance(found[0], set) else set()

    async def info(self) -> CacheInfo:
        return CacheInfo(
            kind="memory",
            keys=len(self._found),
            memory_used=self._bytes,
            memory_max=self._max_bytes,
            evicted=self._evicted,
            hits=self._hits,
            misses=self._misses,
        )

    async def without_lifetime(self, limit: int) -> list[str]:
        return []

    async def close(self) -> None:
        self._found.clear()
        self._bytes = 0

    def _look(self, key: str) -> tuple[bytes | int | set[str], float] | None:
        found = self._found.get(key)
        if found is None:
            return None
        if found[1] <= self._clock.monotonic():
            self._drop(key)
            return None
        self._found.move_to_end(key)
        return found

    def _write(self, key: str, value: bytes | int | set[str], lifetime: float) -> None:
        self._drop(key)
        if _size(key, value) > self._max_bytes:  # it would push out all others, and then itself
            self._evicted += 1
            return
        self._found[key] = (value, self._clock.monotonic() + lifetime)
        self._bytes += _size(key, value)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._found)))
            self._evicted += 1

    def _drop(self, key: str) -> None:
        found = self._found.pop(key, None)
        if found is not None:
            self._bytes -= _size(key, found[0])


def _size(key: str, value: bytes | int | set[str]) -> int:
    if isinstance(value, set):
        return _OVERHEAD + len(key) + sum(_OVERHEAD + len(member) for member in value)
    return _OVERHEAD + len(key) + (len(value) if isinstance(value, bytes) else 8)
