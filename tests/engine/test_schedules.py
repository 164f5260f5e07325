"""Schedules, in virtual time: slots become runs as the calendar and the policies say."""

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from batuta import (
    InvalidInput,
    InvalidSchedule,
    Overlap,
    Retry,
    RunState,
    Schedule,
    ScheduleExists,
    UnknownSchedule,
    activity,
    activity_info,
    cron,
    every,
    heartbeat,
    info,
    job,
    once,
    workflow,
)
from batuta.authoring.jobs import JobCall
from batuta.clock import SECOND
from batuta.errors import DuplicateDefinition
from batuta.journal import schedules as rows
from batuta.journal.records import RunKind
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment

begun: list[tuple[str, datetime]] = []
ended: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_yet() -> None:
    begun.clear()
    ended.clear()


@activity
async def note(id: str) -> None:
    begun.append((id, slot_of(id)))


def slot_of(id: str) -> datetime:
    return datetime.fromisoformat(id.partition(":")[2].removeprefix("triggered-").replace("Z", "+00:00"))


@workflow
async def tick(text: str = "") -> str:
    await note(info().id)
    return text


@workflow
async def slow(seconds: float) -> None:
    await note(info().id)
    try:
        await asyncio.sleep(seconds)
    except asyncio.CancelledError:
        await note(f"cancelled {info().id}")
        raise
    finally:
        ended.append(info().id)


def minutes() -> list[int]:
    """Minutes of the slots whose runs have begun."""
    return [slot.minute for _, slot in begun]


def world(*schedules: Schedule, **options: Any) -> Environment:
    return Environment(workflows=[tick, slow], activities=[note], schedules=schedules, **options)


# The environment's clock begins at 22:13:20.


async def test_each_slot_has_a_run_that_is_named_after_it() -> None:
    async with world(Schedule("five", cron("*/5 * * * *"), tick, "hello")) as env:
        await env.advance(15 * 60)
        assert [id for id, _ in begun] == [f"five:2023-11-14T22:{n}:00Z" for n in (15, 20, 25)]
        handle = await env.client.get("five:2023-11-14T22:20:00Z", tick)
        assert await handle.result() == "hello"
        described = await handle.describe()
        assert described.created_at is not None
        assert described.created_at - slot_of(handle.id) < timedelta(milliseconds=100)


@activity(timeout=120, heartbeat=30)
async def look() -> int:
    heartbeat("looking")
    return 31


@workflow
async def monitor_rate_limits() -> int:
    return await look()


async def test_a_monitor_runs_every_five_minutes_on_its_queue_with_timeouts_for_each_slot() -> None:
    monitor = Schedule(
        "monitor-rate-limits-cron",
        cron("*/5 * * * *"),
        monitor_rate_limits,
        queue="dict-task-queue",
        execution_timeout=600,
        timeout=300,
    )
    async with Environment(
        workflows=[monitor_rate_limits], activities=[look], queues=["dict-task-queue"], schedules=[monitor]
    ) as env:
        await env.advance(60 * 60)
        page = await env.client.list(workflow=monitor_rate_limits, queue="dict-task-queue")
        assert len(page.runs) == 12
        for run in page.runs:
            assert run.id.startswith("monitor-rate-limits-cron:2023-11-14T2")
            assert run.state is RunState.COMPLETED
            assert run.deadline is not None
            assert run.created_at is not None
            assert run.deadline - run.created_at == timedelta(minutes=5)
        view = await env.client.schedules.get("monitor-rate-limits-cron")
        assert (view.queue, view.timeout, view.execution_timeout) == ("dict-task-queue", 300, 600)


async def test_a_slot_whose_run_takes_too_long_is_ended_and_the_next_one_begins() -> None:
    schedule = Schedule("slow", every(600), slow, 3_600, timeout=300, execution_timeout=600)
    async with world(schedule) as env:
        await env.advance(25 * 60)
        states = [(await (await env.client.get(id)).describe()).state for id, _ in begun]
        assert minutes() == [20, 30]
        assert states[0] is RunState.TIMED_OUT


# -- jobs

sent: list[tuple[str, int]] = []


@job(retry=Retry(attempts=2, first=1, jitter=0), queue="mail")
async def send(text: str, times: int = 1) -> int:
    sent.append((text, activity_info().attempt))
    if activity_info().attempt == 1:
        raise ConnectionError("busy")
    return times


@pytest.mark.parametrize("target", [send, send.call("a", times=2), "job:send"])
async def test_a_schedule_enqueues_a_job_at_each_slot(target: Any) -> None:  # covers B-11
    sent.clear()
    arguments = () if isinstance(target, JobCall) else ("a",)
    schedule = Schedule("s", every(60), target, *arguments, tags={"k": "v"}, queue="mail", key="ada", expires=300)
    async with Environment(jobs=[send], queues=["mail"], schedules=[schedule]) as env:
        await env.advance(130)
        assert sent == [("a", 1), ("a", 2)] * 2
        page = await env.client.list(id_prefix="s:", kind="job")
        assert [run.id for run in page.runs] == ["s:2023-11-14T22:15:00Z", "s:2023-11-14T22:14:00Z"]
        for run in page.runs:
            assert (run.state, run.queue, run.tags) == (RunState.COMPLETED, "mail", {"k": "v"})
            assert (await env.store.get_run(run.run_id)).flow_key == "ada"
        handle = await env.client.schedules.trigger("s")
        assert await handle.result() == (2 if isinstance(target, JobCall) else 1)
        view = await env.client.schedules.get("s")
        assert (view.workflow, view.kind) == ("send", RunKind.JOB)


async def test_a_job_is_not_begun_beside_itself() -> None:
    @job
    async def nap() -> None:
        begun.append((activity_info().key, env.now))
        await asyncio.sleep(90)

    async with Environment(jobs=[nap], schedules=[Schedule("s", every(60), nap)]) as env:
        await env.advance(300)
        assert [at.minute for _, at in begun] == [14, 16, 18]


async def test_options_of_a_workflow_are_none_of_a_job() -> None:
    with pytest.raises(InvalidSchedule, match="unknown options execution_timeout"):
        Schedule("s", every(60), send, "a", execution_timeout=5)
    with pytest.raises(InvalidSchedule, match="unknown options heartbeat"):
        Schedule("s", every(60), tick, heartbeat=5)
    with pytest.raises(InvalidSchedule, match="unknown options unique"):
        Schedule("s", every(60), send, "a", unique="k")
    with pytest.raises(InvalidSchedule, match="unknown options delay"):
        Schedule("s", every(60), send.call("a").with_options(delay=5, tags={"a": "b"}))
    with pytest.raises(InvalidInput):
        Schedule("s", every(60), send, object())


# -- overlap


async def test_skip_leaves_out_slots_while_a_run_is_open() -> None:
    async with world(Schedule("s", every(60), slow, 150)) as env:
        await env.advance(10 * 60)
        assert minutes() == [14, 17, 20, 23]


async def test_allow_begins_runs_beside_each_other() -> None:
    async with world(Schedule("s", every(60), slow, 150, overlap="allow")) as env:
        await env.advance(5 * 60)
        assert minutes() == [14, 15, 16, 17, 18]


async def test_buffer_begins_one_slot_when_the_run_before_has_ended() -> None:
    async with world(Schedule("s", every(60), slow, 150, overlap="buffer")) as env:
        await env.advance(100)
        view = await env.client.schedules.get("s")
        assert (view.running, view.waiting) == (True, datetime(2023, 11, 14, 22, 15, tzinfo=UTC))
        await env.advance(9 * 60)
        # 15 waits from 22:15 until 22:16:30, and 17 (16 was left out) until 22:19.
        assert minutes()[:4] == [14, 15, 17, 20]
        assert len(minutes()) == len(set(minutes()))


async def test_cancel_ends_the_running_one_and_begins_when_it_has() -> None:
    async with world(Schedule("s", every(60), slow, 3_600, overlap="cancel")) as env:
        await env.advance(3 * 60)
        ids = [id for id, _ in begun if not id.startswith("cancelled")]
        assert [slot_of(id).minute for id in ids] == [14, 15, 16]
        assert ended == ids[:2]
        assert (await (await env.client.get(ids[0])).describe()).state is RunState.CANCELLED
        assert (await env.client.schedules.get("s")).last_id == ids[-1]


async def test_cancel_ends_a_job_that_has_not_begun_at_once() -> None:
    @job
    async def sweep() -> None: ...

    async with Environment(jobs=[sweep], schedules=[Schedule("s", every(60), sweep, overlap="cancel")]) as env:
        await env.client.pause_queue("default")
        await env.advance(3 * 60)
        states = [run.state for run in (await env.client.list(id_prefix="s:", kind="job")).runs]
        assert sorted(states) == [RunState.CANCELLED, RunState.CANCELLED, RunState.PENDING]


async def test_jitter_spreads_runs_within_its_limit() -> None:
    async with world(Schedule("s", every(60), tick, jitter=30, overlap="allow")) as env:
        await env.advance(10 * 60 + 30)
        waits = []
        for run in (await env.client.list(id_prefix="s:")).runs:
            first = (await (await env.client.get(run.id)).journal())[0].at
            waits.append((first - slot_of(run.id)).total_seconds())
        assert len(waits) == 10
        assert all(0 <= wait < 30.1 for wait in waits)
        assert len({round(wait) for wait in waits}) > 3


# -- catching up (F20)


@pytest.mark.parametrize(
    ("overlap", "catch_up", "expected"),
    [
        ("skip", 0, 0),
        ("skip", 3_600, 1),
        ("buffer", 3_600, 2),
        ("cancel", 3_600, 1),
        ("allow", 0, 0),
        ("allow", 1_800, 6),
        ("allow", 3_600, 12),
        ("allow", 86_400, 72),
    ],
)
async def test_after_six_hours_of_downtime_each_slot_has_one_run_or_none(
    overlap: str, catch_up: float, expected: int
) -> None:
    schedule = Schedule("five", cron("*/5 * * * *"), tick, overlap=overlap, catch_up=catch_up)
    async with world(schedule) as env:
        await env.advance(120)
        before = len(begun)
        assert before == 1
        await env.worker.stop()
        await env.advance(6 * 3_600)
        assert len(begun) == before
        await env.deploy()
        await env.advance(60)
        caught_up = [slot for _, slot in begun[before:]]
        assert len(caught_up) == len(set(caught_up)) == expected
        down_at, up_at = datetime(2023, 11, 14, 22, 15, tzinfo=UTC), env.now
        assert all(down_at < slot and up_at - slot < timedelta(seconds=catch_up + 120) for slot in caught_up)
        await env.advance(600)
        assert len(begun) == before + expected + 2


@pytest.mark.parametrize(("overlap", "expected"), [("skip", 1), ("buffer", 2)])
async def test_after_thousands_of_slots_as_many_runs_begin_as_after_a_few(overlap: str, expected: int) -> None:
    async with world(Schedule("each", every(1), tick, overlap=overlap, catch_up=86_400)) as env:
        await env.worker.stop()
        await env.advance(4_000)
        up_at = env.now
        before = len(begun)
        await env.deploy()
        await env.advance(30)
        assert len([slot for _, slot in begun[before:] if slot <= up_at]) == expected


async def test_missed_slots_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    async with world(Schedule("five", cron("*/5 * * * *"), tick, catch_up=600)) as env:
        await env.worker.stop()
        await env.advance(3_600)
        await env.deploy()
        await env.advance(1)
    assert "schedule 'five': slots from 2023-11-14T22:15:00Z on are missed: over 10 min" in caplog.text


async def test_a_time_that_passed_in_the_downtime_is_caught_up_on() -> None:
    when = once(datetime(2023, 11, 14, 22, 30, tzinfo=UTC))
    async with world(Schedule("once", when, tick)) as env:
        await env.worker.stop()
        await env.advance(3_600)
        await env.deploy()
        await env.advance(1)
        assert [id for id, _ in begun] == ["once:2023-11-14T22:30:00Z"]
        assert (await env.client.schedules.get("once")).next_at is None


# -- what code declares


async def test_a_declared_schedule_that_is_unchanged_costs_a_read_and_keeps_its_place() -> None:
    async with world(Schedule("five", cron("*/5 * * * *"), tick, "a")) as env:
        await env.advance(600)
        before = (await env.store.schedule("five")).schedule
        await env.deploy()
        assert (await env.store.schedule("five")).schedule == before


async def test_a_declared_schedule_that_changed_is_replaced_and_stays_paused() -> None:
    async with world(Schedule("five", cron("*/5 * * * *"), tick, "a")) as env:
        await env.advance(600)
        await env.client.schedules.pause("five", "maintenance")
        await env.deploy(schedules=[Schedule("five", cron("*/2 * * * *"), tick, "b")])
        view = await env.client.schedules.get("five")
        assert (view.arguments, view.when, view.paused, view.reason) == (
            ["b"],
            "*/2 * * * * (UTC)",
            True,
            "maintenance",
        )
        assert view.last_id == "five:2023-11-14T22:20:00Z"
        await env.client.schedules.resume("five")
        await env.advance(120)
        assert begun[-1][0] == "five:2023-11-14T22:24:00Z"


async def test_many_declared_schedules_are_reconciled_by_pages() -> None:
    many = [Schedule(f"s{n}", every(3_600), tick) for n in range(30)]
    async with world(*many) as env:
        await env.deploy(schedules=[*many, Schedule("new", every(3_600), tick)])
        assert len(await env.client.schedules.list()) == 31
        page = await env.client.schedules.list(after="s7", limit=2)
        assert [view.id for view in page] == ["s8", "s9"]


async def test_a_schedule_is_declared_once() -> None:
    with pytest.raises(DuplicateDefinition, match="two schedules are named 's'"):
        async with world(Schedule("s", every(60), tick), Schedule("s", every(70), tick)):
            pass
    with pytest.raises(InvalidSchedule, match="is not a Schedule"):
        async with world("s"):  # type: ignore[arg-type]  # what a user may do
            pass


async def test_a_declared_time_that_is_over_does_no_harm() -> None:
    async with world(Schedule("once", once(datetime(2020, 1, 1, tzinfo=UTC)), tick)) as env:
        await env.advance(60)
        assert begun == []
        assert (await env.client.schedules.get("once")).next_at is None


# -- made by clients


async def test_a_client_makes_changes_and_deletes_a_schedule() -> None:
    async with world() as env:
        schedules = env.client.schedules
        view = await schedules.create(Schedule("s", every(60), "tick", "a", tags={"k": "v"}, memo=[1], jitter=1))
        assert (view.id, view.workflow, view.arguments, view.tags, view.memo) == ("s", "tick", ["a"], {"k": "v"}, [1])
        assert view.next_at == datetime(2023, 11, 14, 22, 14, tzinfo=UTC)
        with pytest.raises(ScheduleExists, match="there is a schedule 's'"):
            await schedules.create(Schedule("s", every(60), tick))
        await env.advance(90)
        assert minutes() == [14]
        view = await schedules.update(Schedule("s", every(120), tick, overlap="allow"))
        assert (view.overlap, view.tags, view.jitter) == (Overlap.ALLOW, {}, 0)
        await env.advance(120)
        assert minutes() == [14, 16]
        await schedules.delete("s")
        await env.advance(600)
        assert minutes() == [14, 16]
        for verb in (schedules.get, schedules.delete, schedules.pause, schedules.resume, schedules.trigger):
            with pytest.raises(UnknownSchedule, match="no schedule 's'"):
                await verb("s")
        with pytest.raises(UnknownSchedule):
            await schedules.update(Schedule("s", every(60), tick))


async def test_a_schedule_without_a_slot_to_come_is_refused_and_nothing_is_written() -> None:
    async with world() as env:
        for schedule in (
            Schedule("s", once(datetime(2020, 1, 1, tzinfo=UTC)), tick),
            Schedule("s", every(60), tick, end_at=datetime(2020, 1, 1, tzinfo=UTC)),
        ):
            with pytest.raises(InvalidSchedule, match="no future slot"):
                await env.client.schedules.create(schedule)
        assert await env.client.schedules.list() == []


async def test_a_paused_schedule_rests_and_does_not_catch_up() -> None:
    async with world(Schedule("s", every(60), tick)) as env:
        await env.client.schedules.pause("s", "the books are closed")
        view = await env.client.schedules.get("s")
        assert (view.paused, view.reason, view.next_at) == (True, "the books are closed", None)
        await env.advance(600)
        assert begun == []
        await env.client.schedules.resume("s")
        await env.client.schedules.resume("s")
        await env.advance(60)
        assert minutes() == [24]
        view = await env.client.schedules.get("s")
        assert (view.paused, view.reason) == (False, "")


async def test_a_trigger_begins_a_run_now_also_while_it_is_paused_or_another_runs() -> None:
    async with world(Schedule("s", every(3_600), slow, 7_200)) as env:
        first = await env.client.schedules.trigger("s")
        assert first.id == "s:triggered-2023-11-14T22:13:20Z"
        assert (await env.client.schedules.get("s")).last_id == first.id
        await env.advance(1)
        second = await env.client.schedules.trigger("s")
        await env.client.schedules.pause("s")
        await env.advance(1)
        third = await env.client.schedules.trigger("s")
        await env.settle()
        assert [id for id, _ in begun] == [first.id, second.id, third.id]
        assert (await env.client.schedules.get("s")).last_id == first.id


async def test_a_triggered_run_counts_as_the_running_one() -> None:
    async with world(Schedule("s", every(60), slow, 90)) as env:
        await env.client.schedules.trigger("s")
        await env.advance(120)
        assert minutes() == [13, 15]


async def test_a_backfill_begins_the_slots_that_had_no_run() -> None:
    async with world(Schedule("s", cron("*/5 * * * *"), tick)) as env:
        await env.advance(600)
        assert minutes() == [15, 20]
        start = datetime(2023, 11, 14, 22, 0, tzinfo=UTC)
        new = await env.client.schedules.backfill("s", start, start + timedelta(minutes=20))
        assert new == [f"s:2023-11-14T22:{n}:00Z" for n in ("00", "05", "10")]
        assert await env.client.schedules.backfill("s", start, start + timedelta(minutes=20)) == []
        await env.settle()
        assert sorted(minutes()) == [0, 5, 10, 15, 20]
        with pytest.raises(InvalidSchedule, match="must be before"):
            await env.client.schedules.backfill("s", start, start)
        with pytest.raises(InvalidSchedule, match="more than 10,000 slots"):
            await env.client.schedules.backfill("s", start, start + timedelta(days=365))


async def test_slots_that_were_backfilled_ahead_do_not_run_again() -> None:
    async with world(Schedule("s", cron("*/5 * * * *"), tick)) as env:
        start = datetime(2023, 11, 14, 22, 15, tzinfo=UTC)
        assert len(await env.client.schedules.backfill("s", start, start + timedelta(minutes=10))) == 2
        await env.advance(20 * 60)
        assert minutes() == [15, 20, 25, 30]


async def test_next_times_are_those_of_the_calendar() -> None:
    async with world(Schedule("s", cron("30 2 * * *", zone="America/New_York"), tick)) as env:
        times = await env.client.schedules.next_times("s", 2)
        assert times == [datetime(2023, 11, day, 7, 30, tzinfo=UTC) for day in (15, 16)]


# -- robust


class CountingStore(MemoryStore):
    """Counts what is asked about schedules."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.asked = 0

    async def due_schedules(self, limit: int, after: tuple[int, str] | None = None) -> list[rows.DueSchedule]:
        self.asked += 1
        return await super().due_schedules(limit, after)

    async def schedule_at(self, after: int = -1) -> int | None:
        self.asked += 1
        return await super().schedule_at(after)


class Counting(Environment):
    def make_store(self, database: MemoryDatabase) -> CountingStore:
        return CountingStore(database)


async def test_where_there_are_no_schedules_nothing_is_asked() -> None:
    async with Counting(workflows=[tick], activities=[note]) as env:
        await env.run(tick, id="once:2020-01-01")
        await env.advance(86_400)
        assert isinstance(env.store, CountingStore)
        assert env.store.asked == 0


async def test_a_schedule_that_cannot_be_read_does_not_stop_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with Counting(workflows=[tick], activities=[note], schedules=[Schedule("s", every(60), tick)]) as env:
        assert isinstance(env.store, CountingStore)
        strange = rows.ScheduleRow(id="strange", spec='{"when":"tomorrow"}', next_at=await env.store.now())
        assert await env.store.put_schedule(strange)
        await env.advance(180)
        assert minutes() == [14, 15, 16]
        assert caplog.text.count("schedule 'strange' cannot be looked at") == 1
        with pytest.raises(InvalidSchedule, match="written by another version"):
            await env.client.schedules.get("strange")
        await env.client.schedules.update(Schedule("strange", every(60), tick))
        await env.client.schedules.delete("strange")
        assert env.store.asked < 1_000


async def test_many_schedules_that_cannot_be_read_do_not_hide_the_others(caplog: pytest.LogCaptureFixture) -> None:
    async with Counting(workflows=[tick], activities=[note], schedules=[Schedule("s", every(60), tick)]) as env:
        assert isinstance(env.store, CountingStore)
        for number in range(1_100):
            strange = rows.ScheduleRow(id=f"a{number}", spec='{"when":"tomorrow"}', next_at=await env.store.now())
            assert await env.store.put_schedule(strange)
        await env.advance(180)
        assert minutes() == [14, 15, 16]
        assert [(await env.store.get(id)).created_at // SECOND % 60 for id, _ in begun] == [0, 0, 0]
        assert caplog.text.count("cannot be looked at") == 1_100
        assert env.store.asked < 1_000


async def test_it_survives_a_crash_of_the_worker() -> None:
    async with world(Schedule("s", every(60), tick)) as env:
        for _ in range(5):
            await env.advance(60)
            await env.crash()
        assert minutes() == [14, 15, 16, 17, 18]


async def test_a_slot_is_begun_by_the_databases_clock_whatever_the_workers_says() -> None:
    async with world(Schedule("s", every(60), tick)) as env:
        await env.advance(60)
        run = await env.store.get(begun[0][0])
        assert run.created_at // SECOND == slot_of(run.id).timestamp()
