"""A signal at every moment of a run's life: acknowledged means delivered once, also when the worker dies right then."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from batuta import Signal, activity, continue_as_new, failpoints, workflow
from batuta.journal.entries import EntryKind, decode_body
from batuta.journal.records import Message, MessageKind, RunFilter
from batuta.testing import Environment
from tests.engine.kit import replay_all
from tests.engine.moments import Moment, begin
from tests.long import some_of

note = Signal("note", int)
go = Signal("go")


@activity
async def act(number: int) -> int:
    await asyncio.sleep(1)
    return number


@workflow
async def handles() -> list[int]:
    """Leaves memory twice, works once, and has seen all that it was sent when it ends."""
    seen: list[int] = []
    note.handle(seen.append)
    await go.wait()
    await act(1)
    await asyncio.sleep(100)
    await go.wait()
    return seen


@workflow
async def continues(left: int = 2) -> list[int]:
    """Leaves the notes alone until its last run."""
    await go.wait()
    if left:
        await act(left)
        continue_as_new(left - 1)
    seen = []
    while True:
        try:
            seen.append(await note.wait(timeout=10))
        except TimeoutError:
            return seen


def the_note(at: int) -> Message:
    return Message(message_id="the note", kind=MessageKind.SIGNAL, name="note", body=str(at))


async def live(workflow: Any, times: int, at: int, action: str) -> Moment:
    """One life, with a note at one moment of it. Returns the moment."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    async with Environment(workflows=[workflow], activities=[act]) as env:
        moment = Moment(env, at, action, lambda _: the_note(at))
        failpoints.armed = moment  # type: ignore[assignment]  # it has what is asked of it
        try:
            handle = await begin(env, workflow, moment)
            moment.run_id = handle.run_id
            for number in range(times):
                await env.advance(200)
                await handle.signal(go, message_id=str(number))
            await moment.recovered()
            result = await handle.result()
            await moment.recovered()
        finally:
            failpoints.arm()
        if workflow is handles:
            assert result == ([at] if moment.acknowledged else []), moment.where
        await check_delivered(env, moment)
        await replay_all(env.store, {workflow.name: workflow})
        return moment


async def check_delivered(env: Environment, moment: Moment) -> None:
    counted = Counter[str]()
    for run in (await env.store.list_runs(RunFilter(), None, 100)).runs:
        for entry in await env.store.journal(run.run_id):
            if entry.kind is EntryKind.SIGNAL:
                counted[decode_body(entry).message_id] += 1
    assert counted.pop("the note", 0) == (1 if moment.acknowledged else 0), moment.where
    assert max(counted.values()) == 1, moment.where


@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["live", "fail", "kill"])
@pytest.mark.parametrize(("workflow", "times"), [(handles, 2), (continues, 3)], ids=["handles", "continues"])
async def test_a_signal_at_every_passage_is_delivered_once_if_it_was_acknowledged(
    workflow: Any, times: int, action: str
) -> None:
    calm = await live(workflow, times, 0, action)
    assert len(calm.sites) > 30
    moments = [await live(workflow, times, at, action) for at in some_of(calm.sites)]
    assert all(moment.where for moment in moments)
    sites = {moment.where for moment in moments}
    assert {"evict.before", "evict.after", "claim.after", "claim.loaded", "commit.before", "close.durable"} <= sites
    assert sum(moment.acknowledged for moment in moments) > len(moments) // 2
