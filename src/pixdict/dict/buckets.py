"""Arithmetic of token buckets, as the directory counts. Both sides use it: the client predicts what the directory has.

A request is let in while the balance is above zero; its cost comes off afterwards, so that a balance may be negative.
"""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from pixdict.dict.policies import COMPANY, Limit, payer_kind

SECOND = 1_000_000


class Refill(StrEnum):
    """How tokens come back: all of a period at its end, or one by one. Periods begin at multiples of their length
    since 1970, so that the time alone tells when tokens come."""

    STEPPED = "stepped"
    CONTINUOUS = "continuous"


class Bucket(Struct, frozen=True):
    """A balance at a moment (microseconds)."""

    tokens: int
    at: int


def refilled(bucket: Bucket, now: int, limit: Limit, refill: Refill = Refill.STEPPED) -> Bucket:
    """The same bucket now. A balance above the capacity (set by hand) neither grows nor shrinks."""
    if now <= bucket.at:
        return bucket
    gained = tokens_until(now, limit, refill) - tokens_until(bucket.at, limit, refill)
    tokens = bucket.tokens if bucket.tokens >= limit.capacity else min(limit.capacity, bucket.tokens + gained)
    return Bucket(tokens, now)


def tokens_until(moment: int, limit: Limit, refill: Refill) -> int:
    """All tokens given out since 1970: the difference of two moments is what came back between them."""
    period = limit.period * SECOND
    return moment // period * limit.refill if refill is Refill.STEPPED else moment * limit.refill // period


def changed(bucket: Bucket, by: int, limit: Limit) -> Bucket:
    """After a cost (negative, may lead below zero) or a credit, which never leads above the capacity."""
    tokens = bucket.tokens + by
    return Bucket(min(tokens, max(limit.capacity, bucket.tokens)) if by > 0 else tokens, bucket.at)


def periods_to_wait(tokens: int, limit: Limit) -> int:
    """After how many refills a request is let in again."""
    return 0 if tokens > 0 else -(-(1 - tokens) // limit.refill)


def lookup_cost(status: int) -> tuple[int, int]:
    """What a lookup takes from the user's and from the participant's bucket, by the status of its answer."""
    return {200: (1, 1), 404: (20, 3)}.get(status, (0, 0))


def cost(status: int) -> int:
    """What any other request takes. A refusal for lack of tokens is free, else a client could never recover."""
    return 0 if status in (429, 500) else 1


def payment_credit(payer_id: str) -> tuple[int, int]:
    """What comes back to the user's and the participant's bucket when the payment of a lookup was sent."""
    return (2 if payer_kind(payer_id) == COMPANY else 1, 1)
