"""Runs in memory make room for themselves: that there are many is no reason to look for garbage."""

import gc
from collections.abc import Iterator

import pytest

from batuta.engine.worker.gc_tuning import GcHeadroom, tune_collector


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threshold = gc.get_threshold()
    monkeypatch.setattr(GcHeadroom, "_set", None)
    yield
    gc.set_threshold(*threshold)


def youngest() -> int:
    return gc.get_threshold()[0]


def test_there_is_room_for_the_runs_of_all_workers_while_they_are_there() -> None:
    gc.set_threshold(700, 10, 10)
    tune_collector()
    assert gc.get_threshold() == (700, 10, 10)
    one, other = GcHeadroom(), GcHeadroom()
    one.fit(1_000)
    for_one = youngest()
    assert for_one >= 60 * 1_000
    other.fit(2_000)
    assert youngest() >= for_one + 2 * 60 * 1_000
    one.fit(0)
    other.fit(10)  # a few are no matter
    assert gc.get_threshold() == (700, 10, 10)


def test_nothing_is_kept_from_the_collector() -> None:
    gc.set_threshold(700, 10, 10)
    before = gc.get_freeze_count()
    tune_collector()
    room = GcHeadroom()
    room.fit(1_000)
    assert gc.get_freeze_count() == before
    assert gc.isenabled()
    room.fit(0)


def test_a_collector_threshold_that_the_program_has_set_stays() -> None:
    gc.set_threshold(5_000, 10, 10)
    tune_collector()
    room = GcHeadroom()
    room.fit(100_000)
    assert youngest() == 5_000
    room.fit(0)


def test_a_collector_threshold_that_the_program_sets_later_stays() -> None:
    gc.set_threshold(700, 10, 10)
    tune_collector()
    room = GcHeadroom()
    room.fit(1_000)
    gc.set_threshold(0)
    room.fit(2_000)
    room.fit(0)
    assert youngest() == 0
