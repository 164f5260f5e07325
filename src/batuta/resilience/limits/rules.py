"""Rules of a limit towards a partner: decisions over its documents and the store's time. No I/O."""

from __future__ import annotations

from itertools import pairwise
from math import inf
from typing import Any

from msgspec import Struct, field, json

from batuta.clock import SECOND
from batuta.errors import InvalidInput
from batuta.journal.queues import Rate
from batuta.journal.resilience.partners import is_set_back
from batuta.journal.resilience.rates import rate_allows, rate_left, window_end

PARTS = 20
"""Parts of a rate's period. What is leased in one of them is used in it, so that it counts for every window that the
call is in."""
LEASE = 15 * SECOND
"""Concurrency that a process does not renew for so long is given back."""
CLAIM = 30 * SECOND
"""How long units are kept for a heavy call that does not ask again, in microseconds."""
WAITS = 3 * SECOND
"""For so long a process that got too little concurrency counts as waiting: it asks again within a second."""
_MOST = 1_000_000_000


class Bucket(Struct, frozen=True):
    """A balance that the partner keeps: it tells how much is left, and what comes back per period."""

    capacity: int
    refill: Rate


class LimitSettings(Struct, frozen=True, kw_only=True):
    """The limits for each key."""

    rates: list[Rate] = []
    concurrency: int | None = None
    bucket: Bucket | None = None

    def __post_init__(self) -> None:
        if not self.rates and self.concurrency is None and self.bucket is None:
            raise InvalidInput("a limit needs rates=, concurrency= or bucket=: it would allow everything")
        for name, count in (("concurrency", self.concurrency), ("capacity", self.bucket and self.bucket.capacity)):
            if count is not None and (type(count) is not int or not 1 <= count <= _MOST):
                raise InvalidInput(f"{name}={count!r} of a limit must be a whole number from 1 to {_MOST:,}")
        by_period = sorted(self.rates, key=lambda rate: rate.period)
        for short, long in pairwise(by_period):
            if short.period == long.period or long.count <= short.count:
                raise InvalidInput(f"rates {short} and {long} contradict each other: the longer period must allow more")

    @property
    def most(self) -> float:
        """How much one call can take at most."""
        counts = [rate.count for rate in self.rates]
        counts += [one for one in (self.concurrency, self.bucket and self.bucket.capacity) if one]
        return min(counts, default=inf)

    def text(self) -> str:
        """In words, for people."""
        said = [str(rate) for rate in self.rates]
        said += [f"{self.concurrency} at once"] if self.concurrency else []
        said += [f"balance {self.bucket.capacity} + {self.bucket.refill}"] if self.bucket else []
        return ", ".join(said)


class LimitDoc(Struct, kw_only=True):
    """A limit, as the store keeps it."""

    declared: LimitSettings | None = None
    """As code has it."""
    changed: LimitSettings | None = None
    """As an operator has changed it: this holds."""
    reason: str = ""
    holds: dict[str, int] = field(default_factory=dict)
    """By key: until when the partner wants no call."""
    held_at: int = 0
    """When the last pause was asked for."""
    turn: int = 0
    """Rises with each change: leased permits of before are not used any more. It begins with the
    store's time, so that it also rises when a limit is forgotten and declared again."""
    freed: int = 0
    """Rises when concurrency is given back for which others wait."""

    @property
    def settings(self) -> LimitSettings | None:
        return self.changed or self.declared

    def encode(self) -> str:
        return json.encode(self).decode()

    def hold(self, key: str, until: int, now: int) -> None:
        """The partner asked for a pause: no worker calls it before then. A shorter one does not end a longer one."""
        self.holds = {one: at for one in self.holds if (at := self.held_until(one, now))}
        self.held_at = now
        if until > self.holds.get(key, now):
            self.holds[key] = until
            self.turn += 1

    def held_until(self, key: str, now: int) -> int:
        """0: it is not held. A pause from before the clock was set back is over: the partner says so if it is not."""
        until = self.holds.get(key, 0)
        return until if until > now and not is_set_back(self.held_at, now) else 0

    def release(self, key: str) -> None:
        if self.holds.pop(key, None) is not None:
            self.turn += 1


class Grant(Struct):
    """The grant to a process."""

    now: int
    units: int = 0
    valid_until: int = 0
    """Calls of these units are to begin before; 0: no limit of time."""
    next_at: int = 0
    """When more may be allowed; 0 when all that was asked for was given."""
    pace: float = 0.0
    """Seconds from one unit to the next, where that is known."""
    why: str = ""
    turn: int = 0
    settings: LimitSettings | None = None
    ends: dict[str, int] = {}
    """Where the units are counted, by the rate's period."""
    freed: bool = False
    """Concurrency was given back for which others wait."""
    full: bool = False
    """Concurrency is what lacks."""
    share: int | None = None
    """Others wait for concurrency: what this process may keep of it."""


class Wish(Struct, frozen=True):
    """The request of a process."""

    holder: str
    units: int
    """At most so many; 0: it renews what it has, and gives the rest back."""
    using: int = 0
    """Units of its concurrency."""
    least: int = 1
    """Fewer are of no use to it."""
    claims: bool = False
    """If it gets none, units that come free are kept for it."""
    unused: int = 0
    """Units of its last lease that it will not use any more."""
    ends: dict[str, int] = {}
    """Where those are counted."""
    turn: int = 0
    """The turn of the limit when it leased them."""


class LimitCounts(Struct, kw_only=True):
    """The state of one key."""

    begun: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By the rate's period."""
    leases: dict[str, tuple[int, int]] = field(default_factory=dict)
    """By process: calls that may be under way there, and until when it has them."""
    waiting: dict[str, int] = field(default_factory=dict)
    """Processes that wait for concurrency of others, and until when they count."""
    claim: tuple[int, int] | None = None
    """So many units are kept for a heavy call that waits, until when: lighter ones would take each that comes free."""
    tokens: float | None = None
    """The balance, as of `at`. None: the partner has not told it, and it is full."""
    at: int = 0

    def encode(self) -> str:
        return json.encode(self).decode()

    def counted(self, rate: Rate, now: int) -> list[tuple[int, int]]:
        """The counts of a rate. A new period begins with the counts of the longest one."""
        found = self.begun.get(str(rate.period))
        if found is not None or not self.begun:
            return found or []
        found, latest = [], window_end(rate, now, PARTS)
        for end, count in self.begun[max(self.begun, key=int)]:
            found = _added(found, min(end, latest), count, now - rate.period)
        return found

    def ask(self, settings: LimitSettings, wish: Wish, now: int) -> Grant:
        """Lease units to a process. What it has leased before and does not use is given back."""
        grant = Grant(now, wish.units, settings=settings)
        self._take_back(settings, wish, now)
        if self.claim is not None and self.claim[1] > now + CLAIM:  # from before the clock was set back
            self.claim = self.claim[0], now + CLAIM
        kept = self.claim[0] if self.claim is not None and self.claim[1] > now and self.claim[0] > wish.least else 0
        self._lower(grant, settings, kept, now)
        if settings.concurrency is not None:
            self._share(grant, settings.concurrency, wish, kept, now)
        if settings.bucket is not None:
            self._draw(grant, settings.bucket, kept, now)
        if grant.units < wish.least:
            grant.units = 0
        more = kept + (1 if grant.units else wish.least)
        idle = self._is_idle(settings, grant.units, now)
        for rate in settings.rates:
            counts, end = self.begun[str(rate.period)], window_end(rate, now, PARTS)
            if idle:  # there is plenty: counted for longer, and used for longer
                end += -(-rate.period // PARTS) * (PARTS // 2)
            begun = self.begun[str(rate.period)] = _added(counts, end, grant.units, now - rate.period)
            grant.ends[str(rate.period)] = end
            grant.valid_until = min(grant.valid_until or end, end)
            next_at = rate_allows(rate, begun, now, min(more, rate.count))
            if grant.units < wish.units and next_at > max(now, grant.next_at):
                grant.next_at, grant.pace = next_at, rate.per / rate.count
        if settings.concurrency is not None:
            self.leases.pop(wish.holder, None)
            if wish.using + grant.units:
                self.leases[wish.holder] = wish.using + grant.units, now + LEASE
            grant.valid_until = min(grant.valid_until or now + LEASE, now + LEASE)
        if settings.bucket is not None and self.tokens is not None:
            self.tokens -= grant.units
            self._say_when_drawn(grant, settings.bucket, more, wish.units)
        if grant.units < wish.units:
            grant.next_at = grant.next_at or now + SECOND
        self._claim(grant, wish, kept, now)
        return grant

    def _take_back(self, settings: LimitSettings, wish: Wish, now: int) -> None:
        """Units that were leased and not used have not begun."""
        self.begun = {str(rate.period): self.counted(rate, now) for rate in settings.rates}
        for period, counts in self.begun.items():
            if (end := wish.ends.get(period, 0)) in dict(counts):
                self.begun[period] = _added(counts, end, -min(wish.unused, dict(counts)[end]), 0)
        if self.tokens is not None:
            self.tokens += wish.unused

    def _claim(self, grant: Grant, wish: Wish, kept: int, now: int) -> None:
        """Keep for a heavy call what comes free, until it got it or asks no more."""
        if kept or not wish.units:
            return
        if grant.units:
            self.claim = None
        elif wish.claims and wish.least > 1:
            self.claim = wish.least, now + CLAIM

    def _is_idle(self, settings: LimitSettings, units: int, now: int) -> bool:
        """Whether at least half of every rate is left."""
        counts = ((rate, self.begun[str(rate.period)]) for rate in settings.rates)
        return all(2 * (rate_left(rate, begun, now) - units) >= rate.count for rate, begun in counts)

    def _lower(self, grant: Grant, settings: LimitSettings, kept: int, now: int) -> None:
        for rate in settings.rates:
            left = max(0, rate_left(rate, self.begun[str(rate.period)], now) - kept)
            if left < grant.units:
                grant.units, grant.why = left, f"{rate} is used up"

    def _share(self, grant: Grant, concurrency: int, wish: Wish, kept: int, now: int) -> None:
        latest = now + LEASE  # one that ends later is from before the clock was set back
        self.leases = {one: (count, min(end, latest)) for one, (count, end) in self.leases.items() if end > now}
        self.waiting = {one: end for one, end in self.waiting.items() if now < end <= now + WAITS}
        self.waiting.pop(wish.holder, None)
        taken = wish.using + sum(count for one, (count, _) in self.leases.items() if one != wish.holder)
        left = free = max(0, concurrency - taken)
        if self.waiting:
            sharing = {wish.holder, *self.leases, *self.waiting}
            grant.share = max(1, concurrency // len(sharing))
            free = min(free, max(grant.share, wish.least) - wish.using)
        if free - kept < grant.units:
            grant.units, grant.why, grant.full = max(0, free - kept), f"{concurrency} are under way", True
            grant.next_at = grant.next_at or now + SECOND
        grant.freed = bool(self.waiting) and left > grant.units
        if grant.full and wish.units:
            self.waiting[wish.holder] = now + WAITS

    def _draw(self, grant: Grant, bucket: Bucket, kept: int, now: int) -> None:
        per_micro = bucket.refill.count / bucket.refill.period
        tokens = float(bucket.capacity) if self.tokens is None else self.tokens + max(0, now - self.at) * per_micro
        self.tokens, self.at = min(float(bucket.capacity), tokens), now
        if self.tokens - kept < grant.units:
            grant.units, grant.why = max(0, int(self.tokens - kept)), f"the balance is {self.tokens:.0f}"

    def _say_when_drawn(self, grant: Grant, bucket: Bucket, more: int, asked: int) -> None:
        lacks = min(more, bucket.capacity) - (self.tokens or 0.0)
        if grant.units < asked and lacks > 0:
            per_micro = bucket.refill.count / bucket.refill.period
            grant.next_at = max(grant.next_at, grant.now + int(lacks / per_micro) + 1)
            grant.pace = max(grant.pace, bucket.refill.per / bucket.refill.count)

    def sync(self, tokens: float, now: int) -> None:
        """The partner told its balance, which may be negative."""
        self.tokens, self.at = float(tokens), now

    def expires_at(self, settings: LimitSettings, now: int) -> int | None:
        """When nothing of it counts any more. A balance is kept."""
        if settings.bucket is not None:
            return None
        longest = max((rate.period for rate in settings.rates), default=0)
        return now + 2 * longest + LEASE


def _added(counts: list[tuple[int, int]], end: int, units: int, since: int) -> list[tuple[int, int]]:
    kept: dict[int, int] = {}
    for one, count in [*counts, (end, units)]:
        if one > since and count:
            kept[one] = kept.get(one, 0) + count
    return sorted(kept.items())


def decode_limit(doc: str | None) -> LimitDoc | None:
    return None if not doc else json.decode(doc, type=LimitDoc)


def decode_counts(doc: str | None) -> LimitCounts:
    return LimitCounts() if not doc else json.decode(doc, type=LimitCounts)


def limit_settings(
    rate: Any = None, rates: Any = (), concurrency: int | None = None, bucket: Bucket | None = None
) -> LimitSettings:
    """As users give it: a rate may be a text. Raises InvalidInput."""
    if isinstance(rates, str | Rate):
        raise InvalidInput(f"rates={rates!r} must be a list, such as ['100/min', '1000/h']; one rate is given as rate=")
    if isinstance(rate, list | tuple):
        raise InvalidInput(f"rate={rate!r} must be one rate, such as '100/min'; several are given as rates=")
    if bucket is not None and not isinstance(bucket, Bucket):
        raise InvalidInput(f"bucket={bucket!r} must be a Bucket(capacity, refill)")
    given = [*([] if rate is None else [rate]), *rates]
    if bucket is not None:
        bucket = Bucket(bucket.capacity, Rate.parse(bucket.refill))
    return LimitSettings(rates=[Rate.parse(one) for one in given], concurrency=concurrency, bucket=bucket)
