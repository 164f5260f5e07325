"""How much a namespace may start, as users speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from batuta.errors import InvalidInput
from batuta.journal.quotas import NAMES, STARTS, Quota

_MOST = 1_000_000_000
_SLOWEST, _FASTEST = 0.001, 1_000_000


def checked_quota(name: object, limit: object, burst: object = None) -> Quota:
    """Raises InvalidInput."""
    if name not in NAMES:
        raise InvalidInput(f"unknown quota {name!r}: there are {', '.join(NAMES)}")
    if burst is not None and (name != STARTS or limit is None):
        raise InvalidInput(f"burst={burst!r} is only for {STARTS}: it is the number of starts at once")
    if name == STARTS:
        return Quota(name=STARTS, limit=_rate(limit), burst=None if burst is None else _count("burst", burst))
    return Quota(name=str(name), limit=None if limit is None else _count(str(name), limit))


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MOST:
        raise InvalidInput(f"{name}={value!r} must be a whole number from 1 to {_MOST:,}, or None for no limit")
    return value


def _rate(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _SLOWEST <= value <= _FASTEST:
        raise InvalidInput(f"{STARTS}={value!r} must be a number from {_SLOWEST} to {_FASTEST:,}, or None for no limit")
    return value


class QuotaService(Protocol):
    """Stores the quotas, and enforces them."""

    async def set(self, quota: Quota) -> bool: ...
    async def delete(self, name: str) -> bool: ...
    async def list(self) -> Sequence[Quota]: ...


class Quotas:
    """How much may be started in a namespace: `client.quotas`. Without any: as much as the database takes."""

    def __init__(self, backend: QuotaService) -> None:
        self._backend = backend

    async def list(self) -> Sequence[Quota]:
        """The quotas that apply here, by name: the namespace's own, and those of namespace `*` where it has none."""
        return await self._backend.list()

    async def set(self, name: str, limit: float | None, *, burst: int | None = None) -> bool:
        """Set a quota of this namespace, or replace it. Returns False when nothing changed.

        Clients apply it within about a second, this one at once. `open_runs`: how many runs and jobs may be open.
        `starts_per_second`, with `burst`: how many may come at once (by default one second's worth). `payload_bytes`:
        how large the input of a start may be. `waiting_messages`: how many messages from outside may wait in the inbox
        of one run (10,000 by default). The limit None means no limit, also if namespace `*`, the default of all
        namespaces, has one.
        """
        return await self._backend.set(checked_quota(name, limit, burst))

    async def delete(self, name: str) -> bool:
        """Remove a quota of this namespace; that of namespace `*` then applies. Returns False when there is none."""
        return await self._backend.delete(checked_quota(name, None).name)
