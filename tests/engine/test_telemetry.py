"""Events: of everything that is durable, of nothing else, and in the fields of the table."""

import asyncio
import logging
from collections import Counter
from time import monotonic
from typing import Any, ClassVar

import pytest

from batuta import LogContext, Middleware, Retry, RunFailed, Signal, Update, activity, job, logger, run_child, workflow
from batuta.errors import BadData, StoreUnavailable
from batuta.telemetry import (
    EVENTS,
    ActivityCompleted,
    ActivityFailed,
    ActivityRetried,
    BatchWritten,
    ChildClosed,
    Event,
    LetterArrived,
    MessageReceived,
    RunClosed,
    RunEvent,
    RunParked,
    RunReleased,
    RunStarted,
    WorkerLost,
    WorkerStarted,
    WorkerStopped,
)
from batuta.testing import Environment
from tests.engine.arena import Arena, until
from tests.engine.kit import jobs, world


class Ears(Middleware):
    def __init__(self) -> None:
        self.heard: list[Any] = []

    def event(self, event: Event) -> None:
        self.heard.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        return [one for one in self.heard if type(one) is kind]

    def names(self) -> list[str]:
        return [one.event for one in self.heard if isinstance(one, RunEvent)]


hello = Signal("hello", str)
rename = Update("rename", str)


@activity
async def fine(number: int) -> int:
    await asyncio.sleep(2)
    return number


@activity(retry=Retry(attempts=2, first=10.0, jitter=0))
async def bad() -> None:
    await asyncio.sleep(3)
    raise ValueError("no good")


@job(retry=Retry(attempts=1))
async def broken(name: str) -> None:
    raise LookupError(name)


@job
async def letter(name: str) -> str:
    return f"dear {name}"


@workflow
async def child() -> int:
    return await fine(5)


@workflow
async def lives() -> str:
    await fine(1)
    await run_child(child)
    await asyncio.sleep(60)
    return await hello.wait()


@workflow
async def fails() -> None:
    await bad()


async def test_the_life_of_a_run_is_told_in_order() -> None:
    ears = Ears()
    async with world(lives, child, fine, middleware=[ears]) as env:
        handle = await env.start(lives, id="one")
        await env.advance(100)
        await handle.signal(hello, "there")
        assert await handle.result() == "there"
        mine: list[Any] = [one for one in ears.heard if isinstance(one, RunEvent) and one.run.id == "one"]
    told = [one.event for one in mine]
    assert [name for name in told if name != "run.released"] == [
        "run.started",
        "activity.started",
        "activity.completed",
        "child.closed",
        "timer.fired",
        "message.received",
        "run.closed",
    ]
    started, closed = mine[0], mine[-1]
    assert (started.run.name, started.run.kind, started.run.queue, started.run.namespace) == (
        "lives",
        "workflow",
        "default",
        "default",
    )
    assert started.run.run_id == handle.run_id
    assert started.attempt == 1
    assert started.wait is None
    assert (closed.state, closed.error, closed.message) == ("completed", "", "")
    assert closed.seconds == pytest.approx(100, abs=0.01)
    assert closed.entries == len(await handle.journal())
    completed = ears.of(ActivityCompleted)[0]
    assert (completed.activity, completed.seq, completed.attempt) == ("fine", 1, 1)
    assert completed.seconds == pytest.approx(2, abs=0.01)
    assert ears.of(MessageReceived)[0].fields()["about"] == "hello"


async def test_a_run_that_leaves_memory_or_waits_in_its_queue_is_told() -> None:
    ears = Ears()
    async with world(lives, child, fine, middleware=[ears]) as env:
        handle = await env.client.start(lives, delay=20)
        await env.advance(200)
        await handle.signal(hello, "there")
        await handle.result()
    assert ears.of(RunStarted)[0].wait == pytest.approx(20, abs=1)
    assert [one.wake_at for one in ears.of(RunReleased)][-1] is None
    assert any(one.wake_at is not None for one in ears.of(RunReleased))


async def test_attempts_that_fail_are_told_and_so_is_the_end() -> None:
    ears = Ears()
    async with world(fails, bad, middleware=[ears]) as env:
        with pytest.raises(RunFailed):
            await env.run(fails)
    retried, failed, closed = ears.of(ActivityRetried)[0], ears.of(ActivityFailed)[0], ears.of(RunClosed)[0]
    assert (retried.activity, retried.attempt, retried.error, retried.message) == ("bad", 1, "ValueError", "no good")
    assert retried.next_at - retried.at == pytest.approx(10, abs=0.1)
    assert retried.seconds == pytest.approx(3, abs=0.1)
    assert (failed.activity, failed.attempt, failed.error) == ("bad", 2, "ValueError")
    assert (closed.state, closed.error, closed.message) == ("failed", "ValueError", "no good")
    assert [one.fields()["reason"] for one in ears.of(LetterArrived)] == ["exhausted"]


async def test_jobs_are_told_like_runs_of_one_activity() -> None:
    ears = Ears()
    async with jobs(letter, broken, middleware=[ears]) as env:
        await env.enqueue_many([letter.call(str(number)) for number in range(3)])
        handle = await env.enqueue(broken, "key")
        with pytest.raises(RunFailed):
            await handle.result()
        await env.settle()
    counts = Counter(one.event for one in ears.heard if isinstance(one, RunEvent))
    assert counts["run.started"] == counts["run.closed"] == 4
    assert counts["activity.completed"] == 3
    assert counts["activity.failed"] == 1
    assert {one.run.kind for one in ears.of(RunClosed)} == {"job"}
    assert Counter(one.state for one in ears.of(RunClosed)) == {"completed": 3, "failed": 1}
    assert ears.of(LetterArrived)[0].run.id == handle.id


async def test_an_attempt_is_named_though_its_run_leaves_memory_until_the_next() -> None:
    @job(retry=Retry(attempts=2, first=3600, jitter=0))
    async def stumbles() -> None:
        raise LookupError("no")

    ears = Ears()
    async with jobs(stumbles, middleware=[ears]) as env:
        await env.enqueue(stumbles)
        await env.advance(7200)
    assert [(one.activity, one.attempt, one.error) for one in ears.of(ActivityRetried)] == [
        ("stumbles", 1, "LookupError")
    ]
    assert ears.of(RunReleased)
    assert ears.of(RunClosed)[0].state == "failed"


async def test_the_next_attempt_begins_when_the_failure_of_the_last_is_durable(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    @activity(retry=Retry(attempts=2, first=0.1, jitter=0))
    async def stumbles() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise LookupError("no")
        return 3

    @workflow
    async def one() -> int:
        return await stumbles()

    tries: list[int] = []
    ears, gate = Ears(), asyncio.Event()
    async with world(one, stumbles, middleware=[ears]) as env:
        real = env.store.commit

        async def slowly(worker_id: str, changes: Any) -> Any:
            if any(change.attempts for change in changes):
                await gate.wait()
            return await real(worker_id, changes)

        monkeypatch.setattr(env.store, "commit", slowly)
        handle = await env.start(one)
        await env.advance(5)
        assert len(tries) == 1
        gate.set()
        assert await handle.result() == 3
    assert [one.activity for one in ears.of(ActivityRetried)] == ["stumbles"]


async def test_each_answer_of_one_turn_after_another_is_told_as_its_own() -> None:
    @activity
    async def other(number: int) -> int:
        return number

    @workflow
    async def several() -> list[int]:
        return await asyncio.gather(*(each(number) for number in range(3) for each in (fine, other)))

    ears = Ears()
    async with world(several, fine, other, middleware=[ears]) as env:
        handle = await env.start(several)
        await env.advance(10)
        assert await handle.result() == [0, 0, 1, 1, 2, 2]
        written = [line.body for line in await handle.journal() if line.kind == "activity_done"]
    told = [(one.activity, one.seq, one.attempt) for one in ears.of(ActivityCompleted)]
    assert told == [(body.name, body.seq, body.attempts) for body in written]
    assert len(told) == 6


async def test_a_job_that_is_done_at_its_second_attempt_tells_that_one() -> None:
    @job(retry=Retry(attempts=2, first=0.1, jitter=0))
    async def stumbles() -> None:
        tries.append(1)
        if len(tries) == 1:
            raise LookupError("no")

    tries: list[int] = []
    ears = Ears()
    async with jobs(stumbles, middleware=[ears]) as env:
        handle = await env.enqueue(stumbles)
        await env.advance(5)
        await handle.result()
    assert [(one.activity, one.seq, one.attempt) for one in ears.of(ActivityCompleted)] == [("stumbles", 1, 2)]
    assert [(one.activity, one.attempt) for one in ears.of(ActivityRetried)] == [("stumbles", 1)]


async def test_telemetry_never_reports_an_undurable_step(monkeypatch: pytest.MonkeyPatch) -> None:
    ears = Ears()
    async with Environment(workflows=[child], activities=[fine], middleware=[ears]) as env:
        handle = await env.start(child)
        await env.settle()
        real = env.store.commit
        monkeypatch.setattr(env.store, "commit", _away)
        await asyncio.sleep(5)
        assert [one.event for one in ears.heard if isinstance(one, RunEvent)] == ["run.started", "activity.started"]
        monkeypatch.setattr(env.store, "commit", real)
        await handle.result()
    assert ears.names() == ["run.started", "activity.started", "activity.completed", "run.closed"]


async def _away(*_: Any) -> Any:
    raise StoreUnavailable("away")


async def test_each_event_is_told_once_though_the_worker_dies() -> None:
    ears = Ears()
    async with world(lives, child, fine, middleware=[ears]) as env:
        handle = await env.start(lives, id="one")
        await env.settle()
        await env.crash()
        await env.advance(100)
        await handle.signal(hello, "there")
        await handle.result()
    mine = Counter(one.event for one in ears.heard if isinstance(one, RunEvent) and one.run.id == "one")
    assert mine["run.started"] == mine["run.closed"] == mine["timer.fired"] == mine["activity.completed"] == 1


async def test_a_parked_run_is_told() -> None:
    @workflow(name="changes")
    async def before() -> None:
        await asyncio.sleep(100)
        await fine(1)

    @workflow(name="changes")
    async def after() -> None:
        await fine(1)

    ears = Ears()
    async with Environment(workflows=[before], activities=[fine], middleware=[ears]) as env:
        await env.start(before)
        await env.settle()
        await env.deploy(workflows=[after])
        await env.advance(200)
        assert [one.state for one in ears.of(RunParked)] == ["needs_code"]


async def test_a_run_whose_journal_cannot_be_read_is_told_as_parked() -> None:
    ears = Ears()
    async with Environment(workflows=[lives, child], activities=[fine], middleware=[ears]) as env:
        handle = await env.start(lives)
        await env.settle()
        store: Any = env.store
        store._tables.rows[handle.run_id].journal.pop()
        await env.crash()
        await env.settle()
        assert [one.run.id for one in ears.of(RunParked)] == [handle.id]
        assert "restore a backup" in ears.of(RunParked)[0].reason


async def test_a_job_whose_journal_cannot_be_read_is_told_as_parked() -> None:
    @job(retry=Retry(attempts=2, first=100.0, jitter=0))
    async def waits_long() -> None:
        raise LookupError("no")

    ears = Ears()
    async with Environment(jobs=[waits_long], middleware=[ears]) as env:
        handle = await env.enqueue(waits_long)
        await env.settle()
        store: Any = env.store
        store._tables.rows[handle.run_id].journal.pop()
        await env.advance(200)
        assert [one.run.id for one in ears.of(RunParked)] == [handle.id]


async def test_a_run_whose_entry_the_database_refuses_is_told_as_parked(monkeypatch: pytest.MonkeyPatch) -> None:
    ears = Ears()
    async with Environment(workflows=[child], activities=[fine], middleware=[ears]) as env:
        real = env.store.commit

        async def refuses(worker_id: str, changes: Any) -> Any:
            if any(entry.ord == 1 for change in changes for entry in change.entries):
                raise BadData("not that one")
            return await real(worker_id, changes)

        monkeypatch.setattr(env.store, "commit", refuses)
        handle = await env.start(child)
        await env.advance(5)
        assert (await handle.describe()).state == "needs_code"
    assert ears.names() == ["run.started", "activity.started", "run.parked"]
    assert "not that one" in ears.of(RunParked)[0].reason


async def test_a_paused_run_is_told_as_parked() -> None:
    ears = Ears()
    async with world(lives, child, fine, middleware=[ears]) as env:
        handle = await env.start(lives)
        await env.settle()
        await handle.pause("a look")
        await env.advance(100)
        await handle.resume()
        await handle.signal(hello, "there")
        assert await handle.result() == "there"
    assert [one.state for one in ears.of(RunParked)] == ["paused"]


async def test_workers_and_batches_are_told() -> None:
    ears = Ears()
    async with Environment(workflows=[child], activities=[fine], middleware=[ears]) as env:
        await env.run(child)
        session = env.worker.session
        assert session is not None
        session._lost("a test")
        await env.settle()
    assert [type(one) for one in ears.heard if isinstance(one, WorkerStarted | WorkerLost | WorkerStopped)] == [
        WorkerStarted,
        WorkerLost,
        WorkerStarted,
        WorkerStopped,
    ]
    assert ears.of(WorkerLost)[0].fields()["reason"] == "a test"
    assert sum(one.entries for one in ears.of(BatchWritten)) == 2
    assert ears.of(WorkerStarted)[0].worker.worker != ears.of(WorkerStarted)[1].worker.worker


async def test_a_listener_hears_what_it_asks_for_alone() -> None:
    class Few(Ears):
        events: ClassVar[Any] = (RunClosed,)

    few = Few()
    async with world(lives, child, fine, middleware=[few]) as env:
        await env.run(child)
    assert few.names() == ["run.closed"]


@pytest.mark.parametrize("error", [RuntimeError("broken"), asyncio.CancelledError()])
async def test_errors_of_a_listener_are_contained(caplog: Any, error: BaseException) -> None:
    class Breaks(Middleware):
        def event(self, event: Event) -> None:
            raise error

    ears = Ears()
    async with world(child, fine, middleware=[Breaks(), ears]) as env:
        assert await env.run(child) == 5
    assert ears.names() == ["run.started", "activity.started", "activity.completed", "run.closed"]
    assert "middleware failed on the event run.closed" in caplog.text


async def test_updates_cancels_and_children_that_fail_are_told() -> None:
    @workflow
    async def parent() -> str:
        async def renamed(name: str) -> str:
            return name

        rename.handle(renamed)
        try:
            await run_child(fails)
        except Exception:  # noqa: BLE001 - whatever it is
            await asyncio.sleep(1000)
        return ""

    ears = Ears()
    async with world(parent, fails, bad, middleware=[ears]) as env:
        handle = await env.start(parent)
        assert await handle.update(rename, "eve") == "eve"
        await env.advance(100)
        await handle.cancel("enough")
        await env.settle()
    assert [(one.message, one.about) for one in ears.of(MessageReceived)] == [
        ("update", "rename"),
        ("cancel", "enough"),
    ]
    assert [one.error for one in ears.of(ChildClosed)] == ["ChildFailed"] or [
        one.error for one in ears.of(ChildClosed)
    ] == ["RunFailed"]
    assert ears.of(RunClosed)[-1].state == "cancelled"


def test_names_of_events_are_unique_and_plain_values_come_of_them() -> None:
    assert len({one.event for one in EVENTS}) == len(EVENTS)
    assert all("." in one.event for one in EVENTS)


async def test_events_are_the_same_on_every_store(arena: Arena) -> None:
    ears = Ears()
    client = await arena.client()
    await arena.worker(client, quick, quickly, letter, middleware=[ears])
    await (await client.start(quick)).result()
    await (await client.enqueue(letter, "ada")).result()
    assert sorted(ears.names()) == sorted(["run.started", "activity.started", "activity.completed", "run.closed"] * 2)


TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"


async def test_an_end_from_outside_is_told_by_who_brought_it_about(arena: Arena) -> None:
    theirs, mine = Ears(), Ears()
    client = await arena.client(mine)
    other = await arena.client()
    terminated = await client.start(naps, headers={"traceparent": TRACE})
    cancelled = await client.start(naps, headers={"traceparent": TRACE})
    bulk = await client.start(naps, id="bulk-1")
    expired = await other.enqueue(letter, "ada", expires=0.01)
    expires_at = monotonic() + 0.01
    await terminated.terminate("enough")
    await cancelled.cancel("not needed")
    await client.select(id_prefix="bulk-").terminate("all of them")
    ends = {one.run.id: one for one in mine.of(RunClosed)}
    assert {id: (one.state, one.message) for id, one in ends.items()} == {
        terminated.id: ("terminated", "enough"),
        cancelled.id: ("cancelled", "not needed"),
        bulk.id: ("terminated", "all of them"),
    }
    assert {one.run.kind for one in ends.values()} == {"workflow"}
    assert [ends[one.id].run.trace for one in (terminated, cancelled)] == [TRACE, TRACE]
    assert ends[bulk.id].run.trace.split("-")[1] == bulk.run_id.hex
    assert ends[terminated.id].seconds == 0.0
    await until(lambda: _is_past(expires_at))
    worker = await arena.worker(other, naps, letter, middleware=[theirs])
    await until(lambda: _are(theirs, expired.id))
    begun = await other.start(naps)
    await until(lambda: _begun(theirs, begun.id))
    late = await other.start(naps, timeout=0.2)
    await until(lambda: _are(theirs, late.id))
    reset = await client.get(begun.id)
    await reset.reset(to=0, reason="once more")
    await worker.stop()
    assert Counter(one.run.id for one in theirs.of(RunClosed)) == {expired.id: 1, late.id: 1}
    assert {one.state for one in theirs.of(RunClosed)} == {"timed_out"}
    assert [(one.run.id, one.state) for one in mine.of(RunClosed)][3:] == [(begun.id, "terminated")]


async def _is_past(moment: float) -> bool:
    return monotonic() > moment


async def _are(ears: Ears, id: str) -> bool:
    return any(one.run.id == id for one in ears.of(RunClosed))


async def _begun(ears: Ears, id: str) -> bool:
    return any(one.run.id == id for one in ears.of(RunStarted))


@workflow
async def naps() -> None:
    await asyncio.sleep(3600)


@activity
async def quickly() -> int:
    return 1


@workflow
async def quick() -> int:
    return await quickly()


async def test_log_records_say_which_run_they_belong_to() -> None:
    records: list[logging.LogRecord] = []

    class Keeps(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            records.append(record)

    mine, handler = logging.getLogger("shop"), Keeps()
    handler.addFilter(LogContext())
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"

    @activity
    async def says() -> None:
        mine.warning("in the activity")

    @workflow
    async def speaks() -> None:
        await says()
        logger.warning("in the workflow")

    theirs = logging.getLogger("batuta.workflow")
    for one in (mine, theirs):
        one.addHandler(handler)
    try:
        async with world(speaks, says) as env:
            handle = await env.client.start(speaks, id="one", headers={"traceparent": trace})
            await handle.result()
        mine.warning("elsewhere")
    finally:
        for one in (mine, theirs):
            one.removeHandler(handler)
    found = [{name: getattr(one, name) for name in ("run", "activity", "workflow", "trace_id")} for one in records]
    trace_id = trace.split("-")[1]
    assert found == [
        {"run": "one", "activity": "says", "workflow": "", "trace_id": trace_id},
        {"run": "one", "activity": "", "workflow": "speaks", "trace_id": trace_id},
        {"run": "", "activity": "", "workflow": "", "trace_id": ""},
    ]
