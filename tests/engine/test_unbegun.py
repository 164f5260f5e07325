"""Jobs that are cancelled before anybody has begun them."""

import pytest

from batuta import RunCancelled, RunClosed, RunState, batch_info, job
from batuta.errors import StoreUnavailable
from tests.engine.kit import jobs

seen: list[str] = []


@pytest.fixture(autouse=True)
def _nothing_seen() -> None:
    seen.clear()


@job
async def send(to: str) -> str:
    seen.append(to)
    return f"sent to {to}"


async def test_a_job_that_nobody_has_begun_is_cancelled_at_once_whatever_holds_it() -> None:
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
