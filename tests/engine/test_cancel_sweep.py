"""A cancel at every moment of a run's life: acknowledged means delivered once, or closed by it before it began; also
when the worker dies right then."""

import asyncio
from contextlib import suppress
from typing import Any

import pytest

from batuta import (
    Retry,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunState,
    Signal,
    Workflow,
    activity,
    continue_as_new,
    failpoints,
    job,
    run_child,
    workflow,
)
from batuta.ids import RunId
from batuta.journal.entries import EntryKind, decode_body
from batuta.journal.records import Message, MessageKind, RunFilter
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.kit import replay_all
from tests.engine.moments import Moment, begin
from tests.long import some_of

go = Signal("go")


@activity
async def act(number: int) -> int:
    await asyncio.sleep(1)
    return number


@job
async def deliver() -> None:
    await asyncio.sleep(1)


@workflow
async def cleans_up() -> str:
    """Leaves memory, works, sleeps; undoes what it did when it is cancelled."""
    try:
        await go.wait()
        await act(1)
        await asyncio.sleep(100)
        await act(2)
        return "done"
    finally:
        await act(3)


@workflow
async def ends_at_once() -> str:
    return "done"


@workflow
async def continues(left: int = 2) -> str:
    await act(left)
    if left:
        continue_as_new(left - 1)
    return "done"


@workflow
async def fails(attempt: int = 1) -> str:
    await act(attempt)
    raise ValueError("again")


@workflow
async def is_shielded() -> str:
    """Takes no notice for a while."""
    task = asyncio.create_task(_slowly())
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await task
        raise


async def _slowly() -> str:
    await act(1)
    await act(2)
    return "done"


@workflow
async def has_a_child() -> str:
    return await run_child(continues, 1, id="the child")


FAILS = Retry(attempts=3, first=50.0)
WORKFLOWS: list[Workflow[..., Any]] = [cleans_up, ends_at_once, continues, fails, is_shielded, has_a_child]


def the_cancel(run_id: RunId) -> Message:
    return Message(message_id=f"cancel:{run_id}", kind=MessageKind.CANCEL, name="enough")


async def live(workflow: Any, options: dict[str, Any], at: int, action: str) -> Moment:
    """One life, with a cancel at one moment of it. Returns the moment."""
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with Environment(workflows=WORKFLOWS, activities=[act], jobs=[deliver]) as env:
        moment = Moment(env, at, action, the_cancel)
        failpoints.armed = moment  # type: ignore[assignment]  # it has what is asked of it
        try:
            handle = await begin(env, workflow, moment, **options)
            moment.run_id = handle.run_id
            await env.advance(200)
            if workflow is cleans_up:
                with suppress(RunClosed):  # it was cancelled before
                    await handle.signal(go, message_id="1")
            await moment.recovered()
            try:
                result = await handle.result()
            except (RunCancelled, RunFailed) as error:
                result = type(error).__name__
            await moment.recovered()
        finally:
            failpoints.arm()
        await check_delivered(env, moment, result)
        report = await verify(env.store, WORKFLOWS)
        assert not report.violations, (moment.where, report)
        await replay_all(env.store, {one.name: one for one in WORKFLOWS})
        return moment


async def check_delivered(env: Environment, moment: Moment, result: str) -> None:
    chain = [run for run in (await env.store.list_runs(RunFilter(), None, 100)).runs if run.id == "one"]
    heard = [
        decode_body(entry).message_id
        for run in chain
        for entry in await env.store.journal(run.run_id)
        if entry.kind in (EntryKind.CANCEL_REQUESTED, EntryKind.CANCELLED)
    ]
    assert heard == ([f"cancel:{moment.run_id}"] if moment.acknowledged else []), (moment.where, result)
    if moment.acknowledged:
        assert result == "RunCancelled", moment.where
        [last] = [run for run in chain if run.state is not RunState.CONTINUED]
        assert last.state is RunState.CANCELLED, moment.where


@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["live", "fail", "kill"])
@pytest.mark.parametrize(
    ("workflow", "options"),
    [
        (cleans_up, {}),
        (ends_at_once, {"delay": 100.0}),
        (continues, {}),
        (fails, {"retry": FAILS}),
        (is_shielded, {}),
        (has_a_child, {"delay": 100.0}),
        (deliver, {"delay": 100.0}),
    ],
    ids=lambda each: getattr(each, "name", ""),
)
async def test_a_cancel_at_every_passage_is_delivered_once_if_it_was_acknowledged(
    workflow: Any, options: dict[str, Any], action: str
) -> None:
    calm = await live(workflow, options, 0, action)
    moments = [await live(workflow, options, at, action) for at in some_of(calm.sites)]
    assert len(moments) > 5
    assert all(moment.where for moment in moments)
    assert any(moment.acknowledged for moment in moments)
