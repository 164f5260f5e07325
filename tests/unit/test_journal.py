"""Entries, states and ids: the values everything else is made of."""

import signal
import uuid

import pytest
from msgspec import Raw

from batuta import ids
from batuta.clock import SECOND, ManualClock, SystemClock
from batuta.ids import derived_run_id, named_run_id, new_run_id, new_worker_id, text_of, uuid_of
from batuta.journal.entries import (
    Body,
    Command,
    CommandKind,
    EntryKind,
    StartInfo,
    crc_holds,
    decode_body,
    encode_entry,
)


def test_a_body_survives_its_row() -> None:
    body = Body(
        seq=3,
        name="reserve",
        value=Raw(b'{"a":1}'),
        attempts=2,
        start=StartInfo("flow", 5, "base", "3.11"),
        commands=[Command(4, CommandKind.ACTIVITY, "charge", Raw(b"[1]")), Command(5, CommandKind.CANCEL, target=4)],
    )
    again = decode_body(encode_entry(1, EntryKind.ACTIVITY_DONE, 10, body, 0))
    assert again == body


def test_an_entry_that_was_changed_afterwards_does_not_verify() -> None:
    first = encode_entry(0, EntryKind.STARTED, 10, Body(name="a"), 0)
    second = encode_entry(1, EntryKind.ACTIVITY_DONE, 11, Body(name="b"), first.crc)
    assert crc_holds(first, 0)
    assert crc_holds(second, first.crc)
    assert not crc_holds(second, 0)
    second.body = second.body.replace("b", "c")
    assert not crc_holds(second, first.crc)


@pytest.mark.parametrize("change", ["at", "ord"])
def test_time_and_place_of_an_entry_are_sealed_too(change: str) -> None:
    entry = encode_entry(0, EntryKind.STARTED, 10, Body(name="a"), 0)
    setattr(entry, change, 77)
    assert not crc_holds(entry, 0)


def test_run_ids_are_version_7_and_rise() -> None:
    ids = [new_run_id() for _ in range(10_000)]
    assert ids == sorted(ids)
    assert len(set(ids)) == len(ids)
    assert {one.version for one in ids} == {7}
    assert {one.variant for one in ids} == {uuid.RFC_4122}


def test_an_interrupt_leaves_the_next_run_id_to_be_had() -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(2_000):
            try:
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + number % 97 * 1e-6)
                while True:
                    new_run_id()
            except KeyboardInterrupt:
                assert not ids._lock.locked()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("at", [0, 999, 1_763_301_627_123_456, -1, -(10**18), (1 << 48) * 1000 + 7, 1 << 62])
def test_derived_run_ids_are_version_7_whatever_time_they_are_of(at: int) -> None:
    for run_id in (derived_run_id(at, "key", 3), named_run_id(at, "name")):
        assert run_id == uuid.UUID(str(run_id))
        assert (run_id.version, run_id.variant) == (7, uuid.RFC_4122)
        assert run_id.int >> 80 == at // 1000 % (1 << 48)


def test_run_ids_of_names_that_read_the_same_when_joined_differ() -> None:
    names = [("acme/eu", "x"), ("acme", "eu/x"), ("acme", "eu", "x"), ("acme/eu/x",), ("acme/eu/x", "")]
    assert len({named_run_id(0, *each) for each in names}) == len(names)


def test_the_text_of_a_run_id_is_that_of_a_uuid() -> None:
    for run_id in (new_run_id(), uuid_of(0), uuid_of(1), uuid_of((1 << 128) - 1), uuid_of(0xABCDEF << 60)):
        assert text_of(run_id) == str(run_id)


def test_worker_ids_are_random() -> None:
    assert len({new_worker_id() for _ in range(100)}) == 100


def test_a_manual_clock_moves_by_hand_only() -> None:
    clock = ManualClock(now=5 * SECOND)
    clock.advance(2.5)
    assert (clock.now(), clock.monotonic()) == (7_500_000, 2.5)
    clock.jump(-1)
    assert (clock.now(), clock.monotonic()) == (6_500_000, 2.5)


def test_the_system_clock_gives_microseconds() -> None:
    clock = SystemClock()
    first, second = clock.now(), clock.now()
    assert 10**15 < first <= second < 10**16
    assert clock.monotonic() <= clock.monotonic()
