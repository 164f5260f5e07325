"""What a job says while it runs: checkpoints and progress."""

import asyncio
import inspect
import threading
from typing import Any

import pytest
from msgspec import Struct

from batuta import (
    ActivityCancelled,
    JobCall,
    Retry,
    RunCancelled,
    RunFailed,
    batch_info,
    checkpoint,
    job,
    last_checkpoint,
    progress,
    workflow,
)
from batuta.bus import publish
from batuta.errors import InvalidInput, LostAttempt, WorkerError
from batuta.testing import Environment
from tests.engine import crunch
from tests.engine.arena import Arena
from tests.engine.kit import jobs

seen: list[Any] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


class Refused(Exception):
    """Raised by jobs of these tests."""


class Position(Struct):
    row: int


async def test_a_job_goes_on_from_its_checkpoint_after_a_crash() -> None:  # covers B-12
    @job
    async def copy(rows: int) -> int:
        last = last_checkpoint(Position)
        for row in range(last.row if last is not None else 0, rows):
            seen.append(row)
            await checkpoint(Position(row + 1))
            await asyncio.sleep(0.1)
        return rows

    async with jobs(copy) as env:
        [handle] = await env.client.enqueue_many([copy.call(10)])
        await env.advance(0.45)
        before = list(seen)
        await env.crash()
        assert await handle.result() == 10
        assert before == [0, 1, 2, 3, 4]
        assert seen == list(range(10))


async def test_a_thread_saves_checkpoints_too() -> None:
    @job(retry=Retry(attempts=2, first=1))
    def copy() -> int:
        at = last_checkpoint(int, 0)
        seen.append(at)
        if not at:
            checkpoint.sync(7)
            raise Refused("after the checkpoint")
        return at

    async with jobs(copy) as env:
        [handle] = await env.client.enqueue_many([copy.call()])
        assert await handle.result() == 7
        assert seen == [0, 7]


async def test_an_activity_of_a_workflow_saves_checkpoints_too() -> None:
    @job(retry=Retry(attempts=2, first=1))
    async def copy() -> int:
        at = last_checkpoint(int, 0)
        progress(at)
        if not at:
            await checkpoint(7)
            raise Refused("after the checkpoint")
        return at

    @workflow
    async def copying() -> int:
        return await copy()

    async with Environment(workflows=[copying], jobs=[copy]) as env:
        handle = await env.start(copying)
        assert await handle.result() == 7
        assert await handle.progress() is None


async def test_a_cancelled_job_is_told_at_its_next_checkpoint() -> None:
    told = threading.Event()

    @job
    def work() -> None:
        seen.append(1)
        try:
            for n in range(1_000_000):
                checkpoint.sync(n)
        except (ActivityCancelled, LostAttempt):
            told.set()

    async with jobs(work) as env:
        [handle] = await env.client.enqueue_many([work.call()])
        while not seen:
            await asyncio.sleep(0)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result()
        assert await asyncio.to_thread(told.wait, 20)


async def test_an_error_in_a_thread_has_no_other_error_behind_it() -> None:
    chain: list[BaseException] = []

    @job
    def work() -> None:
        try:
            checkpoint.sync(object())
        except InvalidInput as error:
            behind: BaseException | None = error
            while behind is not None:
                chain.append(behind)
                behind = behind.__context__

    async with jobs(work) as env:
        [handle] = await env.client.enqueue_many([work.call()])
        await handle.result()
    assert chain
    assert RuntimeError not in map(type, chain)  # "no running event loop"


async def test_a_checkpoint_is_asked_for_as_its_place_needs() -> None:
    @job
    def in_thread() -> None:
        checkpoint(1)

    @job
    async def on_loop() -> None:
        checkpoint.sync(1)

    async with jobs(in_thread, on_loop) as env:
        for each, instead in ((in_thread, r"checkpoint\.sync"), (on_loop, "await checkpoint")):
            call: JobCall[None] = each.call()
            handle = await env.client.enqueue(call, retry=Retry(attempts=1))
            with pytest.raises(RunFailed, match=instead):
                await handle.result()


def test_what_is_asked_of_an_attempt_shows_its_parameters() -> None:
    assert list(inspect.signature(checkpoint).parameters) == ["state"]
    assert list(inspect.signature(publish).parameters) == ["topic", "payload", "key", "id", "type"]
    assert not inspect.signature(batch_info).parameters


async def test_outside_a_job_there_is_nothing_to_save() -> None:
    for asked in (lambda: checkpoint(1), lambda: progress(1), last_checkpoint, batch_info):
        with pytest.raises(WorkerError, match="outside an activity"):
            asked()


async def test_progress_is_seen_while_the_job_runs_and_at_its_end() -> None:
    @job
    async def walk() -> None:
        for n in range(5):
            progress({"step": n})
            await asyncio.sleep(1)

    async with jobs(walk) as env:
        [handle] = await env.client.enqueue_many([walk.call()])
        assert await handle.progress(default="nothing") == "nothing"
        await env.advance(2.5)
        assert await handle.progress() == {"step": 1}
        await handle.result()
        assert await handle.progress() == {"step": 4}


async def test_quick_progress_goes_with_the_result() -> None:
    @job
    async def quick() -> None:
        progress(1)
        progress(2)

    async with jobs(quick) as env:
        [handle] = await env.client.enqueue_many([quick.call()])
        await handle.result()
        assert await handle.progress() == 2


async def test_a_process_saves_checkpoints_and_knows_its_batch(arena: Arena) -> None:
    client = await arena.client()
    batch = await client.enqueue_many([crunch.copies_rows.call()], on_done=crunch.sums_up.call())
    await arena.worker(client, crunch.copies_rows, crunch.sums_up)
    assert await batch[0].result(30) == 7
    assert await batch[0].progress() == "half"
    assert batch.done is not None
    assert await batch.done.result(30) == [1, 1]
