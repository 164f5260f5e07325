"""How much a namespace may start, as users speak of it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from batuta.authoring.services import Backend
from batuta.errors import InvalidInput
from batuta.journal.audit import Verb
from batuta.journal.quotas import NAMES, PAYLOAD, STARTS, WAITING, Quota

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


class Quotas:
    """How much may be started in a namespace: `client.quotas`. Without any: as much as the database takes."""

    def __init__(self, backend: Backend) -> None:
        self._backend, self._access, self._store = backend, backend.access, backend.access.store

    async def list(self) -> Sequence[Quota]:
        """The quotas that apply here, by name: the namespace's own, and those of namespace `*` where it has none."""
        return [_shown(quota) for quota in await self._store.quotas()]

    async def set(self, name: str, limit: float | None, *, burst: int | None = None) -> bool:
        """Set a quota of this namespace, or replace it. Returns False when nothing changed.

        Clients apply it within about a second, this one at once. `open_runs`: how many runs and jobs may be open.
        `starts_per_second`, with `burst`: how many may come at once (by default one second's worth). `payload_bytes`:
        how large the input of a start may be. `waiting_messages`: how many messages from outside may wait in the inbox
        of one run (10,000 by default). The limit None means no limit, also if namespace `*`, the default of all
        namespaces, has one.
        """
        quota = checked_quota(name, limit, burst)
        act = self._access.act(Verb.SET_QUOTA, before=await self._own(quota.name), after=_terms(quota))
        changed = await self._store.set_quota(quota, act)
        await self._backend.learn_quotas()
        return changed

    async def delete(self, name: str) -> bool:
        """Remove a quota of this namespace; that of namespace `*` then applies. Returns False when there is none."""
        own = checked_quota(name, None).name
        changed = await self._store.clear_quota(own, self._access.act(Verb.CLEAR_QUOTA, before=await self._own(own)))
        await self._backend.learn_quotas()
        return changed

    async def _own(self, name: str) -> dict[str, float | None] | None:
        found = (quota for quota in await self._store.quotas() if quota.own and quota.name == name)
        return next(map(_terms, found), None)


def _terms(quota: Quota) -> dict[str, float | None]:
    """The audit log's text for a quota."""
    terms = {"limit": quota.limit}
    return terms if quota.burst is None else terms | {"burst": quota.burst}


def _shown(quota: Quota) -> Quota:
    """With the effective burst, and the usage where that is meaningful."""
    is_limited = quota.limit is not None
    burst = quota.at_once if is_limited and quota.name == STARTS else None
    used = max(0, round(quota.used or 0, 3)) if is_limited and quota.name not in (PAYLOAD, WAITING) else None
    return replace(quota, burst=burst, used=used)
