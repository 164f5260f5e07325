"""What a schedule does at a moment, for every policy."""

from typing import Any

import pytest
from msgspec import Raw

from batuta import Overlap
from batuta.authoring.client.calendar import Every, Once, cron, slot_text
from batuta.clock import SECOND
from batuta.engine.backend.schedule_rules import (
    GRACE,
    MOST_BEGUN,
    MOST_PASSED,
    Plan,
    State,
    Work,
    decide,
    firing_of,
    first_row,
    paused_row,
    read_state,
    replaced_row,
    resumed_row,
    text_of,
)

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE
NOON = 1_700_000_000 * SECOND // HOUR * HOUR
EACH_MINUTE = Every(MINUTE)
BODY = Raw(b'{"value":[1],"start":{"name":"flow","seed":0,"key_base":""}}')


def plan(overlap: Overlap = Overlap.SKIP, catch_up: int = HOUR, **options) -> Plan:
    told: dict[str, Any] = {"when": EACH_MINUTE, "work": Work("flow", BODY), "overlap": overlap, "catch_up": catch_up}
    return Plan(**(told | options))


def minutes(*numbers: int) -> list[int]:
    return [NOON + number * MINUTE for number in numbers]


@pytest.mark.parametrize("overlap", Overlap)
@pytest.mark.parametrize("busy", [False, True])
def test_between_slots_nothing_happens(overlap: Overlap, busy: bool) -> None:
    made = decide(plan(overlap), State(NOON), NOON + SECOND, busy)
    assert (made.begun, made.skipped, made.missed, made.cancel) == ([], [], None, False)
    assert (made.state, made.next_at) == (State(NOON), NOON + MINUTE)


@pytest.mark.parametrize("overlap", Overlap)
def test_a_slot_begins_when_nothing_runs(overlap: Overlap) -> None:
    made = decide(plan(overlap), State(NOON), NOON + MINUTE + 5, busy=False)
    assert (made.begun, made.skipped, made.cancel) == (minutes(1), [], False)
    assert (made.state, made.next_at) == (State(NOON + MINUTE), NOON + 2 * MINUTE)


def test_skip_leaves_out_what_comes_while_one_runs() -> None:
    made = decide(plan(Overlap.SKIP), State(NOON), NOON + 3 * MINUTE, busy=True)
    assert (made.begun, made.skipped) == ([], minutes(1, 2, 3))
    assert (made.state, made.next_at) == (State(NOON + 3 * MINUTE), NOON + 4 * MINUTE)


def test_skip_begins_the_first_of_several_and_the_others_would_overlap_with_it() -> None:
    made = decide(plan(Overlap.SKIP), State(NOON), NOON + 3 * MINUTE, busy=False)
    assert (made.begun, made.skipped) == (minutes(1), minutes(2, 3))


@pytest.mark.parametrize("busy", [False, True])
def test_allow_begins_all_of_them(busy: bool) -> None:
    made = decide(plan(Overlap.ALLOW), State(NOON), NOON + 3 * MINUTE, busy)
    assert (made.begun, made.skipped) == (minutes(1, 2, 3), [])


def test_buffer_keeps_one_slot_and_leaves_out_the_others() -> None:
    made = decide(plan(Overlap.BUFFER), State(NOON), NOON + 3 * MINUTE, busy=True)
    assert (made.begun, made.state.waiting, made.skipped) == ([], NOON + MINUTE, minutes(2, 3))
    later = decide(plan(Overlap.BUFFER), made.state, NOON + 4 * MINUTE, busy=True)
    assert (later.state.waiting, later.skipped) == (NOON + MINUTE, minutes(4))


def test_buffer_begins_what_waited_when_the_running_one_has_ended() -> None:
    state = State(NOON + 3 * MINUTE, waiting=NOON + MINUTE)
    made = decide(plan(Overlap.BUFFER), state, NOON + 3 * MINUTE + SECOND, busy=False)
    assert (made.begun, made.state) == (minutes(1), State(NOON + 3 * MINUTE))
    made = decide(plan(Overlap.BUFFER), state, NOON + 5 * MINUTE, busy=False)
    assert (made.begun, made.state.waiting, made.skipped) == (minutes(1), NOON + 4 * MINUTE, minutes(5))


def test_waiting_slots_are_polled_less_often_over_time() -> None:
    made = decide(plan(Overlap.BUFFER), State(NOON), NOON + MINUTE, busy=True)
    assert made.next_at == NOON + MINUTE + SECOND
    made = decide(plan(Overlap.BUFFER, when=Every(HOUR)), State(NOON, NOON), NOON + 30 * SECOND, busy=True)
    assert made.next_at == NOON + 33 * SECOND
    made = decide(plan(Overlap.BUFFER, when=Every(HOUR)), State(NOON, NOON), NOON + 30 * MINUTE, busy=True)
    assert made.next_at == NOON + 30 * MINUTE + 10 * SECOND


def test_cancel_asks_once_and_begins_the_last_slot_when_the_running_one_has_ended() -> None:
    first = decide(plan(Overlap.CANCEL), State(NOON), NOON + MINUTE, busy=True, last_id="flow:0")
    assert (first.cancel, first.begun, first.state.waiting) == (True, [], NOON + MINUTE)
    second = decide(plan(Overlap.CANCEL), first.state, NOON + 2 * MINUTE, busy=True, last_id="flow:0")
    assert (second.cancel, second.state.waiting, second.skipped) == (False, NOON + 2 * MINUTE, minutes(1))
    third = decide(plan(Overlap.CANCEL), second.state, NOON + 2 * MINUTE + SECOND, busy=False, last_id="flow:0")
    assert (third.cancel, third.begun, third.state) == (False, minutes(2), State(NOON + 2 * MINUTE))


def test_cancel_begins_only_the_last_of_several() -> None:
    made = decide(plan(Overlap.CANCEL), State(NOON), NOON + 3 * MINUTE, busy=False)
    assert (made.begun, made.skipped, made.cancel) == (minutes(3), minutes(1, 2), False)


def test_slots_missed_by_more_than_the_window_are_dropped() -> None:
    made = decide(plan(Overlap.ALLOW, 10 * MINUTE), State(NOON), NOON + HOUR, busy=False)
    assert made.begun == minutes(*range(50, 61))
    assert made.missed == NOON + MINUTE
    assert made.state.cursor == NOON + HOUR


def test_a_slot_is_caught_up_on_to_the_very_end_of_the_window() -> None:
    made = decide(plan(Overlap.ALLOW, MINUTE), State(NOON), NOON + 2 * MINUTE, busy=False)
    assert (made.begun, made.missed) == (minutes(1, 2), None)
    made = decide(plan(Overlap.ALLOW, MINUTE), State(NOON), NOON + 2 * MINUTE + 1, busy=False)
    assert (made.begun, made.missed) == (minutes(2), NOON + MINUTE)


def test_without_a_window_a_slot_may_still_be_a_little_late() -> None:
    made = decide(plan(catch_up=0), State(NOON), NOON + MINUTE + GRACE, busy=False)
    assert made.begun == minutes(1)
    made = decide(plan(catch_up=0), State(NOON), NOON + MINUTE + GRACE + 1, busy=False)
    assert (made.begun, made.missed, made.next_at) == ([], NOON + MINUTE, NOON + 2 * MINUTE)


def test_a_year_of_downtime_is_not_gone_through_slot_by_slot() -> None:
    each_minute = cron("* * * * *")
    made = decide(plan(Overlap.ALLOW, when=each_minute), State(NOON - 365 * 24 * HOUR), NOON, busy=False)
    assert made.begun == minutes(*range(-60, 1))


@pytest.mark.parametrize("busy", [False, True])
@pytest.mark.parametrize("overlap", [Overlap.SKIP, Overlap.BUFFER])
def test_of_thousands_of_slots_one_begins_though_its_run_has_ended_by_the_next_look(
    overlap: Overlap, busy: bool
) -> None:
    wide, end = plan(overlap, when=Every(SECOND)), NOON + 3 * MOST_PASSED * SECOND + 5
    made = decide(wide, State(NOON), end, busy)
    first = NOON + SECOND
    assert made.begun == ([] if busy else [first])
    assert made.state.waiting == (None if overlap is Overlap.SKIP else first if busy else first + SECOND)
    assert made.uncounted
    assert len(made.skipped) >= MOST_PASSED - 2
    later = decide(wide, made.state, end, busy=False)
    assert later.begun == ([] if overlap is Overlap.SKIP else [made.state.waiting])
    assert (later.skipped, later.next_at) == ([], NOON + (3 * MOST_PASSED + 1) * SECOND)


@pytest.mark.parametrize("overlap", [Overlap.ALLOW, Overlap.CANCEL])
def test_many_slots_are_dealt_with_in_several_looks(overlap: Overlap) -> None:
    state, begun, skipped, busy = State(NOON), list[int](), list[int](), False
    wide = plan(overlap, when=Every(SECOND))
    end = NOON + 2 * MOST_PASSED * SECOND + 5
    for _ in range(30):
        made = decide(wide, state, end, busy, "last")
        assert len(made.begun) <= MOST_BEGUN
        begun, skipped, state, busy = begun + made.begun, skipped + made.skipped, made.state, busy or bool(made.begun)
        assert made.next_at is not None
        if made.next_at > end:
            break
    waiting = [] if state.waiting is None else [state.waiting]
    assert sorted(begun + skipped + waiting) == [NOON + n * SECOND for n in range(1, 2 * MOST_PASSED + 1)]
    everything = 2 * MOST_PASSED
    assert len(begun) == {Overlap.ALLOW: everything}.get(overlap, 1)
    if overlap is Overlap.CANCEL:
        assert begun == [NOON + everything * SECOND]


def test_a_schedule_with_an_end_starts_its_last_slot_and_no_more() -> None:
    ending = plan(end_at=NOON + 2 * MINUTE)
    made = decide(ending, State(NOON + MINUTE), NOON + 5 * MINUTE, busy=False)
    assert (made.begun, made.next_at) == (minutes(2), None)
    made = decide(plan(when=Once(NOON)), State(NOON - HOUR), NOON + SECOND, busy=False)
    assert (made.begun, made.next_at) == ([NOON], None)


def test_an_ended_schedule_stays_due_until_its_waiting_slot_has_begun() -> None:
    ending = plan(Overlap.BUFFER, end_at=NOON + MINUTE)
    made = decide(ending, State(NOON), NOON + MINUTE, busy=True)
    assert (made.state.waiting, made.next_at) == (NOON + MINUTE, NOON + MINUTE + SECOND)
    made = decide(ending, made.state, NOON + MINUTE + SECOND, busy=False)
    assert (made.begun, made.next_at) == (minutes(1), None)


def test_a_schedule_has_no_slot_before_its_start() -> None:
    starting = plan(Overlap.ALLOW, start_at=NOON + 2 * MINUTE)
    assert decide(starting, State(NOON), NOON + MINUTE, busy=False).next_at == NOON + 2 * MINUTE
    assert decide(starting, State(NOON), NOON + 3 * MINUTE, busy=False).begun == minutes(2, 3)


def test_a_clock_that_went_back_repeats_no_slot() -> None:
    made = decide(plan(Overlap.ALLOW), State(NOON), NOON - 10 * MINUTE, busy=False)
    assert (made.begun, made.state, made.next_at) == ([], State(NOON), NOON + MINUTE)


# -- rows


def test_the_id_of_a_run_names_its_slot_and_the_run_is_the_same_from_every_worker() -> None:
    row = first_row("nightly", plan(jitter=MINUTE), NOON)
    made = decide(plan(Overlap.ALLOW), read_state(row), NOON + 2 * MINUTE, busy=False)
    one, other = (firing_of("default", row, plan(jitter=MINUTE), made) for _ in range(2))
    assert (one.id, one.state, one.last_id) == (other.id, other.state, other.last_id)
    assert [(run.run_id, run.id, run.delay) for run in one.starts] == [
        (run.run_id, run.id, run.delay) for run in other.starts
    ]
    assert [run.id for run in one.starts] == [f"nightly:{slot_text(slot)}" for slot in minutes(1, 2)]
    assert (one.last_at, one.last_id) == (NOON + 2 * MINUTE, one.starts[-1].id)
    delays = [run.delay for run in one.starts]
    assert all(0 <= delay < MINUTE for delay in delays)
    assert delays[0] != delays[1]
    assert firing_of("other", row, plan(), made).starts[0].run_id != one.starts[0].run_id


def test_a_pause_is_not_caught_up_on() -> None:
    row = first_row("nightly", plan(), NOON)
    row.state = text_of(State(NOON, waiting=NOON))
    resumed = resumed_row(paused_row(row, "why"), NOON + 5 * MINUTE + 1)
    assert (resumed.paused, resumed.reason, resumed.next_at) == (False, "", NOON + 6 * MINUTE)
    assert read_state(resumed) == State(NOON + 5 * MINUTE + 1)


def test_the_same_plan_changes_nothing() -> None:
    assert replaced_row(first_row("nightly", plan(), NOON), plan(), NOON + HOUR) is None


def test_another_plan_with_the_same_calendar_goes_on_where_the_old_one_was() -> None:
    row = first_row("nightly", plan(), NOON)
    row.paused, row.reason, row.last_id = True, "why", "nightly:1"
    changed = replaced_row(row, plan(Overlap.ALLOW), NOON + 10 * MINUTE)
    assert changed is not None
    assert (read_state(changed).cursor, changed.next_at) == (NOON, NOON + MINUTE)
    assert (changed.paused, changed.reason, changed.last_id) == (True, "why", "nightly:1")


def test_another_calendar_has_no_slots_before_it_was_made() -> None:
    row = first_row("nightly", plan(), NOON)
    changed = replaced_row(row, plan(when=Every(HOUR)), NOON + 90 * MINUTE)
    assert changed is not None
    assert (read_state(changed).cursor, changed.next_at) == (NOON + 90 * MINUTE, NOON + 2 * HOUR)
