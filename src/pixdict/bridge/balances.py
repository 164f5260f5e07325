"""What is left in the directory's buckets, as this process counts: a request that would get 429 is not sent.

The directory lets a request in while a balance is above zero and takes its cost afterwards. So a request is sent when
the balance is above zero even if all requests under way turn out as expensive as they can. Balances are read with the
policies; between two readings they are counted with the directory's own arithmetic and by its clock.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from msgspec import Struct

from batuta import Gate, GateCall, Outcome, Refusal
from batuta.clock import Clock, SystemClock
from pixdict.dict.buckets import SECOND, Bucket, Refill, changed, cost, lookup_cost, periods_to_wait, refilled
from pixdict.dict.messages import Policy
from pixdict.dict.operations import antiscan_policies
from pixdict.dict.policies import OFFICIAL, Limit, payer_kind
from pixdict.dict.problems import DirectoryRefused

_USERS = 100_000
"""Payers whose buckets are remembered."""


class Charge(Struct, frozen=True):
    """What a request takes from one bucket."""

    bucket: str
    """A policy, or a policy and a payer."""
    policy: str
    limit: Limit | None
    """Of a bucket that `/policies/` does not list."""
    by_status: Mapping[int, int]
    """The cost of an answer, where it is not the usual one."""
    worst: int = 1

    def cost(self, status: int) -> int:
        return self.by_status.get(status, 0) if self.by_status else cost(status)


def charge(policy: str) -> list[Charge]:
    """Of every request but a lookup."""
    return [Charge(policy, policy, None, {})]


def lookup_charges(key_type: str, payer_id: str) -> list[Charge]:
    """A lookup touches the bucket of the payer and that of the participant."""
    user, participant = antiscan_policies(key_type)
    by_user = {status: lookup_cost(status)[0] for status in (200, 404)}
    by_participant = {status: lookup_cost(status)[1] for status in (200, 404)}
    limit = OFFICIAL[user].limit(payer_kind(payer_id))
    return [
        Charge(f"{user}/{payer_id}", user, limit, by_user, by_user[404]),
        Charge(participant, participant, None, by_participant, by_participant[404]),
    ]


class _Known(Struct):
    limit: Limit
    bucket: Bucket
    reserved: int = 0
    """The most that requests under way can take."""


class Balances(Gate):
    """A gate in front of the directory. Its argument is the list of charges of the request."""

    frees_early = False

    def __init__(self, *, refill: Refill = Refill.STEPPED, clock: Clock | None = None) -> None:
        super().__init__("dict.balances", on_refusal="fail")
        self._refill, self._clock = refill, SystemClock() if clock is None else clock
        self._ahead = 0
        """Microseconds that the directory's clock is ahead of ours."""
        self._known: dict[str, _Known] = {}
        self.synchronised = False

    # -- what the directory says

    def observe(self, response_time: datetime) -> None:
        """Its clock, which decides when tokens come back."""
        self._ahead = round(response_time.timestamp() * SECOND) - self._clock.now()

    def sync(self, policies: Iterable[Policy]) -> None:
        """Balances and sizes of the participant's buckets, as of now."""
        now = self._now()
        for policy in policies:
            limit = Limit(policy.refill_tokens, policy.capacity, max(1, policy.refill_period_sec))
            known = self._known.setdefault(policy.name, _Known(limit, Bucket(0, now)))
            known.limit, known.bucket = limit, Bucket(policy.available_tokens, now)
        self.synchronised = True

    def credit(self, bucket: str, tokens: int) -> None:
        """The directory gave tokens back: the payment of a lookup was sent."""
        known = self._known.get(bucket)
        if known is not None:
            known.bucket = changed(self._current(known), tokens, known.limit)

    def balance(self, bucket: str) -> int | None:
        """What is left now, without what is under way. None: not known."""
        known = self._known.get(bucket)
        return None if known is None else self._current(known).tokens

    # -- what a gate does

    def enter(self, call: GateCall) -> object:
        [charges], _ = call.gate_arguments()
        found = [(one, self._of(one)) for one in charges]
        for one, known in found:
            if known is None:  # the first reading of the policies tells
                continue
            known.bucket = self._current(known)
            if known.bucket.tokens - known.reserved <= 0:
                return Refusal(self._wait(known), f"the bucket {one.policy} has {known.bucket.tokens} tokens")
        for one, known in found:
            if known is not None:
                known.reserved += one.worst
        return found

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        status = _status(outcome)
        for one, known in ticket:
            if known is not None:
                known.reserved -= one.worst
            elif (known := self._of(one)) is None:
                continue
            if status is None and not outcome.ran and outcome.error is None:
                continue  # another gate refused: nothing was sent
            taken = one.worst if status is None else one.cost(status)
            known.bucket = changed(self._current(known), -taken, known.limit)
            if status == 429:  # it knows better
                known.bucket = Bucket(min(0, known.bucket.tokens), known.bucket.at)

    def _of(self, charge: Charge) -> _Known | None:
        known = self._known.get(charge.bucket)
        if known is None and charge.limit is not None:
            if len(self._known) >= _USERS:
                self._forget_full()
            full = Bucket(charge.limit.capacity, self._now())
            known = self._known[charge.bucket] = _Known(charge.limit, full)
        return known

    def _forget_full(self) -> None:
        """A bucket that is full is as good as one that was never seen."""
        for name, known in list(self._known.items()):
            if "/" in name and not known.reserved and self._current(known).tokens >= known.limit.capacity:
                del self._known[name]

    def _current(self, known: _Known) -> Bucket:
        return refilled(known.bucket, self._now(), known.limit, self._refill)

    def _now(self) -> int:
        return self._clock.now() + self._ahead

    def _wait(self, known: _Known) -> float:
        """Seconds until tokens come; soon, if it is only that requests are under way."""
        if known.bucket.tokens > 0:
            return 0.05
        period = known.limit.period * SECOND
        periods = periods_to_wait(known.bucket.tokens, known.limit)
        return (period - self._now() % period + (periods - 1) * period) / SECOND


def _status(outcome: Outcome) -> int | None:
    """Of the answer. None: there was none, or it cannot be read."""
    if outcome.error is None:
        return 200 if outcome.ran else None
    return outcome.error.status if isinstance(outcome.error, DirectoryRefused) else None
