"""The store's clock is set back by an hour: breakers and limits hold nobody for that hour."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.queues import Rate
from batuta.journal.resilience.partners import OPEN
from batuta.resilience.breakers.rules import BreakerSettings, BreakerState
from batuta.resilience.limits.rules import LEASE, Bucket, LimitCounts, LimitDoc, LimitSettings, Wish

THEN = 1_700_000_000 * SECOND
NOW = THEN - 3600 * SECOND


def opened() -> BreakerState:
    found = BreakerState(settings=BreakerSettings(failures=1, open_for=30, probes=1, probe_lease=10))
    found.report([-1], found.turn, THEN)
    assert found.state == OPEN
    return found


def test_a_breaker_that_is_open_lets_probes_in() -> None:
    assert opened().take_probes(["early"], THEN + 20 * SECOND) == []
    assert opened().take_probes(["a little back"], THEN - SECOND) == []
    assert opened().opens_in(NOW) == 0
    assert opened().take_probes(["one"], NOW) == ["one"]


def test_a_breaker_that_opens_again_counts_from_then() -> None:
    found = opened()
    found.take_probes(["one"], NOW)
    found.end_probe("one", False, NOW)
    assert found.opens_in(NOW) > 25
    assert found.take_probes(["two"], NOW + SECOND) == []


def test_a_probe_of_a_process_that_died_is_given_back() -> None:
    found = opened()
    assert found.take_probes(["one"], THEN + 30 * SECOND) == ["one"]
    assert found.take_probes(["two"], NOW) == []
    assert found.take_probes(["two"], NOW + 11 * SECOND) == ["two"]


def test_concurrency_of_a_process_that_died_is_given_back() -> None:
    counts, settings = LimitCounts(), LimitSettings(concurrency=1)
    assert counts.ask(settings, Wish("dead", 1), THEN).units == 1
    assert counts.ask(settings, Wish("other", 1), NOW).units == 0, "it may live"
    assert counts.ask(settings, Wish("other", 1), NOW + LEASE + 1).units == 1


def test_units_that_were_kept_for_a_heavy_call_are_given_to_others() -> None:
    counts, settings = LimitCounts(), LimitSettings(concurrency=2)
    assert counts.ask(settings, Wish("busy", 1), THEN).units == 1
    assert counts.ask(settings, Wish("heavy", 2, least=2, claims=True), THEN).units == 0
    later = NOW + 31 * SECOND
    assert counts.ask(settings, Wish("other", 1), NOW).units == 0
    assert counts.ask(settings, Wish("other", 1), later).units == 1


def test_a_pause_that_the_partner_asked_for_is_over() -> None:
    limit = LimitDoc()
    limit.hold("k", THEN + 60 * SECOND, THEN)
    assert limit.held_until("k", THEN + SECOND)
    assert limit.held_until("k", THEN - SECOND)
    assert not limit.held_until("k", NOW)
    limit.hold("other", NOW + 60 * SECOND, NOW)
    assert limit.held_until("other", NOW + SECOND)
    assert not limit.held_until("k", NOW + SECOND)


def test_a_balance_comes_back_as_before() -> None:
    counts, settings = LimitCounts(), LimitSettings(bucket=Bucket(10, Rate.parse("10/min")))
    counts.sync(0, THEN)
    assert counts.ask(settings, Wish("one", 1), NOW).units == 0
    assert counts.ask(settings, Wish("one", 1), NOW + 7 * SECOND).units == 1
