"""Queues: their limits, and how much waits and runs in them. Values, no I/O."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from batuta.clock import SECOND
from batuta.durations import Duration, fields_in_seconds, human_duration
from batuta.errors import InvalidInput
from batuta.journal.bus.messages import BusStatus
from batuta.journal.states import RunState

_UNITS = {"s": 1, "sec": 1, "second": 1, "m": 60, "min": 60, "minute": 60, "h": 3600, "hour": 3600, "d": 86_400}
_UNITS["day"] = 86_400
_RATE = re.compile(r"\s*([0-9]+)\s*/\s*([0-9]*\.?[0-9]*)\s*([a-z]+)\s*")
_SHORTEST, _LONGEST = 0.001, 366 * 86_400
_MOST = 1_000_000_000


class Rate(Struct, frozen=True):
    """At most `count` within any `per` (seconds, or a timedelta), wherever they begin. Also written "100/min", "5/s" or
    "10/15min".

    `per` is kept in whole microseconds, as stores keep it."""

    count: int
    per: float

    if TYPE_CHECKING:

        def __init__(self, count: int, per: Duration) -> None: ...

    def __post_init__(self) -> None:
        fields_in_seconds(self, "per")
        if type(self.count) is not int or not 1 <= self.count <= _MOST:
            raise InvalidInput(f"the count of rate {self.count!r}/{self.per!r} s must be a whole number of at least 1")
        if isinstance(self.per, bool) or not isinstance(self.per, int | float):
            raise InvalidInput(
                f"the period of rate {self.count}/{self.per!r} must be a number of seconds or a timedelta"
            )
        if not _SHORTEST <= self.per <= _LONGEST:
            raise InvalidInput(
                f"the period of rate {self.count}/{self.per!r} s must be from {human_duration(_SHORTEST)} to "
                f"{human_duration(_LONGEST)}"
            )
        force_setattr(self, "per", self.period / SECOND)

    def __str__(self) -> str:
        for unit in ("d", "h", "min", "s"):
            if self.per == _UNITS[unit]:
                return f"{self.count}/{unit}"
        return f"{self.count}/{self.per:g}s"

    @property
    def period(self) -> int:
        """`per` in microseconds."""
        return round(self.per * SECOND)

    @classmethod
    def parse(cls, text: object) -> Rate:
        """Read a text such as "100/min"; a Rate is returned as it is. Raises InvalidInput."""
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
            raise InvalidInput(f"rate {text!r} has no valid number before its unit") from None
        return cls(count, units * unit)


class QueueLimits(Struct, kw_only=True):
    """Limits of all workers of a queue together; None means no limit.

    A field whose name ends in `rate` is a `Rate`, every other one a count. The descriptions are the help of `batuta
    queues limit`.
    """

    concurrency: Annotated[int | None, Meta(description="Runs at once.")] = None
    key_concurrency: Annotated[int | None, Meta(description="Runs at once for each key.")] = None
    rate: Annotated[Rate | None, Meta(description="Runs that may begin per period, such as 100/min.")] = None
    key_rate: Annotated[Rate | None, Meta(description="Runs of each key that may begin per period.")] = None

    @property
    def any(self) -> bool:
        return any(getattr(self, name) is not None for name in LIMITS)

    def only(self, names: Collection[str]) -> QueueLimits:
        """The limits of these names, without the others."""
        return QueueLimits(**{name: getattr(self, name) for name in names})

    def columns(self) -> dict[str, int | None]:
        """By the names of the columns in a database: a rate has one for its count and one for its period."""
        found: dict[str, int | None] = {}
        for name in LIMITS:
            limit = getattr(self, name)
            if is_rate(name):
                found[f"{name}_count"], found[f"{name}_period"] = (limit.count, limit.period) if limit else (None, None)
            else:
                found[name] = limit
        return found

    @classmethod
    def of_columns(cls, row: Mapping[str, Any]) -> QueueLimits:
        """Read from `columns`; a row may have others."""
        found: dict[str, Any] = {name: _rate_of(row, name) if is_rate(name) else row[name] for name in LIMITS}
        return cls(**found)


def is_rate(limit: str) -> bool:
    """Whether the limit of this name is a `Rate`; others are counts."""
    return limit.endswith("rate")


def _rate_of(row: Mapping[str, Any], name: str) -> Rate | None:
    """None also for numbers that are no rate: a damaged row must not hold up the queues beside it."""
    count, period = row[f"{name}_count"], row[f"{name}_period"]
    if count is None or period is None:
        return None
    try:
        return Rate(count, period / SECOND)
    except InvalidInput:
        return None


LIMITS = QueueLimits.__struct_fields__
"""The names of all limits."""


def limit_help() -> dict[str, str]:
    """The help text of each limit, by its name."""
    hints = get_type_hints(QueueLimits, include_extras=True)
    return {name: hints[name].__metadata__[0].description for name in LIMITS}


def limit_changes(given: dict[str, Any]) -> dict[str, Any]:
    """Limits to set, checked; a rate may be a text. Raises InvalidInput."""
    if unknown := given.keys() - set(LIMITS):
        raise InvalidInput(f"unknown limits {', '.join(sorted(unknown))}: there are {', '.join(LIMITS)}")
    return {name: value if value is None else _limit(name, value) for name, value in given.items()}


def _limit(name: str, value: object) -> int | Rate:
    return Rate.parse(value) if is_rate(name) else check_count(name, value)


def check_count(name: str, count: object) -> int:
    """A limit on how many at once. Raises InvalidInput."""
    if type(count) is not int or not 1 <= count <= _MOST:
        raise InvalidInput(f"{name}={count!r} must be a whole number of at least 1; None means no limit")
    return count


class QueueInfo(QueueLimits, kw_only=False):
    """A queue as of now, with its limits: it has settings, is paused, or has open runs or workers."""

    name: str
    paused: bool = False
    reason: str = ""
    """Why it is paused."""
    ready: int = 0
    """Runs that are due and wait for a worker."""
    delayed: int = 0
    """Runs that will be due at a time."""
    running: int = 0
    """Runs that a worker owns."""
    oldest: datetime | None = None
    """When the run that has been due for longest became so."""
    workers: int = 0
    """Live workers that take from it."""


# -- how much is open, for metrics

MOST_COUNTED = 100_000
"""Runs that are counted of each queue, and of each other part: a larger number is shown as this one."""
MOST_QUEUES = 200
"""Queues that are looked at, by name."""


class QueueGauges(Struct, kw_only=True):
    """The work of a queue."""

    ready: int = 0
    """Runs that are due and wait for a worker."""
    delayed: int = 0
    running: int = 0
    oldest: int | None = None
    """When the run that has been due for longest became so, microseconds."""
    workers: int = 0
    """Live workers that serve it."""
    paused: bool = False


class StoreGauges(Struct, kw_only=True):
    """The open work of a namespace, all at one moment."""

    now: int
    """By the store's clock, microseconds."""
    states: dict[RunState, int]
    """Open runs; states without any are left out."""
    queues: dict[str, QueueGauges]
    """By name: those with work, live workers or a pause."""
    workers: int = 0
    """Live ones."""
    dead_letters: int = 0
    """Open ones."""
    retrying: dict[int, int] = {}
    """Open runs of which something failed and is tried again: how many failed so often."""
    schedule_due: int | None = None
    """When the schedule that has been due for longest was due, microseconds; None: none is late."""
    breakers: dict[str, str] = {}
    """State by name."""
    bus: BusStatus | None = None
    """Topics and subscriptions."""


GaugeRow = tuple[str, str, str, int, int | None]
"""part, queue, state, how many, and a time: as the queries of SQL stores give it.

Parts: `due`, `delayed` and `running` by queue and state, `idle` by state, `worker` and `paused` by queue, `retrying` by
the number of failures (in place of a queue), and `workers`, `letters`, `schedule` and `now` alone.
"""


def gauges_of(rows: Iterable[GaugeRow]) -> StoreGauges:
    """Gauges from the rows of a query."""
    found = StoreGauges(now=0, states={}, queues={})
    for part, queue, state, count, at in rows:
        if state and count:
            found.states[RunState(state)] = found.states.get(RunState(state), 0) + count
        match part:
            case "workers":
                found.workers = count
            case "letters":
                found.dead_letters = count
            case "retrying":
                found.retrying[int(queue)] = found.retrying.get(int(queue), 0) + count
            case "schedule":
                found.schedule_due = at
            case "now":
                found.now = at or 0
            case "idle":
                pass
            case _:
                _add(found.queues.setdefault(queue, QueueGauges()), part, count, at)
    found.queues = dict(sorted(found.queues.items()))
    return found


def _add(queue: QueueGauges, part: str, count: int, at: int | None) -> None:
    match part:
        case "due":
            queue.ready += count
            queue.oldest = at if queue.oldest is None or (at is not None and at < queue.oldest) else queue.oldest
        case "delayed":
            queue.delayed += count
        case "running":
            queue.running += count
        case "worker":
            queue.workers += count
        case "paused":
            queue.paused = True
