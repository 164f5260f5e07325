"""The database's time between two heartbeats."""

from batuta.clock import SECOND, ManualClock
from batuta.engine.dbclock import DatabaseClock


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


def test_time_never_goes_back_when_the_database_does() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic(), local.monotonic())
    assert clock.now() == 1_000 * SECOND
    clock.learn(900 * SECOND, local.monotonic(), local.monotonic())
    assert clock.now() == 1_000 * SECOND
    local.advance(50)
    assert clock.now() == 1_000 * SECOND
    local.advance(60)
    assert clock.now() == 1_010 * SECOND


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
