"""Calendars: what they say, and what they refuse."""

from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest

from batuta import InvalidInput, InvalidSchedule, Overlap, Schedule, cron, every, once, workflow
from batuta.authoring.client.calendar import When, slot_text, slots
from batuta.clock import SECOND

NAIVE = datetime.fromisoformat("2031-01-01T09:00")


def micros(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp()) * SECOND


def first(when: When, after: str, count: int = 3) -> list[str]:
    found: list[str] = []
    slot = when.next(micros(after))
    while slot is not None and len(found) < count:
        found.append(slot_text(slot).removesuffix(":00Z"))
        slot = when.next(slot)
    return found


# F21: what is known about changes of the clock, as a table of real times.
@pytest.mark.parametrize(
    ("expression", "zone", "after", "expected"),
    [
        # Midnight of the fourth does not exist.
        (
            "0 0 * * *",
            "America/Sao_Paulo",
            "2018-11-02T12:00Z",
            ["2018-11-03T03:00", "2018-11-04T03:00", "2018-11-05T02:00"],
        ),
        # 23:00 to 24:00 of the seventeenth comes twice.
        (
            "30 23 * * *",
            "America/Sao_Paulo",
            "2018-02-17T12:00Z",
            ["2018-02-18T01:30", "2018-02-19T02:30", "2018-02-20T02:30"],
        ),
        ("30 23 * * *", "America/Sao_Paulo", "2018-02-18T02:15Z", ["2018-02-19T02:30"]),
        ("30 2 * * *", "America/New_York", "2024-03-09T12:00Z", ["2024-03-10T07:00", "2024-03-11T06:30"]),
        ("30 1 * * *", "America/New_York", "2024-11-02T12:00Z", ["2024-11-03T05:30", "2024-11-04T06:30"]),
        ("15,45 2 * * *", "America/New_York", "2024-03-10T05:00Z", ["2024-03-10T07:00", "2024-03-11T06:15"]),
        ("*/30 2 * * *", "America/New_York", "2024-03-10T05:00Z", ["2024-03-11T06:00", "2024-03-11T06:30"]),
        (
            "*/30 1 * * *",
            "America/New_York",
            "2024-11-03T05:10Z",
            ["2024-11-03T05:30", "2024-11-03T06:00", "2024-11-03T06:30"],
        ),
        (
            "0 * * * *",
            "Australia/Lord_Howe",
            "2024-04-06T13:30Z",
            ["2024-04-06T14:00", "2024-04-06T15:30", "2024-04-06T16:30"],
        ),
        ("15 2 * * *", "Australia/Lord_Howe", "2023-09-30T12:00Z", ["2023-09-30T15:30", "2023-10-01T15:15"]),
        ("*/10 3 * * *", "Australia/Lord_Howe", "2023-09-30T15:45Z", ["2023-09-30T16:00", "2023-09-30T16:10"]),
        ("@daily", "Asia/Kolkata", "2024-01-01T00:00Z", ["2024-01-01T18:30", "2024-01-02T18:30"]),
        ("0 12 29 2 *", "UTC", "2024-03-01T00:00Z", ["2028-02-29T12:00", "2032-02-29T12:00"]),
        ("0 9 * * MON-FRI", "Europe/Lisbon", "2024-03-29T12:00Z", ["2024-04-01T08:00", "2024-04-02T08:00"]),
        ("0 0 L * *", "UTC", "2024-02-01T00:00Z", ["2024-02-29T00:00", "2024-03-31T00:00"]),
    ],
)
def test_cron_goes_by_the_wall_clock(expression: str, zone: str, after: str, expected: list[str]) -> None:
    assert first(cron(expression, zone), after, len(expected)) == expected


def test_every_counts_from_1970() -> None:
    found = first(every(3600, offset=900), "2024-01-01T00:20Z")
    assert found == ["2024-01-01T01:15", "2024-01-01T02:15", "2024-01-01T03:15"]
    assert first(every(timedelta(days=1)), "2024-01-01T00:00Z", 1) == ["2024-01-02T00:00"]


def test_once_comes_once() -> None:
    when = once(datetime(2024, 5, 1, 9, tzinfo=UTC))
    assert first(when, "2024-01-01T00:00Z") == ["2024-05-01T09:00"]
    assert first(when, "2024-05-01T09:00Z") == []


def test_slots_of_a_range_leave_out_its_beginning_and_have_its_end() -> None:
    found = slots(every(60), micros("2024-01-01T00:00Z"), micros("2024-01-01T00:03Z"))
    assert [slot_text(slot) for slot in found] == [f"2024-01-01T00:0{n}:00Z" for n in (1, 2, 3)]


def test_a_calendar_near_the_end_of_time_ends() -> None:
    assert cron("* * * * *").next(260_000_000_000 * SECOND) is None
    assert every(60).next(260_000_000_000 * SECOND) is None


@pytest.mark.parametrize(
    "expression",
    ["", "* * * *", "* * * * * *", "60 * * * *", "* 24 * * *", "0 0 31 2 *", "x * * * *", "*/0 * * * *", "5-1 * * * *",
     "0 0 * * 8", "@often", "0 0 30 2 *", "LW/2 * * * *", "* * L/x * *", 5, None, "0 0 L/2,5/2 * *#"],
)  # fmt: skip
def test_a_cron_expression_that_makes_no_sense_is_refused(expression: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"cron expression .+"):
        cron(expression)


@pytest.mark.parametrize("zone", ["", "Mars/Olympus", "America", "../etc/passwd", "/etc/localtime", "a\x00b", 5, None])
def test_an_unknown_time_zone_is_refused(zone: Any) -> None:
    with pytest.raises(InvalidSchedule, match=r"unknown time zone"):
        cron("* * * * *", zone)


@pytest.mark.parametrize(
    "zone", ["localtime", "Localtime", "posixrules", "Factory", "right/UTC", "posix/America/Sao_Paulo"]
)
def test_a_time_zone_that_is_another_one_on_each_machine_is_refused(zone: str) -> None:
    with pytest.raises(InvalidSchedule, match=r"time zone .+ differs between machines"):
        cron("* * * * *", zone)


class Zone(tzinfo):
    """What somebody may have written."""

    def __init__(self, offset: timedelta | Exception | None) -> None:
        self._offset = offset

    def utcoffset(self, moment: datetime | None) -> timedelta | None:
        if isinstance(self._offset, Exception):
            raise self._offset
        return self._offset

    def dst(self, moment: datetime | None) -> timedelta | None:
        return None

    def tzname(self, moment: datetime | None) -> str | None:
        return None


BEFORE, AFTER = timezone(timedelta(hours=3)), timezone(timedelta(hours=-3))


@pytest.mark.parametrize(
    ("at", "said"),
    [
        (datetime.max.replace(tzinfo=UTC), "is too far away: the first year is 1970, the last is 9891"),
        (datetime.max.replace(tzinfo=AFTER), "is too far away: in UTC there is no such day"),
        (datetime.min.replace(tzinfo=BEFORE), "is too far away: in UTC there is no such day"),
        (datetime.min.replace(tzinfo=UTC), "is too far away"),
        (datetime(1969, 12, 31, tzinfo=UTC), "is too far away"),
        (datetime(2031, 1, 1, tzinfo=Zone(None)), "must be a datetime with a zone"),
        (datetime(2031, 1, 1, tzinfo=Zone(KeyError("no such day"))), r"the zone of .+ fails: KeyError"),
    ],
)
def test_a_time_near_the_ends_of_time_is_refused(at: datetime, said: str) -> None:
    with pytest.raises(InvalidSchedule, match=said):
        once(at)


def test_the_last_possible_times_are_accepted() -> None:
    assert once(datetime(1970, 1, 1, tzinfo=UTC)).at == 0
    late = datetime(9891, 12, 31, tzinfo=UTC)
    assert once(late).next(0) == round(late.timestamp()) * SECOND
    forever = Schedule(
        "s", every(60), flow, 1, start_at=datetime.min.replace(tzinfo=UTC), end_at=datetime.max.replace(tzinfo=UTC)
    )
    assert forever.end_at is not None
    with pytest.raises(InvalidSchedule, match=r"end_at=.+ is too far away"):
        Schedule("s", every(60), flow, 1, end_at=datetime.max.replace(tzinfo=AFTER))


@pytest.mark.parametrize(
    "make",
    [
        lambda: every(0),
        lambda: every(0.5),
        lambda: every(-1),
        lambda: every(float("nan")),
        lambda: every(float("inf")),
        lambda: every("60"),  # type: ignore[arg-type]  # what a user may do
        lambda: every(True),
        lambda: every(60, offset=60),
        lambda: every(60, offset=-1),
        lambda: once(NAIVE),
        lambda: once("2031-01-01"),  # type: ignore[arg-type]  # what a user may do
    ],
)
def test_an_interval_or_a_time_that_makes_no_sense_is_refused(make: Any) -> None:
    with pytest.raises(InvalidSchedule):
        make()


@workflow
async def flow(n: int) -> int:
    return n


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"overlap": "queue"}, "overlap='queue' must be one of skip, buffer, allow, cancel"),
        ({"catch_up": -1}, "catch_up=-1"),
        ({"catch_up": float("nan")}, "catch_up=nan"),
        ({"jitter": "much"}, "jitter='much'"),
        ({"start_at": "now"}, "start_at='now'"),
        ({"end_at": NAIVE}, "end_at="),
        ({"colour": 1}, "unknown options colour"),
        ({"timeout": -1}, "timeout=-1"),
        ({"queue": ""}, "queue ''"),
        ({"tags": {"a": 1}}, "tags="),
        ({"key": "\x00"}, "key"),
    ],
)
def test_a_schedule_with_an_option_that_makes_no_sense_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        Schedule("nightly", every(60), flow, 1, **options)
    assert said in str(caught.value)


def test_a_schedule_names_the_wrong_argument() -> None:
    with pytest.raises(InvalidSchedule, match="is not a calendar"):
        Schedule("nightly", "0 0 * * *", flow)  # type: ignore[arg-type]  # what a user may do
    with pytest.raises(InvalidSchedule, match="must be 1 to 200 printable"):
        Schedule("", every(60), flow)
    with pytest.raises(InvalidInput, match="is not a workflow"):
        Schedule("nightly", every(60), 5)
    with pytest.raises(InvalidInput):
        Schedule("nightly", every(60), flow, object())
    assert Schedule("nightly", every(60), flow, 1).overlap is Overlap.SKIP
