"""Rate limits: which buckets a request touches, whether it is let in, what it costs."""

from __future__ import annotations

from msgspec import Struct

from pixdict.dict import buckets
from pixdict.dict.buckets import Bucket, Refill
from pixdict.dict.policies import Limit, PolicyRule, Scope, payer_kind
from pixdict.directory.storage import Storage


class Touched(Struct, frozen=True):
    """A bucket that a request touches."""

    policy: str
    scope: str
    limit: Limit


class Limiter:
    """The buckets of all participants and their users."""

    def __init__(self, storage: Storage, rules: dict[str, PolicyRule], refill: Refill) -> None:
        self.rules = rules
        self._storage = storage
        self._refill = refill

    def touched(self, policy: str, participant: str, category: str, payer: str = "") -> Touched:
        """The bucket of a policy for a participant, or for one of its users."""
        rule = self.rules[policy]
        if rule.scope is Scope.USER:
            return Touched(policy, f"{participant}/{payer}", rule.limit(payer_kind(payer)))
        return Touched(policy, participant, rule.limit(category))

    def balance(self, bucket: Touched, now: int) -> int:
        """The tokens that are there now."""
        return self._now(bucket, now).tokens

    def admits(self, touched: list[Touched], now: int) -> bool:
        """Whether each of the buckets has tokens."""
        return all(self.balance(bucket, now) > 0 for bucket in touched)

    def change(self, bucket: Touched, by: int, now: int) -> None:
        """Take the cost of an answer (negative), or give a credit."""
        if by:
            changed = buckets.changed(self._now(bucket, now), by, bucket.limit)
            self._storage.put_bucket(bucket.policy, bucket.scope, changed)

    def set(self, bucket: Touched, tokens: int, now: int) -> None:
        """Set a balance by hand."""
        self._storage.put_bucket(bucket.policy, bucket.scope, Bucket(tokens, now))

    def _now(self, bucket: Touched, now: int) -> Bucket:
        kept = self._storage.bucket(bucket.policy, bucket.scope)
        if kept is None:
            return Bucket(bucket.limit.capacity, now)
        return buckets.refilled(kept, now, bucket.limit, self._refill)
