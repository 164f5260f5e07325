"""The database's time between two heartbeats."""

import pytest

from batuta.clock import SECOND, ManualClock
from batuta.engine.worker.database_clock import DatabaseClock


def test_time_is_the_databases_carried_forward() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic(), local.monotonic())
    local.advance(2.5)
    assert clock.now() == 1_002 * SECOND + 500_000


def test_the_wall_clock_of_the_machine_does_not_matter() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic(), local.monotonic())
    local.jump(-86_400)
    local.advance(1)
    assert clock.now() == 1_001 * SECOND


def test_time_never_goes_back_while_the_databases_clock_is_corrected() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic(), local.monotonic())
    assert clock.now() == clock.latest() == 1_000 * SECOND
    assert clock.learn(1_000 * SECOND - SECOND // 2, local.monotonic(), local.monotonic()) == 0
    assert clock.now() == clock.latest() == 1_000 * SECOND
    local.advance(1.5)
    assert clock.now() == clock.latest() == 1_001 * SECOND


@pytest.mark.parametrize("step", [-3_600, 3_600])
def test_time_steps_when_the_databases_clock_is_set(step: int) -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(10_000 * SECOND, local.monotonic(), local.monotonic())
    assert clock.now() == clock.latest() == 10_000 * SECOND
    local.advance(3)
    assert clock.learn((10_003 + step) * SECOND, local.monotonic(), local.monotonic()) == step * SECOND
    assert clock.now() == clock.latest() == (10_003 + step) * SECOND
    assert clock.learn((10_003 + step) * SECOND, local.monotonic(), local.monotonic()) == 0


@pytest.mark.parametrize("step", [-3_600, 3_600])
def test_a_wait_without_the_step_is_never_shorter_than_asked_for_however_slow_the_answer_is(step: int) -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(10_000 * SECOND, local.monotonic(), local.monotonic())
    deadline = clock.latest() + 10 * SECOND
    began, sent = local.monotonic(), local.monotonic()
    local.advance(2)
    deadline += clock.learn((10_000 + step) * SECOND, sent, local.monotonic())  # it may be two seconds later by now
    clock.learn((10_002 + step) * SECOND, local.monotonic(), local.monotonic())  # it was
    while clock.now() < deadline:
        local.advance(0.5)
    assert local.monotonic() - began >= 10


def test_an_answer_that_took_long_bounds_the_time_from_both_sides() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    sent = local.monotonic()
    local.advance(3)
    clock.learn(1_000 * SECOND, sent, local.monotonic())
    assert clock.now() == 1_000 * SECOND
    assert clock.latest() == 1_003 * SECOND


def test_the_tightest_bounds_are_kept() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic(), local.monotonic())
    sent = local.monotonic()
    local.advance(2)
    clock.learn(1_000 * SECOND, sent, local.monotonic())  # read at once, answered late
    assert clock.now() == clock.latest() == 1_002 * SECOND


def test_a_sleep_is_never_shorter_than_asked_for_however_slow_the_answers_are() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    sent = local.monotonic()
    local.advance(2)
    clock.learn(1_000 * SECOND, sent, local.monotonic())  # it may be 1,000 or 1,002 by now
    deadline = clock.latest() + 10 * SECOND
    began = local.monotonic()
    local.advance(1)
    clock.learn(1_003 * SECOND, local.monotonic(), local.monotonic())  # it was 1,002
    while clock.now() < deadline:
        local.advance(0.5)
    assert local.monotonic() - began >= 10


def test_time_stands_for_what_is_done_together_and_goes_on_after_it() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic(), local.monotonic())
    local.advance(1)
    clock.stand()
    local.advance(1)
    assert clock.now() == 1_001 * SECOND
    assert clock.latest() == 1_002 * SECOND
    clock.go_on()
    assert clock.now() == 1_002 * SECOND
