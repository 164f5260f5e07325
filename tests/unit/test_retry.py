"""Retry policies: how long to wait, and when to give up."""

import json
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta import InvalidInput, NonRetryable, Retry, RetryLater
from batuta.authoring.client.dead_letters import letter_filter
from batuta.authoring.failures.conversion import to_exception, to_failure

MIDDLE = 0.5
"""The chance that makes a wait neither longer nor shorter."""


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    policy = Retry(attempts=10, first=1, factor=2, longest=10, jitter=0)
    assert [policy.delay(n, MIDDLE) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]


def test_a_list_of_waits_is_obeyed_and_its_last_one_stays() -> None:
    policy = Retry(attempts=5, waits=[5, timedelta(minutes=5), 0], jitter=0)
    assert [policy.delay(n, MIDDLE) for n in range(1, 6)] == [5, 300, 0, 0, None]
    assert Retry(attempts=2, waits=[10], jitter=0.5).delay(1, 0.0) == 5
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Retry) == policy


@pytest.mark.parametrize(
    "waits", [5, "5", [-1], [float("nan")], [float("inf")], [True], ["1"], [None], [1] * 101, [2e10], {1: 2}, []]
)
def test_waits_that_cannot_be_are_refused(waits: Any) -> None:
    with pytest.raises(InvalidInput, match="waits="):
        Retry(waits=waits)


def test_the_last_attempt_is_the_last() -> None:
    policy = Retry(attempts=3)
    assert policy.delay(2, MIDDLE) is not None
    assert policy.delay(3, MIDDLE) is None
    assert policy.delay(4, MIDDLE) is None


def test_one_attempt_is_never_repeated() -> None:
    assert Retry(attempts=1).delay(1, MIDDLE) is None


@pytest.mark.parametrize("failures", [1, 1_000, 10**9])
def test_zero_attempts_never_end_and_never_overflow(failures: int) -> None:
    wait = Retry(attempts=0, factor=10, longest=60, jitter=0).delay(failures, MIDDLE)
    assert wait is not None
    assert wait <= 60


@given(
    st.integers(1, 100), st.floats(0, 0.999), st.floats(0, 1), st.floats(0, 1e6), st.floats(1, 10), st.floats(0, 1e6)
)
def test_jitter_keeps_the_wait_within_its_share(
    failures: int, chance: float, jitter: float, first: float, factor: float, longest: float
) -> None:
    wait = Retry(attempts=0, first=first, factor=factor, longest=longest, jitter=jitter).delay(failures, chance)
    assert wait is not None
    assert 0 <= wait <= longest * (1 + jitter)


def test_policies_are_values() -> None:
    assert Retry(attempts=3, never=("ValueError",)) == Retry(attempts=3, never=("ValueError",))
    assert Retry(attempts=3) != Retry(attempts=4)


# -- errors that are never tried again


class PartnerError(Exception):
    pass


class Declined(PartnerError):
    class Twice(Exception):
        pass


OldName = Declined


@pytest.mark.parametrize(
    "never",
    [
        Declined,
        PartnerError,
        Exception,
        BaseException,
        "Declined",
        "PartnerError",
        "Exception",
        f"{__name__}.Declined",
        f"{__name__}.PartnerError",
        f"{__name__}:Declined",
        "test_retry.Declined",
        "tests.Declined",
    ],
    ids=str,
)
def test_never_takes_classes_and_names_and_means_what_derives_from_them(never: Any) -> None:
    policy = Retry(attempts=5, never=[KeyError, never])
    assert policy.refuses(to_failure(Declined("no")))
    assert policy.delay_after(to_failure(Declined("no")), 1, MIDDLE) is None
    assert policy.refuses(to_failure(ExceptionGroup("two", [ValueError(), Declined("no")])))
    again = msgspec.json.decode(msgspec.json.encode(policy), type=Retry)  # as it is sent to another worker
    assert again == policy
    assert again.refuses(to_failure(Declined("no")))


@pytest.mark.parametrize(
    ("never", "error"),
    [
        ("IOError", OSError()),
        ("EnvironmentError", PermissionError()),
        ("builtins.IOError", OSError()),
        ("asyncio.TimeoutError", TimeoutError()),
        ("asyncio:TimeoutError", TimeoutError()),
        ("socket.timeout", TimeoutError()),
        ("json.JSONDecodeError", json.JSONDecodeError("no", "", 0)),
        (f"{__name__}.OldName", Declined("no")),
    ],
    ids=str,
)
def test_never_takes_the_other_names_of_a_class(never: str, error: Exception) -> None:
    policy = Retry(attempts=5, never=[never])
    assert policy.refuses(to_failure(error))
    assert not policy.refuses(to_failure(KeyError("another")))
    assert msgspec.json.decode(msgspec.json.encode(policy), type=Retry) == policy


@pytest.mark.parametrize("never", [Declined, "Declined", f"{__name__}.Declined", "Twice", "Declined.Twice"], ids=str)
def test_never_does_not_mean_others(never: Any) -> None:
    policy = Retry(attempts=5, never=[never])
    for error in (PartnerError("later"), ValueError("x"), OSError()):
        assert policy.delay_after(to_failure(error), 1, MIDDLE) == policy.delay(1, MIDDLE)


@pytest.mark.parametrize(
    "never",
    [
        "Declined",
        b"Declined",
        Declined,
        None,
        7,
        [""],
        ["not a name"],
        ["Declined()"],
        ["shop."],
        [".Declined"],
        ["1st"],
        [Declined("no")],
        [int],
        [None],
        [7],
        [Declined, object],
        {"Declined": 1},
    ],
    ids=repr,
)
def test_never_refuses_what_no_error_can_match(never: Any) -> None:
    with pytest.raises(InvalidInput, match="never"):
        Retry(never=never)


def test_a_set_of_errors_is_as_good_as_a_list() -> None:
    assert Retry(never={"B", "A"}) == Retry(never=["A", "B"])  # type: ignore[arg-type]  # as some will write it
    assert Retry(never=[]).never == ()


def test_dead_letters_are_found_by_class_or_bare_name() -> None:
    assert letter_filter(error=Declined).error == letter_filter(error="Declined").error == "Declined"
    for name in ("shop.errors.Declined", "shop.errors:Declined"):
        with pytest.raises(InvalidInput, match="give 'Declined'"):
            letter_filter(error=name)
    with pytest.raises(InvalidInput, match="error="):
        letter_filter(error=int)


# -- errors that say when


@given(st.floats(0, 1e6), st.floats(0, 0.999), st.floats(0, 1))
def test_an_error_that_asks_for_a_delay_gets_it_whatever_the_policy_has(
    seconds: float, chance: float, jitter: float
) -> None:
    policy = Retry(attempts=3, first=1, longest=2, jitter=jitter)
    failure = to_failure(RetryLater(seconds))
    assert [policy.delay_after(failure, failures, chance) for failures in (1, 2)] == [seconds, seconds]
    assert policy.delay_after(failure, 3, chance) is None  # it counts like any other


def test_what_an_error_asks_for_is_kept_by_groups_and_on_its_way() -> None:
    failure = to_failure(ExceptionGroup("two", [RetryLater(5), ExceptionGroup("one", [RetryLater(60)]), ValueError()]))
    assert failure.retry_after == 60
    assert to_failure(ValueError()).retry_after is None
    again = to_exception(msgspec.json.decode(msgspec.json.encode(to_failure(RetryLater(7.5))), type=type(failure)))
    assert isinstance(again, RetryLater)
    assert (again.seconds, str(again)) == (7.5, "asked to be tried again after 7.5 s")
    assert str(RetryLater(1, "busy")) == "busy"


def test_policies_that_refuse_the_error_or_are_at_their_end_stay_as_they_are() -> None:
    assert Retry(never=[RetryLater]).delay_after(to_failure(RetryLater(5)), 1, MIDDLE) is None
    assert Retry(attempts=1).delay_after(to_failure(RetryLater(5)), 1, MIDDLE) is None
    with_both = ExceptionGroup("two", [RetryLater(5), NonRetryable("no")])
    assert Retry().delay_after(to_failure(with_both), 1, MIDDLE) is None


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), float("-inf"), 1e11, -1e11, "60", None, True, b"1"])
def test_a_delay_that_is_no_number_of_seconds_is_refused(seconds: Any) -> None:
    with pytest.raises(InvalidInput, match="RetryLater"):
        RetryLater(seconds)


@pytest.mark.parametrize("seconds", [-1, -0.001, 0])
def test_a_moment_that_has_passed_is_now(seconds: float) -> None:
    assert RetryLater(seconds).seconds == 0


class Throttled(RetryLater):
    """Made without the constructor of its base."""

    def __init__(self, seconds: Any = ...) -> None:
        Exception.__init__(self, "slow down")
        if seconds is not ...:
            self.seconds = seconds


@pytest.mark.parametrize(("seconds", "found"), [(..., 0.0), (3, 3), ("x", None), (float("nan"), None), (-1, None)])
def test_a_class_of_ones_own_may_set_the_delay_and_a_bad_one_is_none(seconds: Any, found: float | None) -> None:
    assert to_failure(Throttled(seconds)).retry_after == found
