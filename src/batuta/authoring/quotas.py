"""How much a namespace may start, as users speak of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from batuta.errors import InvalidInput
from batuta.journal.quotas import NAMES, STARTS
from batuta.journal.quotas import Quota as Stored

_MOST = 1_000_000_000
_SLOWEST, _FASTEST = 0.001, 1_000_000


class Quota(Struct, frozen=True, kw_only=True):
    """A quota that holds in a namespace, as of now: of `client.quotas.list()`."""

    name: str
    limit: float | None
    """None: none, although all others may have one."""
    burst: int | None = None
    """Of starts_per_second: how many may come at once."""
    used: float | None = None
    """Of open_runs: those that are open, counted up to one above the limit. Of starts_per_second: how many of the burst
    are taken. Of payload_bytes: None."""
    own: bool = True
    """False: the namespace has none of this name, and goes by that of namespace `*`."""


def checked_quota(name: object, limit: object, burst: object = None) -> Stored:
    """As the store keeps it. Raises InvalidInput."""
    if name not in NAMES:
        raise InvalidInput(f"unknown quota {name!r}: there are {', '.join(NAMES)}")
    if burst is not None and (name != STARTS or limit is None):
        raise InvalidInput(f"burst={burst!r} belongs to a limit of {STARTS}: it says how many may come at once")
    if name == STARTS:
        return Stored(name=STARTS, limit=_rate(limit), burst=None if burst is None else _count("burst", burst))
    return Stored(name=str(name), limit=None if limit is None else _count(str(name), limit))


def _count(name: str, value: object) -> int:
    if type(value) is not int or not 1 <= value <= _MOST:
        raise InvalidInput(f"{name}={value!r} must be a whole number from 1 to {_MOST:,}, or None, which is no limit")
    return value


def _rate(value: object) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not _SLOWEST <= value <= _FASTEST:
        raise InvalidInput(
            f"{STARTS}={value!r} must be a number from {_SLOWEST} to {_FASTEST:,}, or None, which is no limit"
        )
    return value


class QuotaBackend(Protocol):
    """Keeps the quotas, and goes by them."""

    async def set(self, quota: Stored) -> bool: ...
    async def clear(self, name: str) -> bool: ...
    async def list(self) -> Sequence[Quota]: ...


class Quotas:
    """How much may be started in a namespace: `client.quotas`. Without any: as much as the database takes."""

    def __init__(self, backend: QuotaBackend) -> None:
        self._backend = backend

    async def list(self) -> Sequence[Quota]:
        """Those that hold here, by name: the namespace's own, and those of namespace `*` where it has none."""
        return await self._backend.list()

    async def set(self, name: str, limit: float | None, *, burst: int | None = None) -> bool:
        """Set a quota of this namespace, or replace it. False when it was so already. Clients go by it within a second
        or so, this one at once.

        `open_runs`: how many runs and jobs may be open. `starts_per_second`, with `burst`: how many may come at once
        (as many as in a second unless told). `payload_bytes`: how large the input of a start may be. None as the limit:
        none, also when namespace `*`, whose quotas hold for all that have none of their own, has one.
        """
        return await self._backend.set(checked_quota(name, limit, burst))

    async def clear(self, name: str) -> bool:
        """Take a quota of this namespace away; that of namespace `*` holds then. False when there is none."""
        return await self._backend.clear(checked_quota(name, None).name)
