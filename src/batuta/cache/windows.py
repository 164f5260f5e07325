"""Calls counted by windows of a clock, under keys such as `ratelimit:{ispb}:{operation}:{window}`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Final

from batuta.cache.cache import Cache
from batuta.cache.keys import KeyPattern
from batuta.clock import SECOND, as_datetime
from batuta.errors import InvalidInput
from batuta.journal.queues import Rate

_END: Final = ":{window}"
_FORMS: Final = {1.0: "%Y-%m-%d-%H:%M:%S", 60.0: "%Y-%m-%d-%H:%M", 3600.0: "%Y-%m-%d-%H", 86400.0: "%Y-%m-%d"}


class WindowCounter:
    """Counts in Redis how many calls began in a window, for all processes. Each count ends with its window: counting
    and the lifetime are one script.

    It is a faster look, and never the last word: it knows nothing when Redis is away, and too little after a flush.
    """

    def __init__(self, cache: Cache, pattern: str = "ratelimit:{ispb}:{operation}:{window}") -> None:
        if not pattern.endswith(_END):
            raise InvalidInput(f"pattern {pattern!r} of a counter must end with {_END!r}")
        self._cache, self._keys = cache, KeyPattern(pattern.removesuffix(_END))
        self.name = self._keys.entity

    def key(self, rate: Rate, **identifiers: object) -> str:
        """Where calls of now are counted. Raises InvalidInput."""
        return self._keys.key(identifiers) + ":" + window_of(rate, self._cache.clock.now())

    async def take(self, rates: Sequence[Rate], **identifiers: object) -> float:
        """Count a call in the window of each rate. 0, or the seconds until the window ends that has no room for it:
        then it is not counted."""
        counts = await asyncio.gather(*(self._count(rate, 1, identifiers) for rate in rates))
        over = [rate for rate, count in zip(rates, counts, strict=True) if count is not None and count > rate.count]
        if not over:
            return 0.0
        await self.give_back(rates, **identifiers)
        now = self._cache.clock.now()
        return max((rate.period - now % rate.period) / SECOND for rate in over)

    async def give_back(self, rates: Sequence[Rate], **identifiers: object) -> None:
        """A call that was counted did not begin."""
        await asyncio.gather(*(self._count(rate, -1, identifiers) for rate in rates))

    async def _count(self, rate: Rate, amount: int, identifiers: dict[str, object]) -> int | None:
        key = self.key(rate, **identifiers)
        return await self._cache.ask(
            self.name, "count", lambda backend: backend.count(key, amount, rate.per), otherwise=None
        )


def window_of(rate: Rate, now: int) -> str:
    """The name of the window: its beginning, as precise as its length needs."""
    began = as_datetime(now - now % rate.period)
    form = _FORMS.get(rate.per)
    return f"{began:{form}}" if form else f"{began:%Y-%m-%d-%H:%M:%S}/{rate.per:g}s"
