"""Next times against a brute-force oracle, over every kind of change of the clock."""

import functools
import itertools
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batuta.authoring.client.calendar import Cron, cron, slots
from batuta.clock import SECOND
from tests.long import examples

pytestmark = pytest.mark.timeout(180)

MINUTE = timedelta(minutes=1)
AFTER = timedelta(hours=30)

CHANGES = {
    # Midnight does not exist, and the last hour of a day comes twice; no more changes since 2019.
    "America/Sao_Paulo": [
        "2018-11-04T03:00Z",
        "2018-02-18T02:00Z",
        "2017-10-15T03:00Z",
        "2019-02-17T02:00Z",
        "1996-10-06T03:00Z",
    ],
    "America/New_York": ["2024-03-10T07:00Z", "2024-11-03T06:00Z", "2007-03-11T07:00Z", "1987-10-25T06:00Z"],
    # Half an hour.
    "Australia/Lord_Howe": ["2023-09-30T15:30Z", "2024-04-06T15:00Z", "2019-10-05T15:30Z", "1985-10-26T15:30Z"],
}
PLACES = [(zone, datetime.fromisoformat(change)) for zone, changes in CHANGES.items() for change in changes]


class Field:
    """A field of an expression, by its own understanding of it: text, and the numbers that match."""

    def __init__(self, text: str, numbers: set[int]) -> None:
        self.text, self.numbers = text, numbers


@st.composite
def fields(draw: st.DrawFn, low: int, high: int) -> Field:
    shape = draw(st.sampled_from(["*", "*/n", "n", "a-b", "list", "a-b/n"]))
    first, last = sorted([draw(st.integers(low, high)), draw(st.integers(low, high))])
    step = draw(st.integers(1, 20))
    everything = range(low, high + 1)
    match shape:
        case "*":
            return Field("*", set(everything))
        case "*/n":
            return Field(f"*/{step}", set(everything[::step]))
        case "n":
            return Field(str(first), {first})
        case "a-b" if first < last:
            return Field(f"{first}-{last}", set(range(first, last + 1)))
        case "a-b/n" if first < last:
            return Field(f"{first}-{last}/{step}", set(range(first, last + 1, step)))
        case _:
            return Field(f"{first},{last}", {first, last})


class Expression:
    """An expression with an oracle of its own."""

    def __init__(self, minute: Field, hour: Field, day: Field, month: Field, weekday: Field) -> None:
        self.minute, self.hour, self.day, self.month, self.weekday = minute, hour, day, month, weekday
        self.text = " ".join(field.text for field in (minute, hour, day, month, weekday))
        self.exact = not minute.text.startswith("*") and not hour.text.startswith("*")

    def matches(self, wall: datetime) -> bool:
        day, weekday = wall.day in self.day.numbers, wall.isoweekday() % 7 in self.weekday.numbers
        either = not self.day.text.startswith("*") and not self.weekday.text.startswith("*")
        return (
            wall.minute in self.minute.numbers
            and wall.hour in self.hour.numbers
            and wall.month in self.month.numbers
            and ((day or weekday) if either else (day and weekday))
        )

    def __repr__(self) -> str:
        return self.text


def star(low: int, high: int) -> Field:
    return Field("*", set(range(low, high + 1)))


@st.composite
def expressions(draw: st.DrawFn) -> Expression:
    minute, hour = draw(fields(0, 59)), draw(fields(0, 23))
    day = draw(st.just(star(1, 31)) | fields(1, 31))
    month = draw(st.just(star(1, 12)) | fields(1, 12))
    weekday = draw(st.just(star(0, 6)) | fields(0, 6))
    return Expression(minute, hour, day, month, weekday)


@functools.cache
def minutes_around(zone: str, change: datetime) -> tuple[list[datetime], list[datetime]]:
    """The minutes of some days, and what the wall clock shows at each."""
    real = [change - timedelta(days=2) + n * MINUTE for n in range(4 * 24 * 60)]
    return real, [moment.astimezone(ZoneInfo(zone)).replace(tzinfo=None) for moment in real]


def oracle(expression: Expression, zone: str, change: datetime) -> list[datetime]:
    """Every slot around a change, by looking at every real minute and at every minute of the wall clock."""
    real, shown = minutes_around(zone, change)
    if not expression.exact:
        return [moment for moment, wall in zip(real, shown, strict=True) if expression.matches(wall)]
    first_shown: dict[datetime, datetime] = {}
    for moment, wall in zip(real, shown, strict=True):
        first_shown.setdefault(wall, moment)
    found = set()
    for n in range((shown[-1] - shown[0]) // MINUTE):
        wall = shown[0] + n * MINUTE
        if expression.matches(wall):
            if wall in first_shown:
                found.add(first_shown[wall])
            else:  # left out: when the clock has gone forward
                found.add(next(moment for moment, w in zip(real, shown, strict=True) if w > wall))
    return sorted(found)


def between(when: Cron, begin: datetime, end: datetime) -> list[datetime]:
    found = slots(when, round(begin.timestamp()) * SECOND, round(end.timestamp()) * SECOND)
    return [datetime.fromtimestamp(slot / SECOND, UTC) for slot in found]


def at(text: str) -> Expression:
    minute, hour = text.split()
    return Expression(Field(minute, {int(minute)}), Field(hour, {int(hour)}), star(1, 31), star(1, 12), star(0, 6))


@settings(max_examples=examples(50), deadline=None)
@given(expressions(), st.sampled_from(PLACES), st.integers(-26 * 60, 4 * 60))
@example(at("0 0"), PLACES[0], -600)
@example(at("30 23"), PLACES[1], -600)
@example(at("30 2"), PLACES[5], -600)
@example(at("30 1"), PLACES[6], 10)
def test_next_times_around_a_change_of_the_clock_are_those_of_the_oracle(
    expression: Expression, place: tuple[str, datetime], minutes: int
) -> None:
    zone, change = place
    begin = change + minutes * MINUTE
    expected = [moment for moment in oracle(expression, zone, change) if begin < moment <= begin + AFTER]
    assert between(cron(expression.text, zone), begin, begin + AFTER) == expected


@pytest.mark.parametrize("zone", CHANGES)
def test_the_changes_that_are_tried_are_changes(zone: str) -> None:
    for change in CHANGES[zone]:
        moment = datetime.fromisoformat(change)
        offsets = {(moment + shift).astimezone(ZoneInfo(zone)).utcoffset() for shift in (-MINUTE, timedelta())}
        assert len(offsets) == 2, change


@settings(max_examples=examples(50), deadline=None)
@given(st.sampled_from(PLACES), st.integers(0, 59), st.integers(0, 23))
def test_a_daily_time_comes_once_on_every_day_of_the_wall_clock(
    place: tuple[str, datetime], minute: int, hour: int
) -> None:
    zone, change = place
    found = between(cron(f"{minute} {hour} * * *", zone), change - timedelta(days=5), change + timedelta(days=5))
    days = [moment.astimezone(ZoneInfo(zone)).date() for moment in found]
    assert len(days) == len(set(days))
    assert [later - day for day, later in itertools.pairwise(days)] == [timedelta(days=1)] * (len(days) - 1)


@settings(max_examples=examples(20), deadline=None)
@given(st.sampled_from(PLACES))
def test_every_minute_is_every_real_minute(place: tuple[str, datetime]) -> None:
    zone, change = place
    found = between(cron("* * * * *", zone), change - timedelta(hours=3), change + timedelta(hours=3))
    assert found == [change - timedelta(hours=3) + n * MINUTE for n in range(1, 361)]
