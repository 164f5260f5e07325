"""What is left in the directory's buckets, as this process counts: a request that would get 429 is not sent.

The directory lets a request in while a balance is above zero and takes its cost afterwards. So a request is sent when
the balance is above zero even if all requests under way turn out as expensive as they can. Balances are read with the
policies; between two readings they are counted with the directory's own arithmetic and by its clock.

Where several Bridges speak for one participant, each has a share of every bucket: it counts as if requests cost as many
times as much as there are Bridges. Together they count no more than the directory has, and need not tell each other
anything. A share is never overdrawn, for that would be taken from the others.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct

from batuta import Gate, GateCall, Outcome, Refusal
from batuta.clock import Clock, SystemClock
from pixdict.dict.buckets import (
    SECOND,
    Bucket,
    Refill,
    changed,
    cost,
    lookup_cost,
    payment_credit,
    periods_to_wait,
    refilled,
)
from pixdict.dict.messages import Policy
from pixdict.dict.operations import antiscan_policies
from pixdict.dict.policies import OFFICIAL, Limit, payer_kind
from pixdict.dict.problems import DirectoryRefused

_USERS = 100_000
"""Payers whose buckets are remembered."""
_LOOKUPS = 100_000
"""Look-ups whose payment may still be told."""


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

    def __init__(self, *, refill: Refill = Refill.STEPPED, bridges: int = 1, clock: Clock | None = None) -> None:
        super().__init__("dict.balances", on_refusal="fail")
        self._refill, self._bridges = refill, bridges
        self._clock = SystemClock() if clock is None else clock
        self._ahead = 0
        """Microseconds that the directory's clock is ahead of ours."""
        self._known: dict[str, _Known] = {}
        self._unpaid: OrderedDict[tuple[str, str], Sequence[Charge]] = OrderedDict()
        """By EndToEndId and payer: what the look-up was charged to, nothing once it was paid."""
        self.synchronised = False

    # -- what the directory says

    def observe(self, response_time: datetime) -> None:
        """Its clock, which decides when tokens come back."""
        self._ahead = round(response_time.timestamp() * SECOND) - self._clock.now()

    def sync(self, policies: Iterable[Policy]) -> None:
        """Balances and sizes of the participant's buckets, as of now."""
        now = self.now()
        for policy in policies:
            if policy.capacity <= 0 or policy.refill_tokens <= 0:  # as in the official sample: nothing to count with
                self._known.pop(policy.name, None)
                continue
            limit = Limit(policy.refill_tokens, policy.capacity, max(1, policy.refill_period_sec))
            # All that is missing may be ours, and the shares of others full.
            tokens = limit.capacity - self._bridges * (limit.capacity - policy.available_tokens)
            known = self._known.get(policy.name)
            if known is None:
                known = self._known[policy.name] = _Known(limit, Bucket(tokens, now))
            elif self._bridges > 1:
                tokens = min(max(self._current(known).tokens, tokens), self._bridges * policy.available_tokens)
            known.limit, known.bucket = limit, Bucket(tokens, now)
        self.synchronised = True

    def found(self, end_to_end_id: str, payer_id: str, charges: Sequence[Charge]) -> None:
        """A look-up found its key: the directory gives tokens back when its payment is sent."""
        self._unpaid.setdefault((end_to_end_id, payer_id), charges)
        if len(self._unpaid) > _LOOKUPS:
            self._unpaid.popitem(last=False)

    def paid(self, end_to_end_id: str, payer_id: str) -> bool:
        """The payment of a look-up was sent. False: no look-up is known here that waits for it."""
        charges = self._unpaid.get((end_to_end_id, payer_id), ())
        if charges:
            self._unpaid[end_to_end_id, payer_id] = ()
        for one, tokens in zip(charges, payment_credit(payer_id), strict=False):
            known = self._known.get(one.bucket)
            if known is not None:
                known.bucket = changed(self._current(known), self._bridges * tokens, known.limit)
        return bool(charges)

    def balance(self, bucket: str) -> int | None:
        """What is left now of our share, without what is under way. None: not known."""
        known = self._known.get(bucket)
        return None if known is None else self._current(known).tokens // self._bridges

    def wait(self, charges: Iterable[Charge]) -> float:
        """Seconds until all buckets of a request have tokens again, as far as they are known."""
        found = [(known, self._least(one)) for one in charges if (known := self._of(one)) is not None]
        return max((self._wait(known, least) for known, least in found if known.bucket.tokens < least), default=0.0)

    # -- what a gate does

    def enter(self, call: GateCall) -> object:
        [charges], _ = call.gate_arguments()
        found = [(one, self._of(one)) for one in charges]
        for one, known in found:
            if known is None:  # the first reading of the policies tells
                continue
            known.bucket = self._current(known)
            least = self._least(one)
            if known.bucket.tokens - known.reserved < least:
                left = known.bucket.tokens // self._bridges
                return Refusal(self._wait(known, least), f"the bucket {one.policy} has {left} tokens")
        for one, known in found:
            if known is not None:
                known.reserved += self._bridges * one.worst
        return found

    def leave(self, ticket: Any, outcome: Outcome) -> None:
        status = _status(outcome)
        for one, known in ticket:
            if known is not None:
                known.reserved -= self._bridges * one.worst
            elif (known := self._of(one)) is None:
                continue
            if status is None and not outcome.ran and outcome.error is None:
                continue  # another gate refused: nothing was sent
            taken = one.worst if status is None else one.cost(status)
            known.bucket = changed(self._current(known), -self._bridges * taken, known.limit)
            if status == 429:  # it knows better
                known.bucket = Bucket(min(0, known.bucket.tokens), known.bucket.at)

    def _of(self, charge: Charge) -> _Known | None:
        known = self._known.get(charge.bucket)
        if known is None and charge.limit is not None:
            if len(self._known) >= _USERS:
                self._forget_full()
            full = Bucket(charge.limit.capacity, self.now())
            known = self._known[charge.bucket] = _Known(charge.limit, full)
        return known

    def _forget_full(self) -> None:
        """A bucket that is full is as good as one that was never seen."""
        for name, known in list(self._known.items()):
            if "/" in name and not known.reserved and self._current(known).tokens >= known.limit.capacity:
                del self._known[name]

    def _current(self, known: _Known) -> Bucket:
        return refilled(known.bucket, self.now(), known.limit, self._refill)

    def now(self) -> int:
        """The directory's clock in microseconds, as far as its last answer tells."""
        return self._clock.now() + self._ahead

    def _least(self, charge: Charge) -> int:
        """What must be there to let a request in: a token, or what it may cost where others have a share."""
        return 1 if self._bridges == 1 else self._bridges * charge.worst

    def _wait(self, known: _Known, least: int) -> float:
        """Seconds until tokens come; soon, if it is only that requests are under way."""
        if known.bucket.tokens >= least:
            return 0.05
        period = known.limit.period * SECOND
        periods = periods_to_wait(known.bucket.tokens - least + 1, known.limit)
        return (period - self.now() % period + (periods - 1) * period) / SECOND


def _status(outcome: Outcome) -> int | None:
    """Of the answer. None: there was none, or it cannot be read."""
    if outcome.error is None:
        return 200 if outcome.ran else None
    return outcome.error.status if isinstance(outcome.error, DirectoryRefused) else None
