"""A cache that may fail: every operation is bounded in time, and without Redis everything goes on, only slower."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Iterable
from itertools import islice
from types import TracebackType
from typing import Protocol, Self, TypeVar

from batuta.cache.backend import CacheBackend, CacheInfo
from batuta.cache.breaker import LocalBreaker
from batuta.cache.uses import EntityUse, Uses, uses_of
from batuta.clock import Clock, SystemClock
from batuta.durations import Duration, in_seconds
from batuta.errors import BatutaError
from batuta.names import check_number

T = TypeVar("T")
D = TypeVar("D")

log = logging.getLogger("batuta.cache")

_MOST_STALE = 10_000  # keys whose deletion has to be made up for
_STALE_AT_ONCE = 50  # of them, before one operation: all together would take longer than it may


class Observer(Protocol):
    """Is told of every operation of a cache, for metrics."""

    def __call__(self, entity: str, operation: str, outcome: str, seconds: float) -> None:
        """`outcome`: hit, miss, absent (known not to exist), ok, failed, skipped (the breaker is open)."""
        ...


class Cache:
    """Where entities keep their values. A failing backend is a miss; a failing invalidation is made up for.

    `timeout` bounds every operation. After `failures` operations in a row that failed, the backend is left alone for
    `retry_after`; then one operation tries again. `tell_every`: how often this process leaves its hits and misses in
    the backend, for the page *Cache*; None: never.
    """

    def __init__(
        self,
        backend: CacheBackend,
        *,
        timeout: Duration = 1.0,
        failures: int = 5,
        retry_after: Duration = 2.0,
        observer: Observer | None = None,
        clock: Clock | None = None,
        tell_every: Duration | None = None,
    ) -> None:
        self._timeout, pause = in_seconds(timeout), in_seconds(retry_after)
        check_number("timeout", self._timeout, 0.001)
        check_number("failures", failures, 1, whole=True)
        check_number("retry_after", pause, 0)
        self._backend = backend
        self.clock = clock or SystemClock()
        self._breaker = LocalBreaker(failures, pause, self.clock)
        self._observer = observer
        self._stale: dict[str, float] = {}
        """Keys that may hold an old value, because their deletion failed, until when."""
        self._uses, self._tell_every = Uses(), math.inf if tell_every is None else in_seconds(tell_every)
        self._tell_at = self.clock.monotonic() + self._tell_every
        self._telling: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        if self._telling is not None:
            self._telling.cancel()
            await asyncio.gather(self._telling, return_exceptions=True)
        await self._backend.close()

    @property
    def available(self) -> bool:
        """Whether the backend is asked at the moment."""
        return self._breaker.closed

    async def info(self) -> CacheInfo:
        """How the backend itself is doing. Raises what it raises."""
        async with asyncio.timeout(self._timeout):
            return await self._backend.info()

    async def without_lifetime(self, limit: int = 100) -> list[str]:
        """Keys that would stay for ever: there should be none."""
        return await self._backend.without_lifetime(limit)

    # -- what entities ask

    async def ask(
        self, entity: str, operation: str, work: Callable[[CacheBackend], Awaitable[T]], otherwise: D
    ) -> T | D:
        """Do it in time, or `otherwise`."""
        began = self.clock.monotonic()
        if not self._breaker.allows():
            self.tell(entity, operation, "skipped", began)
            return otherwise
        try:
            async with asyncio.timeout(self._timeout):
                if self._stale:
                    await self._make_up()
                found = await work(self._backend)
        except (Exception, asyncio.CancelledError) as error:
            if isinstance(error, asyncio.CancelledError):
                self._breaker.forget()
                raise
            if isinstance(error, BatutaError):  # of the caller: the backend is well
                self._breaker.succeeded()
                raise
            if self._breaker.failed():
                log.warning("%r fails, and is left alone for a while: %r", self._backend, error)
            self.tell(entity, operation, "failed", began)
            return otherwise
        if self._breaker.succeeded():
            log.info("%r works again", self._backend)
        if operation not in ("get", "load"):  # those say more
            self.tell(entity, operation, "ok", began)
        return found

    async def change(
        self, entity: str, operation: str, key: str, work: Callable[[CacheBackend], Awaitable[None]], lifetime: float
    ) -> None:
        """Change what is under a key. If that fails an older value may be there for so long: this process takes it for
        missing, and drops it as soon as it can."""
        if await self.ask(entity, operation, work, otherwise=False) is False:
            self.remember([key], lifetime)

    async def invalidate(self, entity: str, key: str, lifetime: float) -> None:
        """Drop a value."""
        await self.change(entity, "delete", key, lambda backend: backend.delete([key]), lifetime)

    def remember(self, keys: Iterable[str], lifetime: float) -> None:
        """These keys may hold old values for so long."""
        until = self.clock.monotonic() + lifetime
        for key in keys:
            self._stale[key] = until
        while len(self._stale) > _MOST_STALE:
            self._stale.pop(next(iter(self._stale)))

    def is_stale(self, key: str) -> bool:
        return key in self._stale

    async def _make_up(self) -> None:
        """Delete some of the keys whose deletion failed. Each that is deleted counts, also when time runs out."""
        now = self.clock.monotonic()
        for key, until in list(islice(self._stale.items(), _STALE_AT_ONCE)):
            if until > now:
                await self._backend.delete([key])
            if self._stale.get(key) == until:  # no later change of it has failed meanwhile
                del self._stale[key]

    async def uses(self) -> list[EntityUse]:
        """Hits and misses by entity, of all processes that use the cache. Raises what the backend raises."""
        async with asyncio.timeout(self._timeout):
            return await uses_of(self._backend, self.clock.now())

    async def _write_uses(self) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                await self._uses.write(self._backend, self.clock.now())
        except Exception as error:  # noqa: BLE001 - the next time comes
            log.debug("the hits by entity are not told: %r", error)

    def tell(self, entity: str, operation: str, outcome: str, began: float) -> None:
        """Report an operation; an entity reports its looks: hit, miss or absent."""
        now = self.clock.monotonic()
        self._uses.note(entity, outcome, now - began)
        if now >= self._tell_at and self._breaker.closed:
            self._tell_at = now + self._tell_every
            self._telling = asyncio.get_running_loop().create_task(self._write_uses(), name="batuta-cache-uses")
        if log.isEnabledFor(logging.DEBUG):
            log.debug("%s %s: %s in %.2f ms", entity, operation, outcome, 1_000 * (now - began))
        if self._observer is not None:
            self._observer(entity, operation, outcome, now - began)
