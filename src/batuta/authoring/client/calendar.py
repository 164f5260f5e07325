"""When a schedule has its slots: cron, every, once. Values and pure functions; times are microseconds, UTC.

A cron expression names times of the wall clock of its zone, and twice a year that clock jumps:

- One that names times of the day (neither its minute nor its hour begins with `*`, as in `30 2 * * *`) has each of them
  once a day. A time that is left out when clocks go forward comes when they have; one that comes twice when they go
  back counts the first time.
- One that recurs (`*/5 * * * *`, `0 * * * *`) has a slot at every real moment whose wall clock matches: none in the
  hour that is left out, and twice as many in the one that comes twice.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TypeAlias
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from msgspec import Struct

from batuta.clock import SECOND
from batuta.durations import Duration, human_duration, in_seconds
from batuta.errors import InvalidSchedule

_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - wall clocks and UTC are both reckoned from here, without a zone
_FAR = timedelta(hours=4)
"""More than any clock has gone back since 1970."""
_LATEST = 250_000_000_000 * SECOND
"""In the year 9892: 50 years later there is still a `datetime`."""
_NO_ZONES = ("localtime", "posixrules", "factory")
"""Files beside those of the zones, whose contents differ between machines."""
_OTHER_TIMES = ("posix/", "right/")
"""Copies of all zones on some machines; the second ones count leap seconds."""
_ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}


class Cron(Struct, frozen=True, tag="cron"):
    """Times of a wall clock."""

    expression: str
    zone: str = "UTC"

    def __post_init__(self) -> None:
        _parsed(self.expression)
        _zone(self.zone)

    def next(self, after: int) -> int | None:
        """The first slot later than `after`; None when none comes within 50 years."""
        return _next_cron(self, after)

    def __str__(self) -> str:
        return f"{self.expression} ({self.zone})"


class Every(Struct, frozen=True, tag="every"):
    """Each `interval` microseconds, reckoned from 1970 (UTC) and moved on by `offset`."""

    interval: int
    offset: int = 0

    def next(self, after: int) -> int | None:
        """The first slot later than `after`."""
        found = after + self.interval - (after - self.offset) % self.interval
        return found if found < _LATEST else None

    def __str__(self) -> str:
        offset = f" + {human_duration(self.offset / SECOND)}" if self.offset else ""
        return f"every {human_duration(self.interval / SECOND)}{offset}"


class Once(Struct, frozen=True, tag="once"):
    """A single slot."""

    at: int

    def next(self, after: int) -> int | None:
        """The slot, if it is later than `after`."""
        return self.at if self.at > after else None

    def __str__(self) -> str:
        return f"once at {slot_text(self.at)}"


When: TypeAlias = Cron | Every | Once


def cron(expression: str, zone: str = "UTC") -> Cron:
    """`cron("0 2 * * *", zone="America/Sao_Paulo")`: five fields (minute, hour, day, month, weekday), or an alias such
    as @daily. Raises InvalidSchedule."""
    return Cron(expression, zone)


def every(interval: Duration, offset: Duration = 0) -> Every:
    """An interval in seconds, at least 1: `every(3600, offset=900)` is a quarter past each hour.

    Raises InvalidSchedule.
    """
    made = Every(_micros("every", interval), _micros("offset", offset))
    if made.interval < SECOND:
        raise InvalidSchedule(f"every({interval!r}) must be at least 1 second")
    if not 0 <= made.offset < made.interval:
        raise InvalidSchedule(f"offset={offset!r} must not be negative, and must be less than the interval")
    return made


def once(at: datetime) -> Once:
    """A single time, with its zone: `once(datetime(2031, 5, 17, 9, tzinfo=UTC))`. Raises InvalidSchedule."""
    return Once(slot_moment("at", at))


def slot_moment(name: str, value: object) -> int:
    """The same as `moment`, of a time at which there can be a slot. Raises InvalidSchedule."""
    found = moment(name, value)
    if not 0 <= found < _LATEST:
        raise InvalidSchedule(f"{name}={value} is too far away: the first year is 1970, the last is 9891")
    return found


def moment(name: str, value: object) -> int:
    """A datetime with a zone, in microseconds. Raises InvalidSchedule."""
    if not isinstance(value, datetime) or _offset_of(name, value) is None:
        raise InvalidSchedule(f"{name}={value!r} must be a datetime with a zone, such as {_EXAMPLE}")
    try:
        return _since_epoch(value.astimezone(UTC).replace(tzinfo=None))
    except OverflowError:
        raise InvalidSchedule(f"{name}={value} is too far away: in UTC there is no such day") from None


def _offset_of(name: str, value: datetime) -> timedelta | None:
    """None without a zone, and with a zone that has no offset."""
    try:
        return value.utcoffset()
    except Exception as error:  # a zone may run foreign code
        raise InvalidSchedule(f"{name}: the zone of {value.replace(tzinfo=None)} fails: {error!r}") from error


_EXAMPLE = "datetime(2031, 5, 17, 9, tzinfo=UTC)"


def slots(when: When, after: int, until: int) -> Iterator[int]:
    """The slots in (after, until], in order."""
    slot = when.next(after)
    while slot is not None and slot <= until:
        yield slot
        slot = when.next(slot)


def slot_text(slot: int) -> str:
    """The form in the id of a run: ISO 8601, UTC."""
    return (_EPOCH + timedelta(microseconds=slot)).isoformat() + "Z"


# -- cron


def _next_cron(when: Cron, after: int) -> int | None:
    """Look through wall times in order, and take the earliest real moment that belongs to one of them.

    CronSim cannot do it with the zone: it fails where a clock moves by half an hour, or at midnight, and it goes back
    before the start when that is in the second pass of a repeated hour.
    """
    if after >= _LATEST:
        return None
    zone, exact = _zone(when.zone), _names_times(when.expression)
    start = _from_epoch(after)
    wall = start + _offset(zone, start)
    best: datetime | None = None
    for one in _wall_times(when.expression, wall - _overlap(zone, start)):
        first, second = _real_times(zone, one, exact)
        for found in (first, second):
            if found is not None and found > start and (best is None or found < best):
                best = found
        if first is not None and first > start:
            break  # what later wall times stand for is later
    return None if best is None else _since_epoch(best)


def _wall_times(expression: str, wall: datetime) -> Iterator[datetime]:
    """Matching wall times, from `wall` on."""
    sim = copy.copy(_parsed(expression))
    sim.dt = wall.replace(microsecond=0) - timedelta(seconds=1)
    return sim


def _overlap(zone: ZoneInfo, start: datetime) -> timedelta:
    """How much of the wall clock's time close to `start` comes twice."""
    before, here, later = (_offset(zone, start + way) for way in (-_FAR, timedelta(), _FAR))
    return max(before - here, here - later, timedelta())


def _real_times(zone: ZoneInfo, wall: datetime, exact: bool) -> tuple[datetime | None, datetime | None]:
    """When the wall clock shows that time: once, twice, or (in a gap) never."""
    first = wall.replace(tzinfo=zone).utcoffset() or timedelta()
    second = wall.replace(tzinfo=zone, fold=1).utcoffset() or timedelta()
    if first == second:
        return wall - first, None
    if first > second:
        return wall - first, None if exact else wall - second
    return (_gap_end(zone, wall - second, wall - first), None) if exact else (None, None)


def _gap_end(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    """The moment between these two at which the clock went forward."""
    before = _offset(zone, low)
    while high - low > timedelta(seconds=1):
        middle = low + timedelta(seconds=(high - low) // timedelta(seconds=2))
        low, high = (middle, high) if _offset(zone, middle) == before else (low, middle)
    return high


def _offset(zone: ZoneInfo, moment: datetime) -> timedelta:
    """Of the wall clock at a real moment (UTC, without saying so)."""
    return moment.replace(tzinfo=UTC).astimezone(zone).utcoffset() or timedelta()


def _names_times(expression: str) -> bool:
    minute, hour = _fields(expression)[:2]
    return not minute.startswith("*") and not hour.startswith("*")


def _fields(expression: str) -> list[str]:
    return _ALIASES.get(expression.strip().lower(), expression).split()


@functools.lru_cache(maxsize=1024)
def _parsed(expression: str) -> CronSim:
    if not isinstance(expression, str):
        raise InvalidSchedule(f"cron expression {expression!r} must be a string such as '*/5 * * * *'")
    fields = _fields(expression)
    if len(fields) != 5:
        raise InvalidSchedule(
            f"cron expression {expression!r} must have five fields (minute hour day month weekday) or be one of "
            f"{', '.join(_ALIASES)}; for seconds there is every(...)"
        )
    try:
        sim = CronSim(" ".join(fields), _EPOCH)
        next(copy.copy(sim))
    except CronSimError as error:
        raise InvalidSchedule(f"cron expression {expression!r} is invalid: {str(error).lower()}") from None
    except StopIteration:
        raise InvalidSchedule(f"cron expression {expression!r} is wrong: this day does not exist") from None
    except (ValueError, AssertionError, AttributeError, TypeError):
        raise InvalidSchedule(f"cron expression {expression!r} is wrong") from None
    return sim


def _zone(name: str) -> ZoneInfo:
    lowered = str(name).lower()
    if lowered in _NO_ZONES or lowered.startswith(_OTHER_TIMES):
        raise InvalidSchedule(
            f"time zone {name!r} differs between machines: give an IANA name such as 'America/Sao_Paulo'"
        )
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError, TypeError, AttributeError):
        raise InvalidSchedule(f"unknown time zone {name!r}: give an IANA name such as 'America/Sao_Paulo'") from None


# -- values


def _micros(name: str, value: object) -> int:
    seconds: object = in_seconds(value)
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not -1e10 < seconds < 1e10:
        raise InvalidSchedule(f"{name}={value!r} must be a number of seconds or a timedelta")
    return round(seconds * SECOND)


def _from_epoch(micros: int) -> datetime:
    return _EPOCH + timedelta(microseconds=micros)


def _since_epoch(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(microseconds=1)
