"""Rates and queues as people write them."""

import pytest

from batuta import InvalidInput, Queue, Rate
from batuta.journal.queues import LIMITS, QueueLimits, limit_changes


@pytest.mark.parametrize(
    ("text", "count", "seconds"),
    [
        ("100/min", 100, 60),
        ("5/s", 5, 1),
        (" 5 / sec ", 5, 1),
        ("10/15min", 10, 900),
        ("1/0.5s", 1, 0.5),
        ("3/hour", 3, 3600),
        ("7/D", 7, 86_400),
    ],
)
def test_a_rate_is_read_from_a_text(text: str, count: int, seconds: float) -> None:
    assert Rate.parse(text) == Rate(count, seconds)


@pytest.mark.parametrize("text", ["100/min", "5/s", "2/h", "1/d", "3/90s"])
def test_a_rate_is_written_as_it_is_read(text: str) -> None:
    assert str(Rate.parse(text)) == text


@pytest.mark.parametrize(
    "rate", ["0/s", "-1/s", "1/fortnight", "1", "", "/s", "1/", "1/0s", "1/..s", "1.5/s", 5, None, True, b"1/s"]
)
def test_an_invalid_rate_is_refused(rate: object) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        Rate.parse(rate)


@pytest.mark.parametrize(("count", "seconds"), [(0, 1), (-1, 1), (1, 0), (1, -1), (1.5, 1), (True, 1), (1, "s")])
def test_a_rate_of_nothing_is_refused(count: int, seconds: float) -> None:
    with pytest.raises(InvalidInput, match="rate"):
        Rate(count, seconds)


def test_a_rate_goes_to_the_store_and_comes_back() -> None:
    limits = QueueLimits(concurrency=3, rate=Rate.parse("100/min"), key_rate=Rate(1, 1 / 3))
    assert QueueLimits.of_columns(limits.columns()) == limits
    assert limits.columns()["key_rate_period"] == 333_333


def test_a_declared_queue_may_have_every_limit() -> None:
    assert Queue.__struct_fields__ == ("name", "per_worker", *LIMITS)


@pytest.mark.parametrize("limits", [{"concurrency": 0}, {"concurrency": -1}, {"key_concurrency": 1.5}, {"rate": "0/s"}])
def test_a_limit_of_nothing_is_refused(limits: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        limit_changes(limits)
    with pytest.raises(InvalidInput):
        Queue("mail", **limits)  # type: ignore[arg-type]  # that is what is tested


def test_an_unknown_limit_is_refused() -> None:
    with pytest.raises(InvalidInput, match="unknown limits speed"):
        limit_changes({"speed": 1})


def test_a_queue_changes_only_what_is_given() -> None:
    assert Queue("mail").changes() == {}
    assert Queue("mail", concurrency=3, rate=None).changes() == {"concurrency": 3, "rate": None}


def test_a_queue_has_a_name_and_room() -> None:
    with pytest.raises(InvalidInput, match="queue"):
        Queue("")
    with pytest.raises(InvalidInput, match="per_worker"):
        Queue("mail", per_worker=0)
