"""Limits at the edge, for requests that come in: a counter in Redis refuses first, the store has the last word."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from batuta.authoring.gates import Gate
from batuta.errors import InvalidInput, LimitReached
from batuta.journal.queues import Rate
from batuta.names import check_name, joined
from batuta.resilience.limits.gate import partner_limit


class Client(Protocol):
    """The part of a client that is needed."""

    def gates(self, *gates: Gate, args: Sequence[Any] = ()) -> AbstractAsyncContextManager[None]: ...


class FastCounts(Protocol):
    """A faster look, such as `batuta.cache.WindowCounter`."""

    async def take(self, rates: Sequence[Rate], **identifiers: object) -> float: ...
    async def give_back(self, rates: Sequence[Rate], **identifiers: object) -> None: ...


class EdgeLimit:
    """How often something may be asked, for each set of identifiers, such as participant and operation.

    It is the partner limit `name` of the store, which holds whatever becomes of Redis. With `counts`, Redis counts by
    windows of the clock, and refuses without the store.
    """

    def __init__(
        self, client: Client, name: str, *, rates: Sequence[Rate | str], counts: FastCounts | None = None
    ) -> None:
        self._client, self._counts, self.name = client, counts, name
        self.rates = [rate if isinstance(rate, Rate) else Rate.parse(rate) for rate in rates]
        if not self.rates:
            raise InvalidInput(f"edge limit {name!r} needs rates, such as rates=['100/min', '1000/h']")
        self._gate = partner_limit(name, key=lambda key: key, rates=self.rates, on_refusal="fail")

    async def admit(self, **identifiers: str) -> None:
        """Count one request. Raises LimitReached, with the seconds to wait in `retry_after`, and InvalidInput for
        identifiers that cannot be counted."""
        values = [identifiers[name] for name in sorted(identifiers)]
        key = check_name(joined(*values) if values else "", f"identifiers of edge limit {self.name!r}")
        wait = 0.0 if self._counts is None else await self._counts.take(self.rates, **identifiers)
        if wait > 0:
            raise LimitReached(self.name, "the window is used up", wait)
        try:
            async with self._client.gates(self._gate, args=(key,)):
                return
        except BaseException:
            if self._counts is not None:
                await self._counts.give_back(self.rates, **identifiers)
            raise
