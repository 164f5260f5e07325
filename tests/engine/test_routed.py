"""Activities routed to another queue: another worker executes them, and the workflow does not notice."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import Any, ClassVar

import pytest

from batuta import (
    ActivityFailed,
    ActivityOptions,
    ActivityTimeout,
    CompleteLater,
    Handle,
    InvalidInput,
    Retry,
    RunCancelled,
    RunState,
    activity,
    activity_info,
    call,
    heartbeat,
    workflow,
)
from batuta.durations import human_duration
from batuta.engine.worker.worker import Worker
from batuta.errors import StoreUnavailable, UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import Entry
from batuta.journal.records import Run
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from tests.engine.kit import commands, world

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


class Refused(Exception):
    """Raised by the routed activity."""


@activity(queue="gpu", retry=Retry(attempts=3, first=10, factor=1, jitter=0))
async def render(scene: str, fails: int = 0, seconds: float = 0) -> str:
    seen.append(activity_info())
    if len(seen) <= fails:
        raise Refused(f"{scene} {len(seen)}")
    await asyncio.sleep(seconds)
    return f"{scene}.png"


@workflow
async def film(scene: str, fails: int = 0, seconds: float = 0) -> str:
    try:
        return await render(scene, fails, seconds)
    except Refused as error:
        return f"refused: {error}"


@asynccontextmanager
async def gpu(env: Environment, *activities: Any, **settings: Any) -> AsyncIterator[Worker]:
    """A worker that has these activities, no workflow, and another queue."""
    worker: Worker = env.client.worker(activities=activities, queues=["gpu"], **settings)  # type: ignore[assignment]  # of the native backend
    async with worker:
        yield worker


async def children(env: Environment) -> list[Any]:
    return (await env.client.list(kind="activity")).runs


# -- results


async def test_a_worker_of_the_other_queue_executes_it() -> None:  # covers B-04
    async with world(film) as env, gpu(env, render) as worker:
        handle = await env.start(film, "dawn", id="film-1")
        assert await handle.result() == "dawn.png"
        assert [str(line.kind) for line in await handle.journal()] == ["started", "activity_done"]
        assert await commands(handle) == ["activity render", "complete"]
        assert worker.session is not None
        (child,) = await children(env)
        assert (child.workflow, child.kind, child.queue, child.state) == (
            "render",
            "activity",
            "gpu",
            RunState.COMPLETED,
        )


async def test_a_routed_activity_has_the_same_key_as_a_local_one() -> None:
    async with world(film) as env, gpu(env, render):
        handle = await env.start(film, "dawn", 1)
        await handle.result()
        assert [one.key for one in seen] == [f"{handle.run_id}:1:render"] * 2
        assert [one.attempt for one in seen] == [1, 2]


async def test_retries_are_those_of_any_activity() -> None:
    async with world(film) as env, gpu(env, render):
        before = env.now
        handle = await env.start(film, "dawn", 2)
        assert await handle.result() == "dawn.png"
        assert timedelta(seconds=20) <= env.now - before < timedelta(seconds=21)
        answer = (await handle.journal())[-1].body
        assert (answer.attempts, answer.name) == (3, "render")
        assert answer.started_at / 1_000_000 == seen[-1].started_at.timestamp()
        seen.clear()
        assert await env.run(film, "dusk", 99) == "refused: dusk 3"


async def test_typed_arguments_and_results_pass() -> None:
    @activity(queue="gpu")
    def doubles(numbers: set[int], *, by: int = 2) -> dict[str, list[int]]:
        return {"doubled": sorted(number * by for number in numbers)}

    @workflow
    async def asks() -> list[int]:
        return (await doubles({3, 1, 2}, by=3))["doubled"]

    async with world(asks) as env, gpu(env, doubles):
        assert await env.run(asks) == [3, 6, 9]


async def test_arguments_that_do_not_fit_are_the_activitys_failure() -> None:
    @workflow
    async def asks() -> str:
        try:
            return str(await call("render", 1, 2, 3, 4, options=ActivityOptions(queue="gpu")))
        except InvalidInput as error:
            return str(error)

    async with world(asks) as env, gpu(env, render):
        assert "the input of activity 'render'" in await env.run(asks)


async def test_with_options_and_calls_by_name_are_routed() -> None:
    @activity
    async def where() -> str:
        return str(activity_info().ref.run_id)

    @workflow
    async def asks() -> list[str]:
        by_name = await call("where", result=str, options=ActivityOptions(queue="gpu"))
        return [by_name, await where.with_options(queue="gpu")(), await where(), await here()]

    here = where.with_options(queue="default")
    async with world(asks, where) as env, gpu(env, where):
        handle = await env.start(asks)
        found = await handle.result()
        assert found[2:] == [str(handle.run_id)] * 2
        assert set(found[:2]) == {str(child.run_id) for child in await children(env)}


async def test_a_routed_activity_sees_the_run_that_called_it() -> None:
    @activity
    async def here() -> None:
        seen.append(activity_info())

    @workflow
    async def calls() -> None:
        await here()
        await here.with_options(queue="gpu")()

    async with world(calls, here) as env, gpu(env, here):
        handle = await env.start(calls, id="a")
        await handle.result()
        assert [(one.id, one.run_id, one.seq) for one in seen] == [("a", handle.run_id, seq) for seq in (1, 2)]
        assert [one.key for one in seen] == [f"{handle.run_id}:{seq}:here" for seq in (1, 2)]


async def test_many_at_once_come_back_in_their_places() -> None:
    @workflow
    async def all_of_it(count: int) -> list[str]:
        return list(await asyncio.gather(*(render(str(number)) for number in range(count))))

    async with world(all_of_it) as env, gpu(env, render):
        assert await env.run(all_of_it, 200) == [f"{number}.png" for number in range(200)]


# -- waiting


async def test_while_it_is_elsewhere_its_run_needs_no_memory() -> None:
    async with world(film) as env, gpu(env, render):
        handle = await env.start(film, "dawn", 0, 7200.0)
        await env.advance(100)
        assert env.worker.session is not None
        assert not env.worker.session.runs
        assert await handle.result() == "dawn.png"


async def test_it_waits_for_a_worker_visibly() -> None:
    async with world(film) as env:
        handle = await env.start(film, "dawn")
        await env.advance(100)
        (child,) = await children(env)
        assert child.state is RunState.PENDING
        found = await (await env.client.get(child.id)).describe()
        assert found.reason == "no live worker serves queue 'gpu'"
        async with gpu(env, render.with_options()):
            assert await handle.result() == "dawn.png"


async def test_a_worker_of_the_queue_that_lacks_it_is_named() -> None:
    @activity
    async def other() -> None: ...

    async with world(film) as env, gpu(env, other):
        handle = await env.start(film, "dawn")
        await env.advance(10)
        (child,) = await children(env)
        found = await (await env.client.get(child.id)).describe()
        assert "activity 'render' is not known here (known: other)" in found.reason
        await handle.terminate()


@pytest.mark.parametrize("limit", [10, 7200], ids=["in memory", "evicted"])
async def test_a_call_that_is_not_taken_in_time_fails(limit: float) -> None:
    @workflow
    async def hurries() -> str:
        try:
            return await render.with_options(start_timeout=limit)("dawn")
        except ActivityTimeout as error:
            return f"{error.kind}: {error}"

    async with world(hurries) as env:
        before = env.now
        said = await env.run(hurries)
        assert said == f"start: activity 'render' did not start within {human_duration(limit)} (queue 'gpu')"
        assert timedelta(0) <= env.now - before - timedelta(seconds=limit) < timedelta(seconds=0.1)
        (child,) = await children(env)
        assert child.state is RunState.TIMED_OUT


async def test_a_routed_activity_taken_in_time_may_finish() -> None:
    @workflow
    async def hurries() -> str:
        return await render.with_options(start_timeout=10)("dawn", 0, 3600.0)

    async with world(hurries) as env, gpu(env, render):
        assert await env.run(hurries) == "dawn.png"


async def test_a_wait_for_a_place_at_the_other_worker_counts_from_the_call() -> None:
    @workflow
    async def crowds() -> list[str]:
        async def one(**options: Any) -> str:
            try:
                return await render.with_options(retry=Retry(attempts=1), **options)("dawn", 0, 60.0)
            except ActivityTimeout as error:
                return error.kind

        return list(await asyncio.gather(one(), one(start_timeout=10)))

    async with world(crowds) as env, gpu(env, render, max_activities=1):
        before = env.now
        assert await env.run(crowds) == ["dawn.png", "start"]
        assert env.now - before < timedelta(seconds=61)


async def test_all_of_its_time_may_be_over_before_anybody_takes_it() -> None:
    @workflow
    async def hurries() -> str:
        try:
            return await render.with_options(total_timeout=3600)("dawn")
        except ActivityTimeout as error:
            return error.kind

    async with world(hurries) as env:
        before = env.now
        assert await env.run(hurries) == "total"
        assert timedelta(0) <= env.now - before - timedelta(seconds=3600) < timedelta(seconds=0.1)


async def test_timeouts_of_attempts_and_heartbeats_are_kept_there() -> None:
    @activity(queue="gpu", retry=Retry(attempts=2, first=1), heartbeat=5)
    async def falls_silent() -> str:
        seen.append(activity_info().details)
        heartbeat(len(seen))
        await asyncio.sleep(3600)
        return "?"

    @workflow
    async def asks() -> list[str]:
        said = []
        for options in ({}, {"timeout": 3}):
            try:
                await falls_silent.with_options(**options)()
            except ActivityTimeout as error:
                said.append(error.kind)
        return said

    async with world(asks) as env, gpu(env, falls_silent):
        assert await env.run(asks) == ["heartbeat", "attempt"]
        assert seen == [None, 1, None, 3]


# -- ending


@activity(queue="gpu", retry=Retry(attempts=1))
async def endless() -> None:
    seen.append("began")
    try:
        await asyncio.sleep(86_400)
    except asyncio.CancelledError:
        seen.append("cancelled")
        raise


@workflow
async def impatient() -> str:
    try:
        async with asyncio.timeout(5):
            await endless()
    except TimeoutError:
        pass
    return "went on"


async def test_a_cancelled_run_cancels_it_there() -> None:
    @workflow
    async def waits() -> None:
        await endless()

    async with world(waits) as env, gpu(env, endless):
        handle = await env.start(waits)
        await env.advance(5)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()
        await env.settle()
        assert seen == ["began", "cancelled"]
        assert [child.state for child in await children(env)] == [RunState.CANCELLED]


async def test_a_cancelled_call_cancels_it_there_and_the_run_goes_on() -> None:
    async with world(impatient) as env, gpu(env, endless):
        assert await env.run(impatient) == "went on"
        await env.settle()
        assert seen == ["began", "cancelled"]


async def test_a_call_cancelled_before_anybody_took_it_is_never_executed() -> None:
    async with world(impatient) as env:
        assert await env.run(impatient) == "went on"
        async with gpu(env, endless):
            await env.advance(5)
            assert [child.state for child in await children(env)] == [RunState.CANCELLED]
        assert seen == []


@pytest.mark.parametrize("how", ["terminate", "cancel"])
async def test_a_routed_activity_that_an_operator_ended_counts_as_failed(how: str) -> None:
    @workflow
    async def waits() -> str:
        try:
            await endless()
        except ActivityFailed as error:
            return str(error)
        return "?"

    async with world(waits) as env, gpu(env, endless):
        handle = await env.start(waits)
        await env.advance(5)
        (child,) = await children(env)
        operator: Handle[Any] = await env.client.get(child.id)
        await (operator.terminate("by hand") if how == "terminate" else operator.cancel("by hand"))
        assert f"run '{child.id}'" in await handle.result()


async def test_a_run_that_ends_without_waiting_for_it_cancels_it() -> None:
    @workflow
    async def leaves() -> str:
        task = asyncio.create_task(endless())
        await asyncio.sleep(5)
        assert not task.done()
        return "left"

    async with world(leaves) as env, gpu(env, endless):
        assert await env.run(leaves) == "left"
        await env.settle()
        assert seen == ["began", "cancelled"]


# -- mishaps


async def test_a_crash_of_the_caller_does_not_repeat_it() -> None:
    async with world(film) as env, gpu(env, render):
        handle = await env.start(film, "dawn", 0, 100.0)
        await env.advance(10)
        await env.crash()
        await env.advance(10)
        await env.crash()
        assert await handle.result() == "dawn.png"
        assert len(seen) == 1


async def test_a_crash_of_the_executing_worker_repeats_it_elsewhere_under_the_same_key() -> None:
    async with world(film) as env, gpu(env, render) as first:
        handle = await env.start(film, "dawn", 0, 100.0)
        await env.advance(10)
        assert first.session is not None
        session = first.session
        session.abandon()
        await session.abandoned()
        first.session = None
        await env.store.retire(session.info.worker_id)
        async with gpu(env, render):
            assert await handle.result() == "dawn.png"
        assert len({one.key for one in seen}) == 1
        assert len(seen) == 2


async def test_it_can_be_completed_from_outside() -> None:
    @activity(queue="gpu")
    async def asks() -> int:
        seen.append(activity_info().token)
        raise CompleteLater

    @workflow
    async def waits() -> int:
        return await asks()

    async with world(waits) as env, gpu(env, asks):
        handle = await env.start(waits)
        await env.advance(100)
        await env.client.complete(seen[0], 42)
        assert await handle.result() == 42


async def test_a_call_that_was_at_home_stays_there_when_the_code_sends_it_elsewhere_and_the_other_way_round() -> None:
    def version(queue: str | None) -> Any:
        @activity(name="step", retry=Retry(attempts=1))
        async def step() -> str:
            seen.append(queue)
            await asyncio.sleep(50)
            return str(activity_info().ref.run_id)

        @workflow(name="flow")
        async def flow() -> str:
            return await step.with_options(queue=queue)()

        return flow, step

    home, elsewhere = version(None), version("gpu")
    async with world(*home) as env, gpu(env, elsewhere[1]):
        at_home = await env.start(home[0], id="a")
        await env.advance(1)
        await env.crash()
        await env.deploy(workflows=[elsewhere[0]], activities=[elsewhere[1]], grace=0.001)
        sent_away = await env.start(elsewhere[0], id="b")
        assert await at_home.result() == str(at_home.run_id)
        await env.deploy(workflows=[home[0]], activities=[home[1]], grace=0.001)
        assert await sent_away.result() == str((await children(env))[0].run_id)


# -- lists


async def test_lists_show_workflows_unless_asked_for_more() -> None:
    async with world(film) as env, gpu(env, render):
        await env.run(film, "dawn", id="film-1")
        assert [run.id for run in (await env.client.list()).runs] == ["film-1"]
        assert await env.client.count() == 1
        assert await env.client.count(kind="activity") == 1
        assert {run.kind for run in (await env.client.list(kind="any")).runs} == {"workflow", "activity"}
        with pytest.raises(InvalidInput, match="kind='things'"):
            await env.client.list(kind="things")


@pytest.mark.parametrize("bad", ["", " \n", "x" * 201, 5, ["gpu"]])
def test_a_queue_that_cannot_be_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput, match="queue"):
        activity(queue=bad)


class Forgetful(MemoryStore):
    """Cannot be asked, at first, what became of a run: it is away, or what was written is not to be seen yet."""

    faults: ClassVar[list[Exception]] = []

    async def outcome(self, run_id: RunId) -> tuple[Run, Entry | None]:
        if self.faults:
            raise self.faults.pop(0)
        return await super().outcome(run_id)


class ForgetfulEnvironment(Environment):
    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        return Forgetful(database)


@pytest.mark.parametrize("fault", [StoreUnavailable("away"), UnknownRun("nobody")], ids=["away", "not yet there"])
async def test_a_call_that_is_not_taken_fails_also_when_the_store_was_away(fault: Exception) -> None:
    @workflow
    async def hurries() -> str:
        try:
            return await render.with_options(start_timeout=7200)("dawn")
        except ActivityTimeout as error:
            return error.kind

    Forgetful.faults = [fault]
    async with ForgetfulEnvironment(workflows=[hurries]) as env:
        handle = await env.start(hurries)
        async with asyncio.timeout(8000):
            assert await handle.result() == "start"
