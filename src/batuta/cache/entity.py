"""Values of one kind in a cache, with their key, type and lifetimes."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar, cast

from batuta.cache.backend import CacheBackend
from batuta.cache.cache import Cache
from batuta.cache.keys import KeyPattern
from batuta.cache.values import ABSENT, pack, unpack
from batuta.durations import Duration, in_seconds
from batuta.errors import BatutaError
from batuta.ids import jitter, new_message_id
from batuta.names import check_number, check_text
from batuta.serde import decoder_for

T = TypeVar("T")
Load = Callable[[], Awaitable[T | None]]

log = logging.getLogger("batuta.cache")

_FIRST_LOOK, _LATER_LOOK = 0.005, 0.05  # seconds between looks for a value that another process loads
_WEIGHT = 0.2  # of the last load in the average load time


class _Found(NamedTuple, Generic[T]):
    value: T | None
    """None: known not to exist."""
    left: float
    """Seconds of its lifetime; a stale value has none left."""


class _LoadedElsewhere(Exception):
    """Another process loads it, and an early load does not wait for that."""


class Entity(Generic[T]):
    """Values of one kind. Every value has a lifetime, so that none stays for ever.

    `lifetime`: how long a value is used. `absent_lifetime`: how long it is remembered that there is no such thing; 0
    remembers nothing. `stale`: how much longer a value is kept, to be used only when loading a new one fails.
    `early`: how eager values are loaded anew before they end (XFetch's beta); 0 never does.
    `load_time`: how long others wait for one that loads, before they load themselves. A value that takes longer is not
    kept, for it may have changed meanwhile.
    `lifetime_of`: for how many seconds a value may be used, where its own lifetime may be shorter than `lifetime`; one
    with 0 or less is not kept.
    """

    def __init__(
        self,
        cache: Cache,
        pattern: str,
        kind: type[T],
        *,
        lifetime: Duration,
        absent_lifetime: Duration = 0,
        stale: Duration = 0,
        early: float = 1.0,
        load_time: Duration = 10.0,
        lifetime_of: Callable[[T], float] | None = None,
    ) -> None:
        self._cache = cache
        self._keys = KeyPattern(pattern)
        self.name = self._keys.entity
        self._decoder = decoder_for(kind, f"a value of {self.name}")
        self._lifetime: float = in_seconds(lifetime)
        self._absent_lifetime: float = in_seconds(absent_lifetime)
        self._stale: float = in_seconds(stale)
        self._load_time: float = in_seconds(load_time)
        self._early, self._lifetime_of = early, lifetime_of
        for what, number, least in (
            ("lifetime", self._lifetime, 0.001),
            ("absent_lifetime", self._absent_lifetime, 0),
            ("stale", self._stale, 0),
            ("load_time", self._load_time, 0.001),
            ("early", early, 0),
        ):
            check_number(f"{pattern!r}: {what}", number, least)
        self._average_load = 0.0
        self._loading: dict[str, asyncio.Task[T | None]] = {}

    def key(self, **identifiers: object) -> str:
        """The key of a value. Raises InvalidInput."""
        return self._keys.key(identifiers)

    # -- values

    async def get(self, **identifiers: object) -> T | None:
        """The value, or None if it is not in the cache or known not to exist."""
        found = await self._look(self._keys.key(identifiers), with_lifetime=self._stale > 0)
        return found.value if found is not None and found.left > 0 else None

    async def put(self, value: T, **identifiers: object) -> None:
        """Write a value, after the change that it shows (write-through)."""
        key = self._changed(identifiers)
        data = pack(value, f"a value of {self.name}")
        if kept := self._kept_for(value):
            await self._put(key, data, kept)
        else:
            await self._cache.invalidate(self.name, key, self._kept)

    async def put_absent(self, **identifiers: object) -> None:
        """Remember that the value does not exist, if `absent_lifetime` is set; else delete the cached value."""
        key = self._changed(identifiers)
        if self._absent_lifetime:
            await self._put(key, ABSENT, self._absent_lifetime)
        else:
            await self._cache.invalidate(self.name, key, self._kept)

    async def delete(self, **identifiers: object) -> None:
        """Drop a value (invalidation). A load under way can't bring the old one back."""
        await self._cache.invalidate(self.name, self._changed(identifiers), self._kept)

    async def get_or_load(self, load: Load[T], **identifiers: object) -> T | None:
        """The value. One that is missing or about to end is loaded once, however many ask for it in all processes.

        `load` may return None for "no such thing". Its error reaches all callers of this process that wait for the
        load, unless there is a stale value to use.
        """
        key = self.key(**identifiers)
        found = await self._look(key, with_lifetime=self._early > 0 or self._stale > 0)
        if found is not None and found.left > 0:
            if self._ends_soon(found.left):
                self._flight(key, load, known=found.left).add_done_callback(_say_if_failed)
            return found.value
        return await self._load_for(key, load, found)

    # -- inside

    async def _load_for(self, key: str, load: Load[T], stale: _Found[T] | None) -> T | None:
        while True:
            try:
                return await asyncio.shield(self._flight(key, load))
            except _LoadedElsewhere:  # the value ended while an early load was under way: wait for the other process
                continue
            except Exception as error:
                if stale is None:
                    raise
                log.warning("%s could not be loaded, a stale value is used: %r", self.name, error)
                return stale.value

    def _changed(self, identifiers: dict[str, object]) -> str:
        """The key. Who asks from now on does not wait for a load that began before the change."""
        key = self._keys.key(identifiers)
        self._loading.pop(key, None)
        return key

    @property
    def _kept(self) -> float:
        """At most."""
        return self._lifetime + self._stale

    def _kept_for(self, value: T) -> float:
        """For how long this value is kept."""
        used = self._lifetime if self._lifetime_of is None else min(self._lifetime, self._lifetime_of(value))
        return used + self._stale if used > 0 else 0.0

    async def _look(self, key: str, *, with_lifetime: bool) -> _Found[T] | None:
        """The cached value, reported as a hit or a miss."""
        began = self._cache.clock.monotonic()
        found = await self._find(key, "get", with_lifetime=with_lifetime)
        known = found is not None and found.left > 0
        outcome = "miss" if not known else "absent" if found and found.value is None else "hit"
        self._cache.tell(self.name, "get", outcome, began)
        return found

    async def _find(self, key: str, operation: str, *, with_lifetime: bool = True) -> _Found[T] | None:
        if self._cache.is_stale(key):
            return None
        if with_lifetime:
            look = await self._ask(operation, lambda backend: backend.get_with_lifetime(key), otherwise=None)
            data, left = look or (None, 0.0)
        else:
            data, left = await self._ask(operation, lambda backend: backend.get(key), otherwise=None), math.inf
        if data is None or data == ABSENT:
            return None if data is None else _Found(None, left)
        try:
            return _Found(self._read(data), left - self._stale)
        except BatutaError as error:  # written by other code, or damaged: as if it were not there
            log.warning("%s; it is taken for missing", error)
            return None

    def _read(self, data: bytes) -> T:
        return cast(T, unpack(data, self._decoder, f"a value of {self.name}"))

    async def _put(self, key: str, data: bytes, lifetime: float) -> None:
        await self._cache.change(self.name, "put", key, lambda backend: backend.put(key, data, lifetime), self._kept)

    def _ends_soon(self, left: float) -> bool:
        """XFetch: the longer a load takes, and the sooner the value ends, the more likely."""
        return self._early > 0 and left < -self._average_load * self._early * math.log(1 - jitter())

    def _flight(self, key: str, load: Load[T], *, known: float = 0.0) -> asyncio.Task[T | None]:
        """One load of a key in this process. `known`: seconds left of the value that there is, for an early load."""
        task = self._loading.get(key)
        if task is None or task.done():
            task = asyncio.create_task(self._load(key, load, known), name=f"load {self.name}")
            self._loading[key] = task
            task.add_done_callback(lambda done: self._landed(key, done))
        return task

    def _landed(self, key: str, task: asyncio.Task[T | None]) -> None:
        if self._loading.get(key) is task:
            del self._loading[key]
        if not task.cancelled():
            task.exception()  # its readers may all have left: then no other code looks at it

    async def _load(self, key: str, load: Load[T], known: float) -> T | None:
        """Load it under a lock, or get what another process loads meanwhile."""
        token, clock = new_message_id(), self._cache.clock
        give_up, pause = clock.monotonic() + self._load_time, _FIRST_LOOK
        while not await self._ask("lock", lambda backend: backend.lock(key, token, self._load_time), otherwise=True):
            if known:
                raise _LoadedElsewhere
            if clock.monotonic() > give_up:
                break
            await asyncio.sleep(pause)
            pause = min(pause * 1.5, _LATER_LOOK)
            if (found := await self._fresh(key, known)) is not None:
                return found.value
        else:
            if (found := await self._fresh(key, known)) is not None:  # loaded between our look and lock
                await self._ask("unlock", lambda backend: backend.unlock(key, token), otherwise=None)
                return found.value
        return await self._load_now(key, load, token)

    async def _fresh(self, key: str, known: float) -> _Found[T] | None:
        """A value with more than these seconds left."""
        found = await self._find(key, "load")
        return found if found is not None and found.left > known else None

    async def _load_now(self, key: str, load: Load[T], token: str) -> T | None:
        began = self._cache.clock.monotonic()
        try:
            value = await load()
            data = ABSENT if value is None else pack(value, f"a value of {self.name}")
        except BaseException:
            await self._ask("unlock", lambda backend: backend.unlock(key, token), otherwise=None)
            raise
        took = self._cache.clock.monotonic() - began
        self._average_load += (took - self._average_load) * (_WEIGHT if self._average_load else 1.0)
        kept = self._absent_lifetime if value is None else self._kept_for(value)
        if kept:
            written = await self._ask(
                "put", lambda backend: backend.put_loaded(key, data, kept, token), otherwise=False
            )
            if not written and took > self._load_time:
                log.warning(
                    "%s took %.1f s to load, over load_time=%g: it is not kept", self.name, took, self._load_time
                )
        else:
            await self._ask("unlock", lambda backend: backend.unlock(key, token), otherwise=None)
        # The decoded copy, as everybody else gets it.
        return None if value is None else self._read(data)

    async def _ask(self, operation: str, work: Callable[[CacheBackend], Awaitable[Any]], otherwise: Any) -> Any:
        return await self._cache.ask(self.name, operation, work, otherwise)


class MemberSet:
    """A set of names in a cache, such as the claims of an entry. Each addition renews its lifetime.

    After a change that failed, this process takes the set for missing until it could delete it.
    """

    def __init__(self, cache: Cache, pattern: str, *, lifetime: Duration) -> None:
        self._cache, self._keys, self._lifetime = cache, KeyPattern(pattern), in_seconds(lifetime)
        check_number(f"{pattern!r}: lifetime", self._lifetime, 0.001)
        self.name = self._keys.entity

    async def add(self, *members: str, **identifiers: object) -> None:
        key = self._checked_key(members, identifiers)
        await self._cache.change(
            self.name, "put", key, lambda backend: backend.add_members(key, members, self._lifetime), self._lifetime
        )

    async def remove(self, *members: str, **identifiers: object) -> None:
        key = self._checked_key(members, identifiers)
        if members:
            await self._cache.change(
                self.name, "put", key, lambda backend: backend.remove_members(key, members), self._lifetime
            )

    async def members(self, **identifiers: object) -> set[str]:
        """Empty if nothing is known."""
        key = self._keys.key(identifiers)
        began = self._cache.clock.monotonic()
        found: set[str] = set()
        if not self._cache.is_stale(key):
            found = await self._cache.ask(self.name, "get", lambda backend: backend.members(key), otherwise=found)
        self._cache.tell(self.name, "get", "hit" if found else "miss", began)
        return found

    async def delete(self, **identifiers: object) -> None:
        await self._cache.invalidate(self.name, self._keys.key(identifiers), self._lifetime)

    def _checked_key(self, members: tuple[str, ...], identifiers: dict[str, object]) -> str:
        key = self._keys.key(identifiers)
        for member in members:
            check_text(member, f"member of {self.name}")
        return key


def _say_if_failed(task: asyncio.Task[Any]) -> None:
    error = None if task.cancelled() else task.exception()
    if error is not None and not isinstance(error, _LoadedElsewhere):
        log.warning("%s failed before the old value ended, which is used further: %r", task.get_name(), error)
