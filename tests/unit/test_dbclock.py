"""The database's time between two heartbeats."""

from batuta.clock import SECOND, ManualClock
from batuta.engine.dbclock import DatabaseClock


def test_time_is_the_databases_carried_forward() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic())
    local.advance(2.5)
    assert clock.now() == 1_002 * SECOND + 500_000


def test_the_wall_clock_of_the_machine_does_not_matter() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic())
    local.jump(-86_400)
    local.advance(1)
    assert clock.now() == 1_001 * SECOND


def test_time_never_goes_back_when_the_database_does() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    clock.learn(1_000 * SECOND, local.monotonic())
    assert clock.now() == 1_000 * SECOND
    clock.learn(900 * SECOND, local.monotonic())
    assert clock.now() == 1_000 * SECOND
    local.advance(50)
    assert clock.now() == 1_000 * SECOND
    local.advance(60)
    assert clock.now() == 1_010 * SECOND


def test_an_answer_that_took_long_makes_the_clock_late_and_never_early() -> None:
    local = ManualClock()
    clock = DatabaseClock(local)
    local.advance(3)
    clock.learn(1_000 * SECOND, local.monotonic())
    assert clock.now() == 1_000 * SECOND
