"""How often a participant may ask for what (C-06)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from batuta import Batuta
from batuta.cache import Cache, WindowCounter
from batuta.resilience import EdgeLimit
from pixdict.errors import InvalidArgument

KEY = "ratelimit:{ispb}:{operation}:{window}"
LIMITS: Final[Mapping[str, Sequence[str]]] = {
    "CreateEntry": ("100/min", "1000/h"),
    "CreateClaim": ("50/min", "500/h"),
    "GetEntry": ("500/min",),
}
"""Those of document C."""


class Limits:
    """Refuses at the edge. The limits of the store hold for all processes, with Redis or without; with `cache`, Redis
    counts too, and refuses without the store."""

    def __init__(
        self, client: Batuta, cache: Cache | None = None, *, rates: Mapping[str, Sequence[str]] = LIMITS
    ) -> None:
        counts = None if cache is None else WindowCounter(cache, KEY)
        self._by_operation = {
            operation: EdgeLimit(client, f"core.{operation}", rates=each, counts=counts)
            for operation, each in rates.items()
        }

    async def admit(self, operation: str, ispb: str) -> None:
        """Count one request of a participant. Raises batuta.errors.LimitReached, with `retry_after`."""
        limit = self._by_operation.get(operation)
        if limit is None:
            known = ", ".join(self._by_operation)
            raise InvalidArgument(f"operation {operation!r} has no limit; those with one: {known}")
        await limit.admit(ispb=ispb, operation=operation)
