"""Retry policies: how long to wait, and when to give up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batuta import Retry

MIDDLE = 0.5
"""The chance that makes a wait neither longer nor shorter."""


def test_waits_grow_by_the_factor_up_to_the_longest() -> None:
    policy = Retry(attempts=10, first=1, factor=2, longest=10, jitter=0)
    assert [policy.delay(n, MIDDLE) for n in range(1, 7)] == [1, 2, 4, 8, 10, 10]


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
