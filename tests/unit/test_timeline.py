"""Timelines and differences, from values alone: a run's row, its journal and its attempts."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from msgspec import Raw, json

from batuta.authoring.history.diff import Diff, diff_of
from batuta.authoring.history.steps import SegmentKind, Step, StepKind, StepState, steps_of
from batuta.authoring.history.timeline import Timeline, timeline_of
from batuta.clock import SECOND, as_datetime
from batuta.errors import InvalidInput
from batuta.ids import new_run_id
from batuta.journal.entries import Body, Command, CommandKind, Entry, EntryKind, StartInfo, encode_entry
from batuta.journal.failures import Failure
from batuta.journal.records import LOSSES, PAUSES, Attempt, Run, RunKind
from batuta.journal.states import CLOSED, RunState
from tests.replay.journals import Journal, load_all

ZERO = 1_000 * SECOND
BROKEN = Failure("ConnectionError", "the bank is down")


def a_run(state: RunState = RunState.RUNNING, closed: float | None = None, **more: Any) -> Run:
    """Created at second 0."""
    facts: dict[str, Any] = {
        "kind": RunKind.WORKFLOW,
        "name": "checkout",
        "queue": "default",
        "priority": 0,
        "epoch": 1,
        "head": 0,
        "owner": "w-1" if state is RunState.RUNNING else None,
        "wake_at": None,
        "created_at": ZERO,
        "closed_at": None if closed is None else at(closed),
        "deadline": None,
        "deaths": 0,
        "reason": "",
        "failed_code": [],
        "version": "",
        "tags": "{}",
        "memo": "null",
    }
    run_id = new_run_id()
    return Run(run_id=run_id, id="order-1", chain_id=run_id, state=state, **(facts | more))


def at(seconds: float) -> int:
    return ZERO + round(seconds * SECOND)


def journal(*turns: tuple[EntryKind, float, Body]) -> list[Entry]:
    entries: list[Entry] = []
    for kind, seconds, body in turns:
        entries.append(encode_entry(len(entries), kind, at(seconds), body, entries[-1].crc if entries else 0))
    return entries


def started(seconds: float, *commands: Command, **start: Any) -> tuple[EntryKind, float, Body]:
    told = StartInfo("checkout", 1, "base", **start)
    return EntryKind.STARTED, seconds, Body(value=Raw(b'["o-1"]'), start=told, commands=list(commands))


def charge(seq: int = 1, data: bytes = b'["o-1",5]', **more: Any) -> Command:
    return Command(seq, CommandKind.ACTIVITY, "charge", Raw(data), **more)


def timer(seq: int, seconds: float) -> Command:
    return Command(seq, CommandKind.TIMER, value=Raw(b"%d" % round(seconds * SECOND)))


def end(seq: int, value: bytes = b'"ok"') -> Command:
    return Command(seq, CommandKind.COMPLETE, value=Raw(value))


def done(seconds: float, begun: float, tries: int = 1, *commands: Command, seq: int = 1) -> Any:
    body = Body(seq, "charge", Raw(b'"paid"'), attempts=tries, started_at=at(begun), commands=list(commands))
    return EntryKind.ACTIVITY_DONE, seconds, body


def failed_try(number: int, begun: float, ended: float, due: float, **more: Any) -> Attempt:
    error = json.encode(BROKEN).decode()
    return Attempt(seq=1, number=number, started_at=at(begun), ended_at=at(ended), next_at=at(due), error=error, **more)


def drawn(segments: Sequence[Any]) -> list[tuple[str, float, float | None]]:
    """Kinds, begins and ends, in seconds since the run was created."""
    return [(str(one.kind), _after(one.start), None if one.end is None else _after(one.end)) for one in segments]


def _after(moment: datetime) -> float:
    return (moment - as_datetime(ZERO)).total_seconds()


def step(found: Timeline, kind: StepKind) -> Step:
    return next(one for one in found.steps if one.kind is kind)


def test_a_run_waits_for_a_worker_until_its_first_turn() -> None:
    tape = journal(started(3, charge()), done(5, 4, 1, end(2)))
    found = timeline_of(a_run(RunState.COMPLETED, 5), tape, [], at(60))
    assert drawn(found.segments) == [("queued", 0, 4), ("running", 4, 5)]
    assert found.seconds == {SegmentKind.QUEUED: 4, SegmentKind.RUNNING: 1}
    assert found.began_at == as_datetime(at(3))


def test_a_delay_is_not_time_in_the_queue() -> None:
    tape = journal(started(5, end(1), delay=4 * SECOND))
    found = timeline_of(a_run(RunState.COMPLETED, 5), tape, [], at(60))
    assert drawn(found.segments) == [("delayed", 0, 4), ("queued", 4, 5)]


def test_the_next_try_of_a_whole_run_begins_after_a_backoff() -> None:
    tape = journal(started(5, end(1), delay=4 * SECOND, attempt=2))
    found = timeline_of(a_run(RunState.COMPLETED, 5), tape, [], at(60))
    assert drawn(found.segments) == [("backoff", 0, 4), ("queued", 4, 5)]
    assert found.steps[0].tries == 2


@pytest.mark.parametrize(
    ("facts", "seen"),
    [
        ({"wake_at": at(30)}, [("delayed", 0, None)]),
        ({"wake_at": at(4)}, [("delayed", 0, 4), ("queued", 4, None)]),
        ({"awaits": 2}, [("delayed", 0, None)]),
        ({"state": RunState.PAUSED, "resume_at": at(4), "paused_at": at(2)}, [("delayed", 0, 2), ("paused", 2, None)]),
    ],
)
def test_a_query_of_a_run_that_has_not_begun(facts: dict[str, Any], seen: list[Any]) -> None:
    unbegun: dict[str, Any] = {"state": RunState.PENDING, "head": -1}
    run = a_run(**(unbegun | facts))
    found = timeline_of(run, [], [], at(10))
    assert drawn(found.segments) == seen
    assert (found.began_at, found.steps) == (None, [])


def test_a_run_that_was_ended_before_it_began() -> None:
    tape = journal((EntryKind.TERMINATED, 7, Body(reason="wrong")))
    found = timeline_of(a_run(RunState.TERMINATED, 7), tape, [], at(60))
    assert drawn(found.segments) == [("queued", 0, 7)]
    assert [(one.kind, one.name, one.input) for one in found.steps] == [(StepKind.END, "terminated", "wrong")]


def test_attempts_that_failed_are_there_when_the_activity_is_done() -> None:
    tape = journal(started(0, charge()), done(12, 10, 3, end(2)))
    rows = [failed_try(1, 0, 1, 3), failed_try(2, 4, 5, 9)]
    found = step(timeline_of(a_run(RunState.COMPLETED, 12), tape, rows, at(60)), StepKind.ACTIVITY)
    assert drawn(found.segments) == [
        ("running", 0, 1),
        ("backoff", 1, 3),
        ("queued", 3, 4),
        ("running", 4, 5),
        ("backoff", 5, 9),
        ("queued", 9, 10),
        ("running", 10, 12),
    ]
    assert [segment.attempt for segment in found.segments] == [1, 1, 0, 2, 2, 0, 3]
    assert [(one.number, bool(one.error)) for one in found.attempts] == [(1, True), (2, True), (3, False)]
    assert found.attempts[0].next_at == as_datetime(at(3))
    assert (found.input, found.output, found.state, found.tries) == (["o-1", 5], "paid", StepState.DONE, 3)


def test_the_last_attempt_of_one_that_failed_for_good_has_its_error() -> None:
    failed = Body(1, "charge", error=BROKEN, attempts=2, started_at=at(4), commands=[end(2)])
    tape = journal(started(0, charge()), (EntryKind.ACTIVITY_FAILED, 6, failed))
    row = failed_try(1, 0, 1, 4)
    found = step(timeline_of(a_run(RunState.COMPLETED, 6), tape, [row], at(60)), StepKind.ACTIVITY)
    assert [json.decode(one.error or "null")["message"] for one in found.attempts] == ["the bank is down"] * 2
    assert (found.state, found.error) == (StepState.FAILED, BROKEN)


@pytest.mark.parametrize(
    ("rows", "seen", "worker"),
    [
        ([], [("running", 0, None)], None),  # not noted, as most are not
        ([failed_try(1, 0, 1, 30)], [("running", 0, 1), ("backoff", 1, None)], None),
        ([failed_try(1, 0, 1, 3)], [("running", 0, 1), ("backoff", 1, 3), ("running", 3, None)], None),
        ([Attempt(seq=1, number=1, started_at=at(2))], [("queued", 0, 2), ("running", 2, None)], "w-1"),
        ([Attempt(seq=1, number=1, started_at=at(0), outside=True)], [("outside", 0, None)], None),
    ],
)
def test_an_activity_that_is_under_way(rows: list[Attempt], seen: list[Any], worker: str | None) -> None:
    found = timeline_of(a_run(), journal(started(0, charge())), rows, at(10))
    call = step(found, StepKind.ACTIVITY)
    assert drawn(call.segments) == seen == drawn(found.segments)
    assert call.state is StepState.OPEN
    assert [one.worker for one in call.attempts][-1:] == ([worker] if rows else [])


def test_a_call_of_a_run_without_an_owner_waits_for_a_worker() -> None:
    found = timeline_of(a_run(RunState.WAITING), journal(started(0, charge())), [], at(10))
    assert drawn(found.segments) == [("queued", 0, None)]


LOSS = Attempt(seq=LOSSES, number=3, started_at=at(4), ended_at=at(4))


@pytest.mark.parametrize(
    ("rows", "begun", "seen"),
    [
        ([], 6, [("lost", 0, 4), ("queued", 4, 6), ("running", 6, 8)]),
        (
            [failed_try(1, 0, 1, 2)],
            6,
            [("running", 0, 1), ("backoff", 1, 2), ("lost", 2, 4), ("queued", 4, 6), ("running", 6, 8)],
        ),
        ([failed_try(1, 0, 1, 5)], 6, [("running", 0, 1), ("backoff", 1, 5), ("queued", 5, 6), ("running", 6, 8)]),
        ([], 4, [("lost", 0, 4), ("running", 4, 8)]),
    ],
)
def test_an_attempt_whose_worker_died_is_lost_until_that_was_noticed(
    rows: list[Attempt], begun: int, seen: Any
) -> None:
    tries = len(rows) + 1
    tape = journal(started(0, charge()), done(8, begun, tries, end(2)))
    found = timeline_of(a_run(RunState.COMPLETED, 8), tape, [LOSS, *rows], at(60))
    call = step(found, StepKind.ACTIVITY)
    assert drawn(call.segments) == seen == drawn(found.segments)
    lost = [(one.number, one.ended_at) for one in call.attempts if one.lost]
    assert lost == ([(tries, as_datetime(at(4)))] if "lost" in str(seen) else [])
    assert [one.number for one in call.attempts][-1] == tries == call.tries


def test_a_lost_attempt_is_seen_before_the_next_one_has_ended() -> None:
    rows = [LOSS, Attempt(seq=1, number=1, started_at=at(1), details="3")]
    found = timeline_of(a_run(), journal(started(0, charge())), rows, at(10))
    assert drawn(found.segments) == [("queued", 0, 1), ("lost", 1, 4), ("running", 4, None)]
    waits = timeline_of(a_run(RunState.WAITING), journal(started(0, charge())), [LOSS], at(10))
    assert drawn(waits.segments) == [("lost", 0, 4), ("queued", 4, None)]


def test_an_activity_that_never_began_was_queued_all_the_time() -> None:
    late = Body(1, "charge", error=Failure("batuta.errors:ActivityTimeout", "too late"), attempts=1, commands=[end(2)])
    tape = journal(started(0, charge()), (EntryKind.ACTIVITY_FAILED, 6, late))
    found = step(timeline_of(a_run(RunState.COMPLETED, 6), tape, [], at(60)), StepKind.ACTIVITY)
    assert drawn(found.segments) == [("queued", 0, 6)]
    assert found.attempts == []


def test_what_was_answered_from_outside_waited_there() -> None:
    tape = journal(started(0, charge()), done(9, 5, 2, end(2)))
    rows = [failed_try(1, 0, 4, 5, outside=True), Attempt(seq=1, number=2, started_at=at(5), outside=True)]
    found = step(timeline_of(a_run(RunState.COMPLETED, 9), tape, rows, at(60)), StepKind.ACTIVITY)
    assert drawn(found.segments) == [("outside", 0, 4), ("backoff", 4, 5), ("outside", 5, 9)]


def test_a_call_that_was_cancelled_ends_there() -> None:
    cancel = Command(3, CommandKind.CANCEL, "charge", target=1)
    tape = journal(started(0, charge(), timer(2, 4)), (EntryKind.TIMER_FIRED, 4, Body(2, commands=[cancel, end(4)])))
    found = timeline_of(a_run(RunState.COMPLETED, 4), tape, [failed_try(1, 0, 1, 30)], at(60))
    call = step(found, StepKind.ACTIVITY)
    assert call.state is StepState.CANCELLED
    assert drawn(call.segments) == [("running", 0, 1), ("backoff", 1, 4)]


def test_a_timer_without_a_waiter_stays_until_the_next_turn() -> None:
    tape = journal(started(0, timer(1, 30), charge(2)), done(3, 0, 1, charge(3), seq=2), done(5, 3, 1, end(4), seq=3))
    found = step(timeline_of(a_run(RunState.COMPLETED, 5), tape, [], at(60)), StepKind.TIMER)
    assert (found.state, found.input) == (StepState.DROPPED, 30)
    assert drawn(found.segments) == [("asleep", 0, 3)]


def test_a_timer_that_runs_is_open() -> None:
    found = timeline_of(a_run(RunState.WAITING), journal(started(0, timer(1, 30))), [], at(10))
    assert step(found, StepKind.TIMER).state is StepState.OPEN
    assert drawn(found.segments) == [("asleep", 0, None)]


def test_a_child_is_another_runs_time() -> None:
    child = Command(1, CommandKind.CHILD, "parcel", Raw(b"[7]"), to="order-1/1")
    tape = journal(started(0, child), (EntryKind.CHILD_DONE, 8, Body(1, value=Raw(b"3"), commands=[end(2)])))
    found = step(timeline_of(a_run(RunState.COMPLETED, 8), tape, [], at(60)), StepKind.CHILD)
    assert (found.to, found.input, found.output) == ("order-1/1", [7], 3)
    assert drawn(found.segments) == [("child", 0, 8)]


@pytest.mark.parametrize(("tries", "seen"), [(1, "queued"), (2, "child")])
def test_an_activity_in_another_queue_waits_there(tries: int, seen: str) -> None:
    tape = journal(started(0, charge(to="order-1/1-x")), done(8, 5, tries, end(2)))
    found = step(timeline_of(a_run(RunState.COMPLETED, 8), tape, [], at(60)), StepKind.ACTIVITY)
    assert drawn(found.segments) == [(seen, 0, 5), ("running", 5, 8)]


def test_a_signal_shows_how_long_the_run_waited_for_nothing_else() -> None:
    tape = journal(
        started(0, timer(1, 2)),
        (EntryKind.TIMER_FIRED, 2, Body(1)),
        (EntryKind.SIGNAL, 5, Body(name="go", value=Raw(b"1"))),
        (EntryKind.SIGNAL, 6, Body(name="go", value=Raw(b"2"), commands=[end(2)])),
    )
    found = timeline_of(a_run(RunState.COMPLETED, 6), tape, [], at(60))
    signals = [one for one in found.steps if one.kind is StepKind.SIGNAL]
    assert [drawn(one.segments) for one in signals] == [[("waiting", 2, 5)], [("waiting", 5, 6)]]
    assert drawn(found.segments) == [("asleep", 0, 2), ("waiting", 2, 6)]


def test_a_run_that_waits_for_the_next_signal() -> None:
    tape = journal(started(0), *[(EntryKind.SIGNAL, second, Body(name="go")) for second in (2, 5)])
    found = timeline_of(a_run(RunState.WAITING), tape, [], at(60))
    assert drawn(found.segments) == [("waiting", 0, None)]
    assert [drawn(one.segments) for one in found.steps[1:]] == [[("waiting", 0, 2)], [("waiting", 2, 5)]]


def test_an_update_lasts_until_it_is_answered() -> None:
    answer = Command(2, CommandKind.ANSWER, "put", Raw(b"true"), to="u-1")
    tape = journal(
        started(0, timer(1, 9)),
        (EntryKind.UPDATE, 2, Body(name="put", value=Raw(b"[1]"), message_id="u-1")),
        (EntryKind.TIMER_FIRED, 9, Body(1, commands=[answer, end(3)])),
    )
    found = timeline_of(a_run(RunState.COMPLETED, 9), tape, [], at(60))
    update = step(found, StepKind.UPDATE)
    assert (update.state, update.output, drawn(update.segments)) == (StepState.DONE, True, [("running", 2, 9)])
    assert drawn(found.segments) == [("asleep", 0, 9)]


def test_what_waits_while_the_run_is_paused_waits_for_that() -> None:
    tape = journal(started(0, charge()), done(13, 12, 2, end(2)))
    rows = [
        Attempt(seq=PAUSES, number=0, started_at=at(-50), ended_at=at(0)),
        Attempt(seq=PAUSES, number=1, started_at=at(2), ended_at=at(10)),
        failed_try(1, 0, 1, 4),
    ]
    found = timeline_of(a_run(RunState.COMPLETED, 13), tape, rows, at(60))
    seen = [("running", 0, 1), ("backoff", 1, 2), ("paused", 2, 10), ("queued", 10, 12), ("running", 12, 13)]
    assert drawn(found.segments) == seen == drawn(step(found, StepKind.ACTIVITY).segments)


def test_a_run_that_is_paused_now() -> None:
    run = a_run(RunState.PAUSED, paused_at=at(5))
    found = timeline_of(run, journal(started(0, charge())), [failed_try(1, 0, 1, 30)], at(10))
    assert drawn(found.segments) == [("running", 0, 1), ("backoff", 1, 5), ("paused", 5, None)]
    assert drawn(step(found, StepKind.ACTIVITY).segments) == drawn(found.segments)


def test_a_backoff_that_goes_on_after_a_pause() -> None:
    rows = [Attempt(seq=PAUSES, number=1, started_at=at(2), ended_at=at(10)), failed_try(1, 0, 1, 30)]
    found = timeline_of(a_run(), journal(started(0, charge())), rows, at(20))
    seen = [("running", 0, 1), ("backoff", 1, 2), ("paused", 2, 10), ("backoff", 10, None)]
    assert drawn(found.segments) == seen == drawn(step(found, StepKind.ACTIVITY).segments)


def test_a_parked_run_stands_still_from_its_last_entry_on() -> None:
    found = timeline_of(a_run(RunState.NEEDS_CODE), journal(started(2, charge())), [], at(10))
    assert drawn(found.segments) == [("queued", 0, 2), ("parked", 2, None)]


def test_a_journal_that_cannot_be_read_leaves_what_the_row_says() -> None:
    coded = [Entry(0, EntryKind.STARTED, at(1), 0, '"~1:aes.k1.00:AAAA"')]
    found = timeline_of(a_run(), coded, [], at(10))
    assert "aes.k1" in found.sealed
    assert (found.id, found.segments, found.steps) == ("order-1", [], [])


@pytest.mark.parametrize("recorded", load_all(), ids=lambda one: f"{one.name}-{one.python}")
def test_every_recorded_journal_has_a_timeline_without_gaps(recorded: Journal) -> None:
    tape = recorded.journal_entries()
    run = a_run(RunState(recorded.state), created_at=tape[0].at, head=tape[-1].ord)
    run.closed_at = tape[-1].at
    found = timeline_of(run, tape, [], tape[-1].at)
    assert run.state in CLOSED
    for before, after in zip(found.segments, found.segments[1:], strict=False):
        assert before.end == after.start
        assert before.kind is not after.kind
    for one in found.steps:
        assert one.state is not StepState.OPEN
        assert all(segment.end is not None and segment.end > segment.start for segment in one.segments)
    assert json.decode(json.encode(found), type=Timeline).seconds == found.seconds


# -- differences


def compared(left: list[Entry], right: list[Entry], **facts: Any) -> Diff:
    one, other = a_run(RunState.COMPLETED, 9), a_run(RunState.COMPLETED, 9, **facts)
    return diff_of((one, steps_of(one, left, [], at(60))), (other, steps_of(other, right, [], at(60))))


def paid(*amounts: int, name: str = "charge", result: bytes = b'"ok"') -> list[Entry]:
    calls = [Command(n, CommandKind.ACTIVITY, name, Raw(b"[%d]" % amount)) for n, amount in enumerate(amounts, 1)]
    calls.append(end(len(amounts) + 1, result))
    turns: list[Any] = [started(0, calls[0])]
    for n, following in enumerate(calls[1:], 1):
        turns.append(done(n, n - 1, 1, following, seq=n))
    return journal(*turns)


def step_named(name: str, number: int) -> Step:
    return Step(kind=StepKind.ACTIVITY, name=name, seq=number + 1, entry=number, began_at=as_datetime(at(0)))


def parts(found: Diff) -> list[tuple[str, list[str]]]:
    steps = [(pair.left or pair.right, pair.differs) for pair in found.steps[found.same :]]
    return [(f"{one.kind} {one.name}".strip() if one is not None else "", differs) for one, differs in steps]


def test_runs_that_did_the_same_do_not_differ() -> None:
    found = compared(paid(1, 2), paid(1, 2))
    assert found.is_same
    assert found.same == len(found.steps) == 4


def test_the_first_difference_is_found_and_what_follows_is_held_together() -> None:
    found = compared(paid(1, 2, 3), paid(1, 5, 3, result=b'"no"'))
    assert found.same == 2  # its start, and the first call
    assert parts(found) == [("activity charge", ["input"]), ("activity charge", []), ("end complete", ["output"])]
    assert not found.is_same


def test_a_step_that_only_one_of_them_has_does_not_shift_the_others() -> None:
    longer = paid(1, 2)
    body = Body(1, "charge", Raw(b'"paid"'), attempts=1, started_at=at(0))
    body.commands = [timer(2, 1)]
    second = [Command(3, CommandKind.ACTIVITY, "charge", Raw(b"[2]"))]
    shifted = journal(
        started(0, charge(1, b"[1]")),
        (EntryKind.ACTIVITY_DONE, 1, body),
        (EntryKind.TIMER_FIRED, 2, Body(2, commands=second)),
        done(3, 2, 1, end(4), seq=3),
    )
    found = compared(longer, shifted)
    assert parts(found) == [("timer", ["step"]), ("activity charge", []), ("end complete", [])]
    assert found.steps[2].left is None


def test_more_attempts_are_told_and_are_no_difference() -> None:
    once = journal(started(0, charge()), done(5, 0, 1, end(2)))
    thrice = journal(started(0, charge()), done(5, 4, 3, end(2)))
    found = compared(once, thrice)
    assert found.is_same
    assert found.steps[1].differs == ["tries"]


def test_very_long_runs_are_compared_step_by_step_in_order() -> None:
    found = compared(paid(*range(3_000)), paid(9, *range(1, 3_000)))
    assert found.same == 1
    assert [pair.differs for pair in found.steps if not pair.is_same] == [["input"]]


def test_a_step_that_only_one_of_two_very_long_runs_has_does_not_shift_the_others() -> None:
    found = compared(paid(*range(3_000)), paid(*range(1_500), 7, *range(1_500, 3_000)))
    assert (found.same, parts(found)[0], parts(found)[-1]) == (
        1_501,
        ("activity charge", ["step"]),
        ("end complete", []),
    )
    assert sum(not pair.is_same for pair in found.steps) == 1


def test_runs_that_repeat_themselves_in_other_ways_are_compared_in_no_time() -> None:
    """Looking for what belongs together among all of them would take a minute."""
    left, right = (
        [step_named("a" if number % rhythm else "b", number) for number in range(2_000)] for rhythm in (2, 3)
    )
    found = diff_of((a_run(), left), (a_run(), right))
    assert (len(found.steps), found.same) == (2_000, 2)


@pytest.mark.parametrize("facts", [{"name": "refund"}, {"kind": RunKind.JOB}])
def test_runs_of_different_workflows_are_not_compared(facts: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match="is of workflow 'checkout', and run"):
        compared(paid(1), paid(1), **facts)


def test_a_run_is_not_compared_with_itself() -> None:
    run = a_run()
    with pytest.raises(InvalidInput, match="with itself"):
        diff_of((run, []), (run, []))
