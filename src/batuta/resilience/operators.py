"""Breakers and limits, as operators and programs see and change them: `client.breakers`, `client.limits`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from math import isfinite
from typing import Generic, TypeVar

from msgspec import MsgspecError, Struct

from batuta.authoring.gates import check_period
from batuta.authoring.services import StoreAccess
from batuta.clock import SECOND, as_datetime
from batuta.durations import Duration
from batuta.errors import DamagedPartner, InvalidInput, UnknownPartner
from batuta.journal.audit import Act, Verb
from batuta.journal.queues import Rate
from batuta.journal.resilience.partners import (
    BREAKER,
    CLOSED,
    DAMAGED,
    LIMIT,
    OPEN,
    PartnerChange,
    PartnerDocs,
    PartnerRule,
    all_partners,
)
from batuta.journal.resilience.rates import rate_left
from batuta.names import check_name, check_reason
from batuta.resilience.breakers.rules import OFF, BreakerSettings, BreakerState, decode_breaker
from batuta.resilience.limits.gate import ALL
from batuta.resilience.limits.rules import Bucket, LimitDoc, LimitSettings, decode_counts, decode_limit, limit_settings
from batuta.resilience.partners import wake_runs

T = TypeVar("T")


class BreakerView(Struct, kw_only=True):
    """A circuit breaker, as of now."""

    name: str
    state: str
    """closed, open or half-open; damaged if it cannot be read."""
    reason: str
    """Why it is so."""
    forced: str
    """open or off: an operator holds it there."""
    since: datetime | None
    until: datetime | None
    """When it is open: from then on probes are let in."""
    failures: int
    """In a row, while it is closed."""
    openings: int
    """How often it opened since it was closed."""
    probes: int
    """How many are under way."""
    settings: BreakerSettings


class KeyView(Struct, kw_only=True):
    """The state of one key of a limit."""

    key: str
    """`*`: the limit has no keys."""
    used: dict[str, int]
    """By rate: how many began within its period."""
    running: int
    """Leased by processes for calls under way."""
    balance: float | None
    held_until: datetime | None
    """The partner wants no call before."""


class LimitView(Struct, kw_only=True):
    """A limit towards a partner, as of now."""

    name: str
    rates: list[str]
    concurrency: int | None
    capacity: int | None
    refill: str | None
    changed: bool
    """An operator has changed it; `declared` is what code says."""
    declared: str
    reason: str
    keys: list[KeyView]
    """Keys used lately, at most 1,000 over all limits."""

    def text(self) -> str:
        """Its limits, in words."""
        said = [*self.rates, *([f"{self.concurrency} at once"] if self.concurrency else [])]
        return ", ".join(said + ([f"balance {self.capacity} + {self.refill}"] if self.capacity else []))


V = TypeVar("V", BreakerView, LimitView)


class _Operations(Generic[V]):
    kind: str

    async def list(self) -> Sequence[V]:
        raise NotImplementedError

    async def get(self, name: str) -> V:
        """Raises UnknownPartner."""
        found = await self._find(name)
        if found is None:
            raise UnknownPartner(self.kind, name)
        return found

    async def _find(self, name: str) -> V | None:
        return next((one for one in await self.list() if one.name == name), None)

    def __init__(self, backend: StoreAccess) -> None:
        self._backend = backend

    async def _change(self, name: str, key: str, rule: PartnerRule[T], act: Act | None = None) -> T:
        """Gates of this process have heard of it when it returns."""
        changed = await self._backend.store.change_partner(self.kind, name, key, rule, act)
        await asyncio.sleep(0)
        return changed.answer

    async def forget(self, name: str, reason: str = "") -> None:
        """Forget it, with all that it counts. A worker that uses it declares it again. Raises UnknownPartner."""
        act = self._backend.act(Verb.FORGET_PARTNER, check_reason(reason))
        found = await all_partners(self._backend.store, keys=True)
        kept = [one for one in found if (one.kind, one.name) == (self.kind, name)]
        if not kept:
            raise UnknownPartner(self.kind, name)
        for one in kept:
            await self._change(name, one.key, lambda _: PartnerChange(None, "", tell=True), None if one.key else act)
        await wake_runs(self._backend.store, name)


class Breakers(_Operations[BreakerView]):
    """Circuit breakers of a namespace: `client.breakers`."""

    kind = BREAKER

    async def list(self) -> Sequence[BreakerView]:
        """All that workers have declared, by name."""
        rows = [one for one in await all_partners(self._backend.store) if one.kind == BREAKER]
        return [_readable_breaker(one.name, one.doc) for one in rows]

    async def open(self, name: str, reason: str = "") -> BreakerView:
        """Hold it open until it is closed: no call reaches the partner. Raises UnknownPartner."""
        return await self._force(name, OPEN, reason)

    async def close(self, name: str, reason: str = "") -> BreakerView:
        """Close it now; from then on it works by itself. Raises UnknownPartner."""
        return await self._force(name, CLOSED, reason)

    async def off(self, name: str, reason: str = "") -> BreakerView:
        """Switch it off until it is closed: it lets everything in. Raises UnknownPartner."""
        return await self._force(name, OFF, reason)

    async def _force(self, name: str, how: str, reason: str) -> BreakerView:
        before = await self.get(name)
        act = self._backend.act(
            Verb.FORCE_BREAKER, check_reason(reason), before=before.forced or before.state, after=how
        )

        def rule(docs: PartnerDocs) -> PartnerChange[BreakerState]:
            state = decode_breaker(docs.doc)
            if state is None:
                raise UnknownPartner(BREAKER, name)
            state.force(how, act.reason, docs.now)
            return PartnerChange(state, state.encode(), tell=True)

        state = await self._change(name, "", rule, act)
        if state.lets_in:
            await wake_runs(self._backend.store, name)
        return _breaker(name, state)


class Limits(_Operations[LimitView]):
    """Limits towards partners: `client.limits`."""

    kind = LIMIT

    async def list(self) -> Sequence[LimitView]:
        """All that workers have declared, by name, with what counts for their keys."""
        store, found = self._backend.store, {}
        for row in await all_partners(store):
            if row.kind == LIMIT:
                found[row.name] = _readable_limit(row.name, row.doc)
        now = (await store.change_partner(LIMIT, "", "", lambda docs: PartnerChange(docs.now))).answer
        keys: dict[str, list[KeyView]] = {name: [] for name in found}
        for row in await store.partners(keys=True):
            if row.kind == LIMIT and row.key and (known := found.get(row.name)) is not None:
                try:
                    keys[row.name].append(_key(row.key, row.doc, known, now))
                except (MsgspecError, RecursionError) as error:
                    known.reason = str(DamagedPartner(LIMIT, row.name, error))
        return [_limit(name, doc, keys[name]) for name, doc in found.items()]

    async def change(
        self,
        name: str,
        *,
        rate: Rate | str | None = None,
        rates: Sequence[Rate | str] = (),
        concurrency: int | None = None,
        bucket: Bucket | None = None,
        reason: str = "",
    ) -> LimitView:
        """Have this hold instead of what code declares, at once in all workers, until `reset`. A limit that no code
        declares can be made so. Raises InvalidInput."""
        check_name(name, "limit")
        settings = limit_settings(rate, rates, concurrency, bucket)
        return await self._set(name, settings, check_reason(reason), may_be_new=True)

    async def reset(self, name: str, reason: str = "") -> LimitView:
        """Go back to what code declares. Raises UnknownPartner."""
        return await self._set(name, None, check_reason(reason), may_be_new=False)

    async def _set(self, name: str, settings: LimitSettings | None, reason: str, *, may_be_new: bool) -> LimitView:
        before = await (self._find(name) if may_be_new else self.get(name))
        told = None if before is None else before.text()
        act = self._backend.act(Verb.CHANGE_LIMIT, reason, before=told, after=settings and settings.text())

        def rule(docs: PartnerDocs) -> PartnerChange[None]:
            doc = decode_limit(docs.doc) or LimitDoc(turn=docs.now)
            doc.changed, doc.reason, doc.turn = settings, act.reason if settings else "", doc.turn + 1
            return PartnerChange(None, doc.encode(), tell=True)

        await self._change(name, "", rule, act)
        await wake_runs(self._backend.store, name)
        return await self.get(name)

    async def hold(self, name: str, wait: Duration, *, key: str | None = None) -> None:
        """No worker calls the partner for so long: for what it says in words that Batuta does not read by itself. A
        shorter pause does not end a longer one. Raises UnknownPartner."""
        seconds, which = check_period("wait", wait), _checked_key(key)
        await self._edit(
            name,
            lambda doc, now: doc.hold(which, now + round(seconds * SECOND), now),
            self._held(which, seconds),
        )

    async def release(self, name: str, *, key: str | None = None) -> None:
        """End such a pause now. Raises UnknownPartner."""
        which = _checked_key(key)
        await self._edit(name, lambda doc, _: doc.release(which), self._held(which, 0))
        await wake_runs(self._backend.store, name)

    async def sync(self, name: str, balance: float, *, key: str | None = None) -> None:
        """Set the balance that the partner reports; it may be negative. Raises UnknownPartner, and InvalidInput for
        a limit without a bucket."""
        said: object = balance
        if isinstance(said, bool) or not isinstance(said, int | float) or not isfinite(said):
            raise InvalidInput(f"balance={balance!r} must be a number")
        which = _checked_key(key)

        def told(docs: PartnerDocs) -> PartnerChange[None]:
            settings = self._known(name, docs.own).settings
            if settings is None or settings.bucket is None:
                raise InvalidInput(f"limit {name!r} has no bucket: declare it with bucket=Bucket(capacity, refill)")
            counts = decode_counts(docs.doc)
            counts.sync(balance, docs.now)
            return PartnerChange(None, counts.encode())

        def turned(doc: LimitDoc, _: int) -> None:
            doc.turn += 1

        await self._change(name, which, told)
        await self._edit(name, turned)

    async def _edit(self, name: str, edit: Callable[[LimitDoc, int], None], act: Act | None = None) -> None:
        """Change the document of a limit that there is, given the store's time."""

        def rule(docs: PartnerDocs) -> PartnerChange[None]:
            doc = self._known(name, docs.doc)
            edit(doc, docs.now)
            return PartnerChange(None, doc.encode(), tell=True)

        await self._change(name, "", rule, act)

    def _held(self, key: str, seconds: float) -> Act:
        """For the audit log: as long as a partner is not called, what waits for it stands still."""
        return self._backend.act(Verb.CHANGE_LIMIT, "", after={"key": key, "held_seconds": seconds})

    @staticmethod
    def _known(name: str, doc: str | None) -> LimitDoc:
        found = decode_limit(doc)
        if found is None:
            raise UnknownPartner(LIMIT, name)
        return found


def _checked_key(key: str | None) -> str:
    return ALL if key is None else check_name(key, "key of a limit")


def _readable_breaker(name: str, doc: str) -> BreakerView:
    try:
        state = decode_breaker(doc) or BreakerState()
    except (MsgspecError, RecursionError) as error:
        state = BreakerState(state=DAMAGED, reason=str(DamagedPartner(BREAKER, name, error)))
    return _breaker(name, state)


def _readable_limit(name: str, doc: str) -> LimitDoc:
    try:
        return decode_limit(doc) or LimitDoc()
    except (MsgspecError, RecursionError) as error:
        return LimitDoc(reason=str(DamagedPartner(LIMIT, name, error)))


def _breaker(name: str, state: BreakerState) -> BreakerView:
    return BreakerView(
        name=name,
        state=state.state,
        reason=state.reason,
        forced=state.forced,
        since=as_datetime(state.since) if state.since else None,
        until=as_datetime(state.until) if state.until else None,
        failures=state.streak,
        openings=state.openings,
        probes=len(state.probes),
        settings=state.settings,
    )


def _limit(name: str, doc: LimitDoc, keys: list[KeyView]) -> LimitView:
    settings = doc.settings
    bucket = None if settings is None else settings.bucket
    return LimitView(
        name=name,
        rates=[] if settings is None else [str(rate) for rate in settings.rates],
        concurrency=None if settings is None else settings.concurrency,
        capacity=None if bucket is None else bucket.capacity,
        refill=None if bucket is None else str(bucket.refill),
        changed=doc.changed is not None,
        declared=doc.declared.text() if doc.declared is not None else "",
        reason=doc.reason,
        keys=keys,
    )


def _key(key: str, doc: str, limit: LimitDoc, now: int) -> KeyView:
    counts, settings = decode_counts(doc), limit.settings
    held = limit.held_until(key, now)
    used = {}
    for rate in [] if settings is None else settings.rates:
        used[str(rate)] = rate.count - rate_left(rate, counts.counted(rate, now), now)
    return KeyView(
        key=key,
        used=used,
        running=sum(count for count, until in counts.leases.values() if until > now),
        balance=counts.tokens,
        held_until=as_datetime(held) if held else None,
    )
