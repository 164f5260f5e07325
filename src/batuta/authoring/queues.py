"""Queues as their users speak of them: rates, and limits that are declared with a worker."""

from __future__ import annotations

import re
from datetime import datetime
from typing import Any

from msgspec import UNSET, Struct, UnsetType, structs

from batuta.authoring.names import check_name
from batuta.clock import SECOND
from batuta.errors import InvalidInput
from batuta.journal.queues import QueueLimits
from batuta.journal.queues import Rate as StoredRate

_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400}
_UNITS["day"] = 86_400
_RATE = re.compile(r"\s*([0-9]+)\s*/\s*([0-9]*\.?[0-9]*)\s*([a-z]+)\s*")
_SHORTEST, _LONGEST = 0.001, 366 * 86_400
_MOST = 1_000_000_000


class Rate(Struct, frozen=True):
    """At most `count` within any `per` seconds, wherever they begin. Also written "100/min", "5/s" or "10/15min"."""

    count: int
    per: float

    def __post_init__(self) -> None:
        if type(self.count) is not int or not 1 <= self.count <= _MOST:
            raise InvalidInput(f"the count of rate {self.count!r}/{self.per!r} s must be a whole number from 1 on")
        if isinstance(self.per, bool) or not isinstance(self.per, int | float):
            raise InvalidInput(f"the period of rate {self.count}/{self.per!r} must be a number of seconds")
        if not _SHORTEST <= self.per <= _LONGEST:
            raise InvalidInput(
                f"the period of rate {self.count}/{self.per!r} s must be from {_SHORTEST} s to {_LONGEST} s"
            )

    def __str__(self) -> str:
        for unit in ("d", "h", "min", "s"):
            if self.per == _UNITS[unit]:
                return f"{self.count}/{unit}"
        return f"{self.count}/{self.per:g}s"

    @classmethod
    def parse(cls, text: object) -> Rate:
        """Of a text such as "100/min"; a Rate is given back. Raises InvalidInput."""
        if isinstance(text, Rate):
            return text
        found = _RATE.fullmatch(text.lower()) if isinstance(text, str) else None
        unit = _UNITS.get(found[3]) if found is not None else None
        if found is None or unit is None:
            raise InvalidInput(
                f'rate {text!r} must be a Rate(count, seconds) or a text such as "100/min", "5/s", "10/15min" '
                f"(units: {', '.join(_UNITS)})"
            )
        try:
            count, units = int(found[1]), float(found[2] or 1)
        except ValueError:
            raise InvalidInput(f"rate {text!r} has no number before its unit that can be read") from None
        return cls(count, units * unit)


def stored_rate(rate: object) -> StoredRate | None:
    """As the store keeps it; None is no limit. Raises InvalidInput."""
    if rate is None:
        return None
    parsed = Rate.parse(rate)
    return StoredRate(parsed.count, round(parsed.per * SECOND))


def shown_rate(rate: StoredRate | None) -> Rate | None:
    """The other way round."""
    return None if rate is None else Rate(rate.count, rate.period / SECOND)


def check_count(name: str, count: object) -> int | None:
    """A limit on how many at once; None is no limit. Raises InvalidInput."""
    if count is None:
        return None
    if type(count) is not int or not 1 <= count <= _MOST:
        raise InvalidInput(f"{name}={count!r} must be a whole number from 1 on; None is no limit")
    return count


_LIMITS = ("concurrency", "key_concurrency", "rate", "key_rate")


def limit_changes(given: dict[str, Any]) -> dict[str, Any]:
    """Limits that somebody wants to set, as the store keeps them. Raises InvalidInput for what is none."""
    if unknown := given.keys() - set(_LIMITS):
        raise InvalidInput(f"unknown limits {', '.join(sorted(unknown))}: there are {', '.join(_LIMITS)}")
    return {
        name: stored_rate(value) if name.endswith("rate") else check_count(name, value) for name, value in given.items()
    }


class Queue(Struct, frozen=True, kw_only=False):
    """A queue, with limits that a worker sets when it starts. Those that are left out stay as they are.

    `per_worker` is this worker's own: how many of the queue's runs it has at once. The others hold for all workers
    together: `concurrency` (runs at once), `key_concurrency` (the same for each key), `rate` (runs that begin) and
    `key_rate` (the same for each key), such as "100/min". None takes a limit away.
    """

    name: str
    per_worker: int | None = None
    concurrency: int | UnsetType | None = UNSET
    key_concurrency: int | UnsetType | None = UNSET
    rate: str | Rate | UnsetType | None = UNSET
    key_rate: str | Rate | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        check_name(self.name, "queue")
        check_count("per_worker", self.per_worker)
        self.changes()

    def changes(self) -> dict[str, Any]:
        """The limits that it sets, as the store keeps them."""
        given = {name: getattr(self, name) for name in _LIMITS}
        return limit_changes({name: value for name, value in given.items() if value is not UNSET})


def merged_limits(limits: QueueLimits, changes: dict[str, Any]) -> QueueLimits:
    """These limits with some replaced."""
    return structs.replace(limits, **changes)


class QueueInfo(Struct, kw_only=True):
    """A queue, as of now."""

    name: str
    paused: bool
    note: str
    """Why it is paused."""
    concurrency: int | None
    key_concurrency: int | None
    rate: Rate | None
    key_rate: Rate | None
    ready: int
    """Runs that are due and wait for a worker."""
    delayed: int
    """Runs that will be due at a time."""
    running: int
    oldest: datetime | None
    """When the run that has been due for longest became so."""
    workers: int
    """Live workers that take from it."""
