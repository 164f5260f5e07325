"""Runs in memory make room for themselves: that there are many is no reason to look for garbage."""

import gc
from collections.abc import Iterator

import pytest

from batuta.engine.collector import Room, tune_collector


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    threshold = gc.get_threshold()
    monkeypatch.setattr(Room, "_set", None)
    yield
    gc.unfreeze()
    gc.set_threshold(*threshold)


def youngest() -> int:
    return gc.get_threshold()[0]


def test_there_is_room_for_the_runs_of_all_workers_while_they_are_there() -> None:
    gc.set_threshold(700, 10, 10)
    tune_collector()
    at_rest = youngest()
    one, other = Room(), Room()
    one.fit(1_000)
    for_one = youngest()
    assert for_one >= at_rest + 60 * 1_000
    other.fit(2_000)
    assert youngest() - at_rest == 3 * (for_one - at_rest)
    one.fit(0)
    other.fit(10)  # a few are no matter
    assert gc.get_threshold() == (at_rest, 10, 10)


def test_what_somebody_has_chosen_stays() -> None:
    gc.set_threshold(5_000, 10, 10)
    tune_collector()
    room = Room()
    room.fit(100_000)
    assert youngest() == 5_000
    room.fit(0)


def test_what_somebody_chooses_later_stays_too() -> None:
    gc.set_threshold(700, 10, 10)
    tune_collector()
    room = Room()
    room.fit(1_000)
    gc.set_threshold(0)
    room.fit(2_000)
    room.fit(0)
    assert youngest() == 0
