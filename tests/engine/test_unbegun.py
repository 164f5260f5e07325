"""Runs that are cancelled before anybody has begun them."""

import asyncio
from typing import Any

import pytest

from batuta import (
    Retry,
    RunCancelled,
    RunClosed,
    RunState,
    Signal,
    activity,
    batch_info,
    continue_as_new,
    job,
    run_child,
    workflow,
)
from batuta.errors import StoreUnavailable
from batuta.journal.records import Message, MessageKind
from batuta.verify import verify
from tests.engine.kit import jobs, world

seen: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@job
async def send(to: str) -> str:
    seen.append(to)
    return f"sent to {to}"


async def test_a_job_that_has_not_begun_is_cancelled_at_once_whatever_holds_it() -> None:
    async with jobs(send) as env:
        await env.client.pause_queue("default")
        one, two, three = [await env.client.enqueue(send, name) for name in ("ana", "bob", "eve")]
        await two.pause("look at it first")
        await env.settle()
        assert await one.cancel("not needed")
        assert await two.cancel("nor that")
        counts = await env.client.select(kind="job").cancel("nothing at all")
        assert (counts.matched, counts.done) == (1, 1)
        for handle, reason in ((one, "not needed"), (two, "nor that"), (three, "nothing at all")):
            with pytest.raises(RunCancelled, match=reason):
                await handle.result(5)
            assert [line.kind for line in await handle.journal()] == ["cancelled"]
            with pytest.raises(RunClosed):
                await handle.cancel()
        await env.client.resume_queue("default")
        await env.settle()
        assert seen == []
        await one.retry()
        assert await (await env.client.get(one.id)).result() == "sent to ana"


async def test_a_batch_is_done_when_a_member_was_cancelled_in_a_paused_queue() -> None:
    @job
    async def report() -> list[int]:
        found = await batch_info()
        return [found.total, found.completed, found.cancelled]

    async with jobs(send, report) as env:
        await env.client.pause_queue("default")
        batch = await env.client.enqueue_many([send.call("ana"), send.call("bob")], on_done=report.call())
        await batch[0].cancel()
        await env.client.resume_queue("default")
        assert batch.done is not None
        assert await batch.done.result() == [2, 1, 1]


async def test_a_cancel_that_came_half_way_is_brought_to_its_end_by_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    async with jobs(send) as env:
        await env.client.pause_queue("default")
        run = await env.client.enqueue(send, "ana")
        with monkeypatch.context() as away:
            away.setattr(env.store, "end_unbegun", _away)
            with pytest.raises(StoreUnavailable):
                await run.cancel("not needed")
        assert (await run.describe()).state is RunState.PENDING
        assert not await run.cancel("still not needed")
        assert (await run.describe()).state is RunState.CANCELLED


async def _away(*_: object) -> None:
    raise StoreUnavailable("away")


# -- workflows

stop = Signal("stop")


@activity
async def note(text: str) -> None:
    seen.append(text)


@workflow
async def never_waits() -> str:
    seen.append("ran")
    return "done"


@workflow
async def cleans_up() -> None:
    try:
        await note("begun")
    finally:
        await note("cleaned up")


@workflow
async def fails() -> None:
    await note("tried")
    raise ValueError("again")


@workflow
async def goes_on(last: bool = False) -> None:
    try:
        await asyncio.sleep(5)  # in memory
        if not last:
            continue_as_new(True)
    except asyncio.CancelledError:
        await note("cleaned up")
        raise


@workflow
async def parent(child: str) -> None:
    await run_child(WORKFLOWS[child], id="child", delay=3600)


WORKFLOWS: dict[str, Any] = {"never_waits": never_waits, "cleans_up": cleans_up}


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("name", WORKFLOWS)
async def test_a_delayed_workflow_is_cancelled_without_running(name: str, stopped: bool) -> None:
    async with world(*WORKFLOWS.values(), note) as env:
        if stopped:
            await env.worker.stop()
        handle = await env.start(WORKFLOWS[name], delay=3600)
        assert await handle.cancel("not needed")
        assert (await handle.describe()).state is RunState.CANCELLED
        with pytest.raises(RunCancelled, match="not needed"):
            await handle.result(5)
        assert [line.kind for line in await handle.journal()] == ["cancelled"]
        with pytest.raises(RunClosed):
            await handle.cancel()
        await env.advance(4000)
        assert seen == []


@pytest.mark.parametrize("late", [False, True])
@pytest.mark.parametrize("always_replay", [False, True])
@pytest.mark.parametrize("name", WORKFLOWS)
async def test_a_worker_that_finds_start_and_cancel_together_runs_nothing(
    name: str, always_replay: bool, late: bool
) -> None:
    """The one who cancelled died before the run was closed, or a signal was in the way."""
    async with world(*WORKFLOWS.values(), note, always_replay=always_replay) as env:
        options: dict[str, Any] = {} if late else {"signal": (stop, None)}
        handle = await env.start(WORKFLOWS[name], delay=3600, **options)
        message = Message(message_id=f"cancel:{handle.run_id}", kind=MessageKind.CANCEL, name="not needed")
        await env.store.send(handle.run_id, message)
        if late:
            await handle.signal(stop)
        with pytest.raises(RunCancelled):
            await handle.result(5)
        assert [str(line.kind) for line in await handle.journal()] == ["started", "signal", "cancel_requested"]
        assert seen == []
        assert not (await verify(env.store, list(WORKFLOWS.values()))).violations
        await handle.retry()
        await (await env.client.get(handle.id)).result()
        assert seen


@pytest.mark.parametrize("name", WORKFLOWS)
async def test_a_child_that_waits_for_its_time_ends_with_its_parent_without_running(name: str) -> None:
    async with world(*WORKFLOWS.values(), parent, note) as env:
        handle = await env.start(parent, name)
        await env.settle()
        await handle.cancel("not needed")
        with pytest.raises(RunCancelled):
            await handle.result(5)
        await env.settle()
        assert (await (await env.client.get("child")).describe()).state is RunState.CANCELLED
        assert seen == []


async def test_a_run_that_waits_for_its_next_try_is_cancelled_without_trying() -> None:
    async with world(fails, note) as env:
        handle = await env.start(fails, retry=Retry(attempts=3, first=3600.0))
        await env.settle()
        assert seen == ["tried"]
        assert await handle.cancel("enough")
        with pytest.raises(RunCancelled):
            await handle.result(5)
        assert seen == ["tried"]


async def test_a_run_that_goes_on_for_another_cleans_up_when_it_is_cancelled_before_it_begins() -> None:
    async with world(goes_on, note) as env:
        handle = await env.start(goes_on)
        await env.client.pause_queue("default")
        await env.advance(6)
        assert await handle.cancel("enough")
        assert (await handle.describe()).state is RunState.PENDING
        await env.client.resume_queue("default")
        with pytest.raises(RunCancelled):
            await handle.result(5)
        assert seen == ["cleaned up"]
