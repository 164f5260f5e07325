"""A limit towards a partner as a gate: permits are leased in chunks, never more than the limit over all workers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from batuta.authoring.gates import Gate, GateCall, GateHost, Keeper, Outcome, Refusal, check_period
from batuta.clock import SECOND
from batuta.durations import Duration
from batuta.errors import InvalidInput, LimitReached, UnknownPartner
from batuta.ids import jitter
from batuta.journal.queues import Rate
from batuta.journal.resilience.partners import LIMIT, PartnerChange, PartnerDocs
from batuta.names import check_name
from batuta.resilience.answers import pause_after
from batuta.resilience.limits.rules import (
    CLAIM,
    PARTS,
    Bucket,
    Grant,
    LimitDoc,
    LimitSettings,
    Wish,
    decode_counts,
    decode_limit,
    limit_settings,
)
from batuta.resilience.partners import SOON, Partners
from batuta.telemetry import PartnerHeld

log = logging.getLogger("batuta.resilience")

ALL = "*"
"""The key of a limit without keys."""
_IDLE = 0.2
"""Seconds after which concurrency that is not in use is given back."""
_POOLS = 10_000
"""Keys that a process remembers."""
_LONGEST_SPREAD = _LONGEST_HOLD = 3600.0
_CLAIM = CLAIM / SECOND
_PAUSE = "the partner asked for a pause"


class PartnerLimit(Gate):
    """Made by `partner_limit`."""

    frees_early = False

    def __init__(
        self,
        name: str,
        settings: LimitSettings | None,
        key: str | Callable[..., object] | None,
        weight: int | Callable[..., int],
        longest_hold: float,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self.settings, self._key, self._weight, self.longest_hold = settings, key, weight, longest_hold

    def bind(self, host: GateHost) -> Keeper:
        partners = host.service(Partners)
        keeper = partners.keep(LIMIT, self.name, lambda: LimitKeeper(self.name, self.settings, partners))
        keeper.agree(self.settings)
        return _BoundLimit(self, keeper)

    def error(self, refusal: Refusal) -> LimitReached:
        return LimitReached(self.name, refusal.why, refusal.wait)

    def measure(self, call: GateCall) -> tuple[str, int]:
        """The key and the weight of a call. Raises InvalidInput."""
        key, weight = self._key, self._weight
        if callable(key) or callable(weight):
            args, kwargs = call.gate_arguments()
            key = str(key(*args, **kwargs)) if callable(key) else key
            weight = weight(*args, **kwargs) if callable(weight) else weight
        if key is not None:
            check_name(key, f"key of limit {self.name!r}")
        return key or ALL, check_weight(weight)


def check_weight(weight: object) -> int:
    """Raises InvalidInput."""
    if type(weight) is not int or not 1 <= weight <= 1_000_000:
        raise InvalidInput(f"weight={weight!r} of a limit must be a whole number from 1 to 1,000,000")
    return weight


class _BoundLimit:
    """One declaration of a limit, at the limit of its name."""

    frees_early = False

    def __init__(self, gate: PartnerLimit, keeper: LimitKeeper) -> None:
        self._gate, self._keeper = gate, keeper
        self._fixed = None if callable(gate._key) or callable(gate._weight) else gate.measure(None)  # type: ignore[arg-type]

    def enter(self, call: GateCall) -> object:
        key, weight = self._fixed or self._gate.measure(call)
        return self._keeper.enter(key, weight, claims=self._gate.on_refusal == "wait")

    def lapsed(self, ticket: Any) -> bool:
        until: float = ticket[3]
        return self._keeper.monotonic() >= until

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        pool, weight, lease, _ = ticket
        self._keeper.leave(pool, weight, None if outcome.begun else lease)
        if outcome.error is not None:
            self._keeper.obey(pool, outcome.error, self._gate.longest_hold)


class _Permits(Struct, eq=False):
    """Permits of this process for one key."""

    key: str
    topic: str
    free: int = 0
    expires: float = 0.0
    """By the monotonic clock: what has not begun until then must not begin, and what is free is lost."""
    using: int = 0
    used: int = 0
    """Since the last answer of the store."""
    lease: int = 0
    """How often the store was asked."""
    turn: int = -1
    """The turn of the limit under which the store granted last."""
    ends: dict[str, int] = {}
    """Where the store counts what it granted last."""
    blocked_until: float = 0.0
    """The store has said that nothing is allowed before."""
    held_until: float = 0.0
    """The partner has told this process that it wants no call before."""
    telling: int = 0
    """Pauses that the store does not know yet."""
    owed: int = 0
    """The weight of a call that waits, and is not to be passed by lighter ones."""
    owed_until: float = 0.0
    owed_next: float = 0.0
    """When that call asks again."""
    why: str = ""
    pace: float = 0.0
    behind: int = 0
    """Calls that were told to come back later than that."""
    asking: bool = False
    idle: bool = False
    """Free concurrency is about to be given back."""
    full: bool = False
    """The store had no more concurrency for the calls that wait here."""
    share: float = inf
    """How much concurrency this process may keep while others wait for it."""
    asked_at: float = 0.0
    ended: bool = False
    """A call has ended while the store was asked."""


class LimitKeeper:
    """The limit of one name in one process. Implements `Shared`."""

    kind = LIMIT

    def __init__(self, name: str, settings: LimitSettings | None, partners: Partners) -> None:
        self.name, self._declared, self._partners, self._host = name, settings, partners, partners.host
        self.monotonic = partners.host.monotonic
        self._settings: LimitSettings | None = None
        self._known = False
        self._turn, self._freed = -1, 0
        self._pools: dict[str, _Permits] = {}
        self._declare()

    def agree(self, settings: LimitSettings | None) -> None:
        """Two declarations of one name must not differ. Raises InvalidInput."""
        if settings is None or settings == self._declared:
            return
        if self._declared is not None:
            raise InvalidInput(
                f"limit {self.name!r} is declared twice, with {self._declared.text()} and {settings.text()}: "
                f"declare it once, and use that"
            )
        self._declared = settings
        self._declare()

    # -- calls

    def enter(self, key: str, weight: int, *, claims: bool = True) -> object:
        """`claims`: if it is refused, lighter calls do not pass it."""
        pool = self._pools.get(key)
        now = self.monotonic()
        if pool is not None and pool.free >= weight and now < pool.expires and self._is_its_turn(pool, weight, now):
            pool.free -= weight
            pool.using += weight
            pool.used += weight
            return pool, weight, pool.lease, pool.expires
        if self._settings is None:
            self._partners.check(LIMIT, self.name)
            if self._known:
                raise UnknownPartner(LIMIT, self.name)
            return Refusal(SOON, "it is not known yet", self.name, pending=True)
        if weight > self._settings.most:
            raise InvalidInput(f"limit {self.name!r} ({self._settings.text()}) never allows a call of weight {weight}")
        if pool is None:
            pool = self._new_pool(key)
        return self._refuse(pool, weight, now, claims)

    @staticmethod
    def _is_its_turn(pool: _Permits, weight: int, now: float) -> bool:
        if pool.owed and (weight >= pool.owed or now >= pool.owed_until):
            pool.owed = 0
        return pool.free - weight >= pool.owed

    def _new_pool(self, key: str) -> _Permits:
        if len(self._pools) >= _POOLS:
            idle = [one for one, pool in self._pools.items() if not (pool.using or pool.asking)]
            for one in idle:
                del self._pools[one]
        pool = self._pools[key] = _Permits(key, f"{self.name}/{key}")
        return pool

    def _refuse(self, pool: _Permits, weight: int, now: float, claims: bool) -> Refusal:
        owed = claims and weight > 1 and self._owe(pool, weight, now)
        left = pool.blocked_until - now
        if left > 0 and owed:  # in between it asks again, so that what comes free is still kept for it
            wait = min(left, _CLAIM / 2)
            pool.owed_next = now + wait
            return Refusal(wait, pool.why, pool.topic, 0.05 * jitter())
        if left > 0:
            spread = min(pool.behind * pool.pace, _LONGEST_SPREAD)
            pool.behind += weight
            return Refusal(left, pool.why, pool.topic, spread + 0.05 * jitter())
        self._partners.check(LIMIT, self.name, pool.key)
        self._ask(pool, weight)
        return Refusal(SOON, pool.why or "it is being asked for", pool.topic, pending=True)

    @staticmethod
    def _owe(pool: _Permits, weight: int, now: float) -> bool:
        """Whether this is the call for which units are kept here."""
        if weight <= pool.owed and now < min(pool.owed_next, pool.owed_until):
            return False
        pool.owed, pool.owed_until = weight, now + _CLAIM
        return True

    def leave(self, pool: _Permits, weight: int, lease: int | None = None) -> None:
        """A call has ended. `lease`: it has not begun, and what it got by that lease serves another one."""
        pool.using -= weight
        settings = self._settings
        if settings is None:
            return
        shared = bool(settings.rates) or settings.bucket is not None
        # Leased concurrency serves the next call here, unless others wait for it.
        again = lease == pool.lease if shared else not pool.asking and pool.using < pool.share
        if again and pool.turn >= self._turn and self.monotonic() >= pool.held_until:
            pool.free += weight
            pool.used = max(0, pool.used - weight) if lease is not None else pool.used
            if pool.free >= pool.owed:
                self._host.wake(pool.topic, None if pool.owed else 1)
        if settings.concurrency is None:
            return
        if self._gives_at_once(pool, again=again):
            pool.ended = pool.asking
            self._ask(pool, 0)
        elif not pool.idle:
            pool.idle = True
            self._host.call_later(_IDLE, lambda: self._give_back(pool))

    def _gives_at_once(self, pool: _Permits, *, again: bool) -> bool:
        """Whether concurrency that has come free goes to the store now: calls wait for it, here or elsewhere."""
        now = self.monotonic()
        if again and now - pool.asked_at < SOON:  # later the store is to say whether others wait
            return False
        if pool.share < inf:
            return True
        return (pool.full or now >= pool.blocked_until) and self._host.waiting(pool.topic) > 0

    def _give_back(self, pool: _Permits) -> None:
        """Give unused places to other workers."""
        pool.idle = False
        if self._host.waiting(pool.topic) and pool.free:
            self._host.wake(pool.topic, pool.free)
        self._ask(pool, 0)

    # -- the store

    def _declare(self) -> None:
        declared = self._declared

        def rule(docs: PartnerDocs) -> PartnerChange[LimitDoc]:
            found = decode_limit(docs.doc)
            if declared is None or (found is not None and declared == found.declared):
                return PartnerChange(found or LimitDoc())
            doc = found or LimitDoc(turn=docs.now)
            doc.declared, doc.turn = declared, doc.turn + 1
            return PartnerChange(doc, doc.encode(), tell=True)

        async def work() -> None:
            self._learn(await self._partners.change(LIMIT, self.name, "", rule))
            self._host.wake(self.name)

        self._partners.begin(work, self._declare)

    def _ask(self, pool: _Permits, weight: int) -> None:
        """Lease what waits here, and as much as was used of late."""
        settings = self._settings
        if pool.asking or settings is None:
            return
        pool.asking, pool.ended = True, False

        async def work() -> None:
            try:
                await self._lease(pool, weight, settings)
            finally:
                pool.asking = False
            if pool.ended:
                self._ask(pool, 0)

        self._partners.begin(work)

    async def _lease(self, pool: _Permits, weight: int, settings: LimitSettings) -> None:
        sent = pool.asked_at = self.monotonic()
        owed = pool.owed if sent < pool.owed_until else 0
        least = weight and max(weight, owed)
        waits = max(weight, self._host.waiting(pool.topic) * max(1, weight))
        ahead = 0 if settings.concurrency is not None or not weight else pool.used
        want = max(least, min(waits + ahead, max(weight, _chunk(settings))))
        unused = pool.free if settings.rates or settings.bucket is not None else 0
        wish = Wish(self._partners.holder, want, pool.using, least, owed > 1, unused, pool.ends, pool.turn)
        pool.used = pool.free = 0  # none is used, or given back, while the store counts them
        pool.lease += 1
        grant = await self._partners.change(LIMIT, self.name, pool.key, lambda docs: _granted(docs, wish, pool.key))
        if grant.freed:
            self._tell_freed()
        pool.ends, pool.why, pool.pace, pool.behind = grant.ends, grant.why, grant.pace, 0
        # The store's time was somewhere after `sent`: counted from there, permits end too early rather than too late.
        pool.expires = sent + (grant.valid_until - grant.now) / SECOND if grant.valid_until else inf
        pool.blocked_until = sent + (grant.next_at - grant.now) / SECOND if grant.next_at and want else 0.0
        pool.full, pool.share = grant.full, inf if grant.share is None else grant.share
        pool.free = grant.units
        if not (settings.rates or settings.bucket is not None):  # some ended meanwhile, and the store counts them here
            pool.free += int(max(0, min(wish.using - pool.using, pool.share - pool.using - pool.free)))
        self._distrust(pool, grant)
        wait = max(0.001, pool.blocked_until - self.monotonic())
        self._host.wake(pool.topic, pool.free if (wait < SOON or pool.full) and not pool.owed else None)
        if want and wait < SOON and self._host.waiting(pool.topic):
            self._host.call_later(wait, lambda: self._again(pool, max(1, weight)))

    def _distrust(self, pool: _Permits, grant: Grant) -> None:
        """Permits granted under a limit that has changed since are not used."""
        if grant.settings is None:
            self._partners.look_soon()
        pool.turn = grant.turn
        if grant.turn < self._turn:
            pool.free, pool.blocked_until = 0, 0.0 if grant.settings is not None else pool.blocked_until
        if pool.held_until > self.monotonic():
            pool.free, pool.why = 0, _PAUSE
            pool.blocked_until = max(pool.blocked_until, pool.held_until)

    def _tell_freed(self) -> None:
        """Other processes wait for concurrency that this one has given back."""

        def rule(docs: PartnerDocs) -> PartnerChange[None]:
            doc = decode_limit(docs.doc)
            if doc is None:
                return PartnerChange(None)
            doc.freed += 1
            return PartnerChange(None, doc.encode(), tell=True)

        self._partners.begin(lambda: self._partners.change(LIMIT, self.name, "", rule))

    def _again(self, pool: _Permits, weight: int) -> None:
        if self._host.waiting(pool.topic):
            self._ask(pool, weight)

    def obey(self, pool: _Permits, error: BaseException, longest: float) -> None:
        """If the partner said when it wants to be asked again, all processes wait until then."""
        seconds = pause_after(error, self._partners.now() / SECOND, longest)
        if seconds is None:
            return
        pool.held_until = max(pool.held_until, self.monotonic() + seconds)
        pool.blocked_until = max(pool.blocked_until, pool.held_until)
        pool.free, pool.why = 0, _PAUSE
        pool.telling += 1

        def rule(docs: PartnerDocs) -> PartnerChange[bool]:
            doc = decode_limit(docs.doc) or LimitDoc(declared=self._declared, turn=docs.now)
            turn = doc.turn
            doc.hold(pool.key, docs.now + round(seconds * SECOND), docs.now)
            return PartnerChange(doc.turn != turn, doc.encode(), tell=doc.turn != turn)

        async def work() -> None:
            try:
                told = await self._partners.change(LIMIT, self.name, "", rule)
            finally:
                pool.telling -= 1
            if told:
                log.info("limit %s, key %s: the partner asked for a pause of %g s", self.name, pool.key, seconds)
                at, namespace = self._partners.now() / SECOND, self._host.namespace
                self._host.report(PartnerHeld(at, namespace, self.name, pool.key, seconds))

        self._partners.begin(work)

    def tick(self) -> bool:
        settings = self._settings
        if settings is None or settings.concurrency is None:
            return False
        now, pools = self.monotonic(), self._pools.values()
        for pool in list(pools):
            if pool.using and not pool.asking:
                self._ask(pool, 0)
        return any(pool.using or now < pool.expires for pool in pools)

    def learn_doc(self, doc: str | None) -> None:
        found = decode_limit(doc)
        if found is None:
            if self._known and (self._settings or self._declared) is not None:
                self._declare()  # it was forgotten, or this was read before it was declared
        elif found.turn >= self._turn:
            self._learn(found)
            if found.freed != self._freed:
                self._freed = found.freed
                for pool in self._pools.values():
                    self._again(pool, 1)

    def _learn(self, doc: LimitDoc) -> None:
        """The limit as the store has it. Permits that were leased before a change are not used any more."""
        self._known = True
        if doc.turn == self._turn and self._settings == doc.settings:
            return
        self._turn, self._settings = doc.turn, doc.settings
        refused = any(pool.blocked_until for pool in self._pools.values())
        for pool in self._pools.values():
            if not pool.telling:
                pool.held_until = 0.0
            pool.free, pool.blocked_until, pool.behind = 0, pool.held_until, 0
            self._again(pool, 1)
        if refused:
            self._partners.wake_refused(self.name)


def _chunk(settings: LimitSettings) -> int:
    """The most calls to lease at once: other workers need their share, and unused leases are lost."""
    counts = [-(-rate.count // PARTS) for rate in settings.rates]
    counts += [settings.concurrency] if settings.concurrency is not None else []
    counts += [-(-settings.bucket.capacity // PARTS)] if settings.bucket is not None else []
    return min(counts)


def _granted(docs: PartnerDocs, wish: Wish, key: str) -> PartnerChange[Grant]:
    """Lease under the limit as the store has it now."""
    limit, now = decode_limit(docs.own), docs.now
    settings = None if limit is None else limit.settings
    if limit is None or settings is None:
        return PartnerChange(Grant(now, next_at=now + SECOND, why="it was removed"))
    counts, held = decode_counts(docs.doc), limit.held_until(key, now)
    if wish.turn != limit.turn:
        wish = replace(wish, unused=0)
    grant = counts.ask(settings, replace(wish, units=0) if held else wish, now)
    if held:
        grant.next_at, grant.why = held, _PAUSE
    grant.turn = limit.turn
    return PartnerChange(grant, counts.encode(), expires_at=counts.expires_at(settings, now))


def partner_limit(
    name: str,
    *,
    key: str | Callable[..., object] | None = None,
    rate: Rate | str | None = None,
    rates: Sequence[Rate | str] = (),
    concurrency: int | None = None,
    bucket: Bucket | None = None,
    weight: int | Callable[..., int] = 1,
    longest_hold: Duration = _LONGEST_HOLD,
    on_refusal: str = "wait",
    longest_wait: Duration | None = None,
) -> PartnerLimit:
    """A limit of this name towards a partner, shared by all workers of the namespace: a gate for
    `@activity(gates=[...])`.

    `key`: what is counted apart, a text or a function that is given the activity's arguments. `rate` or `rates`: how
    many may begin per period, such as "100/min"; several hold at once. `concurrency`: how many at once. `bucket`: a
    balance that the partner keeps, and `client.limits.sync` tells. `weight`: how much a call counts, a number or a
    function. A `Retry-After` of the partner holds all workers back, up to `longest_hold`.

    Without any of these the limit is that of its name in the store.
    """
    settings = None
    if rate is not None or rates or concurrency is not None or bucket is not None:
        settings = limit_settings(rate, rates, concurrency, bucket)
    if key is not None and not callable(key):
        check_name(key, f"key of limit {name!r}")
    if not callable(weight):
        check_weight(weight)
    hold = check_period("longest_hold", longest_hold)
    return PartnerLimit(name, settings, key, weight, hold, on_refusal=on_refusal, longest_wait=longest_wait)
