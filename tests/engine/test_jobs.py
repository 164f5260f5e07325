"""Plain jobs: enqueued, executed, tried again, cancelled; on the memory store, in virtual time."""

import asyncio
import threading
from datetime import timedelta
from typing import Any, cast

import pytest
from msgspec import Raw

from batuta import (
    ActivityTimeout,
    CompleteLater,
    Job,
    JobCall,
    NonRetryable,
    Retry,
    RunCancelled,
    RunFailed,
    RunState,
    RunTerminated,
    RunTimedOut,
    activity_info,
    batch_info,
    heartbeat,
    job,
    workflow,
)
from batuta.errors import NotSerialisable
from batuta.journal.entries import EntryKind
from batuta.journal.states import CLAIMABLE
from batuta.testing import Environment
from batuta.verify.recorded_journals import export_run, replay_exported
from tests.engine.kit import jobs

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


FAST = Retry(attempts=3, first=10, factor=1, jitter=0)


class Refused(Exception):
    """Raised by jobs of these tests."""


@job(retry=FAST)
async def send(to: str, fails: int = 0, seconds: float = 0) -> str:
    seen.append(to)
    if len(seen) <= fails:
        raise Refused(f"{to} {len(seen)}")
    await asyncio.sleep(seconds)
    return f"sent to {to}"


@job(retry=FAST)
def compute(n: int, fails: int = 0) -> int:
    seen.append(threading.current_thread())
    if len(seen) <= fails:
        raise Refused(str(n))
    return n * 2


# -- a job's way


async def test_a_job_is_executed_and_gives_its_result() -> None:  # covers B-11
    async with jobs(send) as env:
        handle = await env.client.enqueue(send, "ana")
        assert await handle.result() == "sent to ana"
        found = await handle.describe()
        assert (found.kind, found.workflow, found.state) == ("job", "send", RunState.COMPLETED)


async def test_a_job_that_was_claimed_is_written_once_at_its_end() -> None:
    async with jobs(send) as env:
        batch = await env.client.enqueue_many([send.call("ana")])
        assert await batch[0].result() == "sent to ana"
        kinds = [line.kind for line in await batch[0].journal()]
        assert kinds == [EntryKind.STARTED, EntryKind.ACTIVITY_DONE]
        assert set(await env.store.epochs(batch[0].run_id)) == {1}


async def test_a_sync_job_runs_in_a_thread() -> None:
    async with jobs(compute) as env:
        assert await (await env.client.enqueue(compute, 21)).result() == 42
        assert seen[0] is not threading.main_thread()


async def test_a_job_can_be_enqueued_by_its_name() -> None:
    async with jobs(send) as env:
        assert await (await env.client.enqueue("send", "ana")).result() == "sent to ana"
        [named] = await env.client.enqueue_many([JobCall("send", to="bo")])
        assert await named.result() == "sent to bo"


async def test_a_call_carries_arguments_by_name_and_options() -> None:
    async with jobs(send) as env:
        call = send.call(to="ana").with_options(id="letter-1", tags={"kind": "letter"})
        assert await (await env.client.enqueue(call, priority=3)).result() == "sent to ana"
        found = await (await env.client.get("letter-1", send)).describe()
        assert (found.tags, found.priority) == ({"kind": "letter"}, 3)


async def test_awaited_in_a_workflow_a_job_is_a_step() -> None:
    @workflow
    async def letters() -> str:
        return await send("ana")

    async with Environment(workflows=[letters], jobs=[send]) as env:
        assert await env.run(letters) == "sent to ana"
        assert await env.client.count(kind="job") == 0


async def test_a_method_of_an_instance_is_a_job() -> None:
    class Gateway:
        def __init__(self, name: str) -> None:
            self.name = name

        @job
        async def call(self, what: str) -> str:
            return f"{self.name}: {what}"

    assert isinstance(Gateway.call, Job)
    async with jobs(Gateway("mail")) as env:
        assert await (await env.client.enqueue(Gateway.call, "hello")).result() == "mail: hello"


async def test_with_options_gives_another_job_of_the_same_name() -> None:
    slow = send.with_options(queue="slow")
    assert isinstance(slow, Job)
    async with jobs(send, queues=["slow"]) as env:
        handle = await env.client.enqueue(slow, "ana")
        assert await handle.result() == "sent to ana"
        assert (await handle.describe()).queue == "slow"


async def test_a_result_that_is_not_kept_is_null() -> None:
    @job(result=False)
    async def forget() -> int:
        return 5

    async with jobs(forget) as env:
        owned = await env.client.enqueue(forget)
        [claimed] = await env.client.enqueue_many([forget.call()])
        for handle in (await env.client.get(owned.id), await env.client.get(claimed.id)):
            assert await handle.result() is None
            assert bytes(cast(Raw, (await handle.journal())[-1].body.value)) == b"null"


async def test_a_result_that_does_not_fit_fails_the_job() -> None:
    @job
    async def wrong() -> int:
        return "five"  # type: ignore[return-value]  # that is what is tested

    async with jobs(wrong) as env:
        [handle] = await env.client.enqueue_many([wrong.call()])
        with pytest.raises(RunFailed, match="the result of"):
            await handle.result()
        assert len(await handle.attempts()) == 1


# -- when it fails


@pytest.mark.parametrize("owned", [True, False])
async def test_a_job_is_tried_again_and_every_attempt_is_kept(owned: bool) -> None:
    async with jobs(send) as env:
        handle = (
            await env.client.enqueue(send, "ana", 2)
            if owned
            else (await env.client.enqueue_many([send.call("ana", 2)]))[0]
        )
        assert await handle.result() == "sent to ana"
        attempts = await handle.attempts()
        assert [attempt.number for attempt in attempts] == [1, 2, 3]
        assert [attempt.error is not None for attempt in attempts] == [True, True, False]
        assert all(attempt.started_at and attempt.ended_at for attempt in attempts)


@pytest.mark.parametrize("owned", [True, False])
async def test_the_last_failed_attempt_is_kept_too(owned: bool) -> None:
    async with jobs(compute) as env:
        call = compute.call(1, fails=9)
        handle = await env.client.enqueue(call) if owned else (await env.client.enqueue_many([call]))[0]
        with pytest.raises(RunFailed) as caught:
            await handle.result()
        assert isinstance(caught.value.__cause__, Refused)
        attempts = await handle.attempts()
        assert [attempt.number for attempt in attempts] == [1, 2, 3]
        assert all(attempt.error is not None and "Refused" in attempt.error for attempt in attempts)


async def test_an_error_that_is_final_is_not_tried_again() -> None:
    @job
    async def hopeless() -> None:
        seen.append(1)
        raise NonRetryable("no")

    async with jobs(hopeless) as env:
        [handle] = await env.client.enqueue_many([hopeless.call()])
        with pytest.raises(RunFailed):
            await handle.result()
        assert seen == [1]
        assert len(await handle.attempts()) == 1


async def test_enqueue_may_say_how_to_retry() -> None:
    async with jobs(send) as env:
        handle = await env.client.enqueue(send, "ana", 1, retry=Retry(attempts=1))
        with pytest.raises(RunFailed):
            await handle.result()
        [other] = await env.client.enqueue_many([send.call("ana", 2).with_options(retry=Retry(attempts=1))])
        with pytest.raises(RunFailed):
            await other.result()


async def test_an_attempt_over_its_time_fails() -> None:
    async with jobs(send) as env:
        call = send.call("ana", seconds=100).with_options(timeout=5, retry=Retry(attempts=2, first=1))
        [handle] = await env.client.enqueue_many([call])
        with pytest.raises(RunFailed) as caught:
            await handle.result()
        assert isinstance(caught.value.__cause__, ActivityTimeout)
        assert len(await handle.attempts()) == 2


async def test_a_silent_attempt_fails() -> None:
    @job(heartbeat=2, retry=Retry(attempts=2, first=1))
    async def silent() -> str:
        seen.append(1)
        if len(seen) == 1:
            await asyncio.sleep(100)
        for _ in range(5):
            heartbeat()
            await asyncio.sleep(1)
        return "spoke"

    async with jobs(silent) as env:
        [handle] = await env.client.enqueue_many([silent.call()])
        assert await handle.result() == "spoke"


async def test_a_job_that_waits_for_its_next_attempt_leaves_memory() -> None:
    patient = send.with_options(retry=Retry(attempts=2, first=3600, longest=3600, jitter=0))
    async with jobs(patient) as env:
        [handle] = await env.client.enqueue_many([patient.call("ana", 1)])
        await env.advance(60)
        assert env.worker.session is not None
        assert not env.worker.session.runs
        assert (await handle.describe()).state is RunState.WAITING
        await env.advance(3600)
        assert await handle.result() == "sent to ana"


# -- when


async def test_a_delayed_job_begins_when_its_time_has_come() -> None:
    async with jobs(send) as env:
        handle = await env.client.enqueue(send, "ana", delay=60)
        await env.advance(59)
        assert seen == []
        await env.advance(2)
        assert await handle.result() == "sent to ana"


async def test_a_job_begins_at_a_time() -> None:
    async with jobs(send) as env:
        at = env.now + timedelta(hours=1)
        handle = await env.client.enqueue(send, "ana", at=at)
        past = await env.client.enqueue(send, "bo", at=env.now - timedelta(hours=1))
        assert await past.result() == "sent to bo"
        await env.advance(3599)
        assert seen == ["bo"]
        await env.advance(2)
        assert await handle.result() == "sent to ana"


async def test_higher_priority_goes_first() -> None:
    async with jobs(queues=["other"]) as env:
        await env.client.enqueue_many([send.call(str(n)).with_options(priority=n) for n in (1, 3, 2)])
        async with env.client.worker(jobs=[send]):
            await env.settle()
        assert seen == ["3", "2", "1"]


async def test_a_job_that_did_not_begin_in_time_expires() -> None:
    async with jobs(queues=["other"]) as env:
        handle = await env.client.enqueue(send, "ana", expires=60)
        await env.advance(61)
        async with env.client.worker(jobs=[send]):
            with pytest.raises(RunTimedOut):
                await handle.result()
        assert seen == []


# -- unique, debounce


@pytest.mark.parametrize("queue", ["default", "nobody's"])
async def test_a_job_expires_in_a_queue_without_workers(queue: str) -> None:
    async with jobs(send) as env:
        await env.client.pause_queue("default")
        handle = await env.client.enqueue(send, "ana", expires=60, queue=queue)
        await env.advance(59)
        assert (await handle.describe()).state is RunState.PENDING
        await env.advance(2)
        assert (await handle.describe()).state is RunState.TIMED_OUT
        assert env.worker.session is not None
        assert env.worker.session._poller.claims_begun < 10


async def test_a_job_does_not_expire_before_it_may_begin() -> None:
    async with jobs(send) as env:
        later = await env.client.enqueue(send, "ana", delay=60, expires=10)
        timed = await env.client.enqueue(send, "bo", at=env.now + timedelta(seconds=60), expires=10)
        calm = await env.client.enqueue(send, "cy", unique="cy", debounce=60, expires=10)
        await env.advance(65)
        assert [await one.result() for one in (later, timed, calm)] == ["sent to ana", "sent to bo", "sent to cy"]


async def test_a_callback_does_not_expire_while_its_batch_goes_on() -> None:
    @job(expires=10)
    async def report() -> int:
        return (await batch_info()).total

    async with jobs(send, report) as env:
        batch = await env.client.enqueue_many([send.call("ana").with_options(delay=60)], on_done=report.call())
        await env.advance(65)
        assert batch.done is not None
        assert await batch.done.result() == 1


async def test_of_unique_jobs_one_waits_at_a_time() -> None:
    async with jobs(send) as env:
        first = await env.client.enqueue(send, "ana", unique="a", delay=5)
        second = await env.client.enqueue(send, "bo", unique="a")
        assert first.run_id == second.run_id
        assert first.id == "send:a"
        assert await second.result() == "sent to ana"
        third = await env.client.enqueue(send, "bo", unique="a")
        assert third.run_id != first.run_id
        assert await third.result() == "sent to bo"


@job(name="send:bulk")
async def send_bulk(to: str) -> str:
    return f"sent to {to} and others"


async def test_a_unique_key_of_one_job_is_not_taken_by_another_job() -> None:
    async with Environment(jobs=[send, send_bulk]) as env:
        await env.client.enqueue(send, "ana", unique="bulk:42", delay=5)
        bulk = await env.client.enqueue(send_bulk, "bo", unique="42", delay=5)
        assert await bulk.result() == "sent to bo and others"
        await env.client.enqueue(send, "ana", unique="bulk:42", debounce=5)
        bulk = await env.client.enqueue(send_bulk, "bo", unique="42", debounce=5)
        assert await bulk.result() == "sent to bo and others"


async def test_a_job_can_be_unique_for_a_while() -> None:
    async with jobs(send) as env:
        first = await env.client.enqueue(send, "ana", unique="a", unique_for=100)
        await first.result()
        again = await env.client.enqueue(send, "bo", unique="a", unique_for=100)
        assert again.run_id == first.run_id
        await env.advance(101)
        later = await env.client.enqueue(send, "bo", unique="a", unique_for=100)
        assert later.run_id != first.run_id


async def test_of_debounced_jobs_the_last_one_wins() -> None:
    async with jobs(send) as env:
        handles = []
        for name in ("ana", "bo", "cy"):
            handles.append(await env.client.enqueue(send, name, unique="a", debounce=10))
            await env.advance(6)
        await env.advance(5)
        assert seen == ["cy"]
        assert len({handle.run_id for handle in handles}) == 1
        assert await handles[0].result() == "sent to cy"


# -- batches


async def test_thousands_of_jobs_are_enqueued_in_one_call() -> None:
    @job(result=False)
    async def count(n: int) -> None:
        seen.append(n)

    async with jobs(count) as env:
        batch = await env.client.enqueue_many(count.call(n) for n in range(2_000))
        await asyncio.gather(*(handle.result() for handle in batch))
        assert len(seen) == 2_000
        assert len(set(seen)) == 2_000


async def test_a_callback_is_told_what_became_of_its_batch() -> None:
    @job
    async def report(title: str) -> list[Any]:
        found = await batch_info()
        return [title, found.total, found.completed, found.failed, found.not_completed, found.ok]

    async with jobs(send, report) as env:
        calls = [send.call(f"{n}") for n in range(5)]
        calls += [send.call("ana", 99).with_options(retry=Retry(attempts=1), id="bad", delay=10)]
        batch = await env.client.enqueue_many(calls, on_done=report.call("letters"))
        assert batch.done is not None
        await env.advance(5)
        assert (await batch.done.describe()).state is RunState.PENDING
        assert await batch.done.result() == ["letters", 6, 5, 1, ["bad"], False]


async def test_the_callback_of_an_empty_batch_is_called() -> None:
    @job
    def report() -> int:
        return batch_info.sync().total

    async with jobs(report) as env:
        batch = await env.client.enqueue_many([], on_done=report.call())
        assert batch == []
        assert batch.done is not None
        assert await batch.done.result() == 0
        alone = await env.client.enqueue(report, retry=Retry(attempts=1))
        with pytest.raises(RunFailed, match="no batch has called"):
            await alone.result()


async def test_an_argument_that_cannot_be_written_leaves_nothing_of_its_batch() -> None:
    async with jobs(send) as env:
        with pytest.raises(NotSerialisable, match=r"call 1 of the batch"):
            await env.client.enqueue_many([send.call("ana"), JobCall("send", object()), send.call("bo")])
        assert await env.client.count(kind="job") == 0


# -- ending


@pytest.mark.parametrize("sync", [True, False])
async def test_a_running_job_can_be_cancelled(sync: bool) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    @job
    async def wait() -> None:
        begun.set()
        await asyncio.sleep(1000)

    @job(name="wait")
    def wait_in_thread() -> None:
        loop.call_soon_threadsafe(begun.set)
        while True:
            heartbeat()

    async with jobs(wait_in_thread if sync else wait) as env:
        [handle] = await env.client.enqueue_many([wait.call()])
        await begun.wait()
        await handle.cancel("not needed")
        with pytest.raises(RunCancelled):
            await handle.result()


async def test_a_waiting_job_can_be_cancelled_and_never_begins() -> None:
    async with jobs(send) as env:
        handle = await env.client.enqueue(send, "ana", delay=1000)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()
        assert seen == []


async def test_a_job_that_waits_for_its_next_attempt_can_be_cancelled() -> None:
    async with jobs(send) as env:
        [handle] = await env.client.enqueue_many([send.call("ana", 1)])
        await env.advance(1)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()
        assert seen == ["ana"]


async def test_a_running_job_can_be_terminated() -> None:
    async with jobs(send) as env:
        [handle] = await env.client.enqueue_many([send.call("ana", seconds=100)])
        await env.advance(0.1)
        await handle.terminate("enough")
        with pytest.raises(RunTerminated, match="enough"):
            await handle.result()


async def test_a_signal_to_a_job_does_not_stop_it() -> None:
    async with jobs(send) as env:
        [handle] = await env.client.enqueue_many([send.call("ana", seconds=0.5)])
        await env.advance(0.1)
        await handle.signal("hello")
        assert await handle.result() == "sent to ana"


async def test_a_worker_that_stops_lets_its_jobs_finish() -> None:
    async with jobs(queues=["other"]) as env:
        worker = env.client.worker(jobs=[send])
        async with worker:
            [handle] = await env.client.enqueue_many([send.call("ana", seconds=5)])
            await env.advance(1)
        assert (await handle.describe()).state is RunState.COMPLETED


async def test_a_worker_that_stops_hands_back_jobs_that_have_not_begun() -> None:
    one = send.with_options()
    one.limit = 1
    async with jobs(queues=["other"]) as env:
        async with env.client.worker(jobs=[one]):
            batch = await env.client.enqueue_many([one.call("ana", seconds=5), one.call("bo")])
            await env.advance(1)
        assert (await batch[0].describe()).state is RunState.COMPLETED
        assert (await batch[1].describe()).state in CLAIMABLE  # waiting, when it is always rebuilt from its journal
        async with env.client.worker(jobs=[send]):
            assert await batch[1].result() == "sent to bo"


async def test_a_job_can_be_completed_from_outside() -> None:
    @job
    async def ask() -> str:
        seen.append(activity_info().token)
        raise CompleteLater

    async with jobs(ask) as env:
        [handle] = await env.client.enqueue_many([ask.call()])
        await env.advance(100)
        await env.client.complete(seen[0], "yes")
        assert await handle.result() == "yes"


# -- crashes


async def test_a_job_whose_worker_dies_is_executed_again() -> None:
    async with jobs(send) as env:
        [handle] = await env.client.enqueue_many([send.call("ana", seconds=0.5)])
        await env.advance(0.1)
        await env.crash()
        assert await handle.result() == "sent to ana"
        assert seen == ["ana", "ana"]
        assert [attempt.number for attempt in await handle.attempts()] == [1]


async def test_failed_attempts_are_counted_over_crashes() -> None:
    async with jobs(send) as env:
        [handle] = await env.client.enqueue_many([send.call("ana", 99)])
        await env.advance(5)
        await env.crash()
        with pytest.raises(RunFailed):
            await handle.result()
        assert len(seen) == 3


async def test_a_job_that_is_done_once_is_not_begun_again() -> None:
    careful = send.with_options(once=True)
    async with jobs(careful) as env:
        [handle] = await env.client.enqueue_many([careful.call("ana", seconds=50)])
        await env.advance(1)
        await env.crash()
        with pytest.raises(RunFailed, match="Interrupted"):
            await handle.result()
        assert seen == ["ana"]


# -- looking


async def test_jobs_are_listed_and_counted() -> None:
    @workflow
    async def nothing() -> None:
        pass

    async with Environment(workflows=[nothing], jobs=[send, compute]) as env:
        await env.run(nothing)
        await (await env.client.enqueue(send, "ana", key="acme", tags={"a": "b"})).result()
        await (await env.client.enqueue(compute, 1)).result()
        assert await env.client.count(kind="job") == 2
        assert await env.client.count(job=send) == 1
        assert await env.client.count(job="send", key="acme", tags={"a": "b"}) == 1
        assert await env.client.count() == 1
        assert [run.workflow for run in (await env.client.list(kind="job")).runs] == ["compute", "send"]


async def test_a_job_without_a_worker_says_so() -> None:
    async with jobs(compute) as env:
        handle = await env.client.enqueue(send, "ana")
        assert "no live worker of this queue has job 'send' (they have: compute)" in (await handle.describe()).reason
        other = await env.client.enqueue(send, "ana", queue="nowhere")
        assert "no live worker serves queue 'nowhere'" in (await other.describe()).reason


async def test_a_journal_of_a_job_is_replayed_without_its_code() -> None:
    async with jobs(send) as env:
        batch = await env.client.enqueue_many([send.call("ana"), send.call("bo", 99)])
        await env.advance(100)
        for handle in batch:
            exported = await export_run(env.store, handle.run_id)
            assert (await replay_exported({}, exported)).verdict == "ok"
        assert [run.state for run in (await env.client.list(kind="job")).runs] == [RunState.FAILED, RunState.COMPLETED]
