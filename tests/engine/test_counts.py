"""Limits on counts: tags, published values, messages that wait."""

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from batuta import (
    InvalidInput,
    QuotaExceeded,
    RunState,
    Schedule,
    Signal,
    activity,
    every,
    job,
    publish,
    run_child,
    workflow,
)
from batuta.engine.machine.core import MOST_PUBLISHED
from batuta.journal.entries import Body, StartInfo, decode_body
from batuta.journal.quotas import MOST_WAITING
from batuta.testing import Environment
from tests.engine.arena import PATIENCE, Arena
from tests.engine.kit import jobs, world

go = Signal("go", int)
MANY = {f"t{n}": "x" for n in range(65)}


@workflow
async def waits() -> int:
    return await go.wait()


@workflow
async def reads(count: int) -> int:
    return sum([await go.wait() for _ in range(count)])


@job
async def works() -> None: ...


@activity
async def act() -> None: ...


# -- tags


TAGS: dict[str, Callable[[Any, Any], Any]] = {
    "start": lambda client, tags: client.start(waits, tags=tags),
    "enqueue": lambda client, tags: client.enqueue(works, tags=tags),
    "enqueue many": lambda client, tags: client.enqueue_many([works.call().with_options(tags=tags)]),
    "schedule": lambda client, tags: client.schedules.create(Schedule("s", every(timedelta(days=1)), waits, tags=tags)),
    "list": lambda client, tags: client.list(tags=tags),
    "select": lambda client, tags: client.count(tags=tags),
}


@pytest.mark.parametrize("how", TAGS)
@pytest.mark.parametrize(
    ("tags", "said"),
    [
        (MANY, "65 tags are too many: a run has at most 64"),
        ({"": "x"}, "name of 1 to 200 characters"),
        ({"n" * 201: "x"}, "name of 1 to 200 characters"),
        ({"n": "v" * 1_001}, "a value of at most 1,000"),
    ],
    ids=["many", "no name", "long name", "long value"],
)
async def test_tags_are_limited_wherever_they_are_given(how: str, tags: dict[str, str], said: str) -> None:
    async with Environment(workflows=[waits], jobs=[works]) as env:
        with pytest.raises(InvalidInput, match=said) as refused:
            await TAGS[how](env.client, tags)
        assert len(str(refused.value)) < 400


async def test_as_many_tags_as_may_be_are_kept() -> None:
    tags = {f"t{n}": "v" * 200 for n in range(64)}
    async with world(waits) as env:
        handle = await env.start(waits, tags=tags)
        assert (await handle.describe()).tags == tags
        await handle.terminate()


async def test_tags_of_children_are_limited_too_also_in_replay() -> None:
    @workflow
    async def child() -> str:
        return "done"

    @workflow
    async def parent() -> str:
        try:
            return await run_child(child, tags=MANY)
        except InvalidInput:
            return await run_child(child, tags={"few": "x"})

    async with world(parent, child, always_replay=True) as env:
        handle = await env.start(parent)
        assert await handle.result() == "done"
        assert [run.tags for run in (await env.client.list(workflow=child)).runs] == [{"few": "x"}]


# -- published values


async def test_a_run_publishes_under_so_many_names_and_meets_the_limit_in_replay() -> None:
    @workflow
    async def shows() -> int:
        shown = 0
        for number in range(MOST_PUBLISHED + 5):
            try:
                publish(f"v{number}", number)
            except InvalidInput:
                continue
            shown += 1
            if shown % 250 == 0:
                await act()
        publish("v1", "again")
        return shown

    async with world(shows, act, always_replay=True) as env:
        handle = await env.start(shows)
        assert await handle.result() == MOST_PUBLISHED
        assert len(await env.store.outputs(handle.run_id)) == MOST_PUBLISHED


async def test_a_run_of_an_older_version_goes_on_without_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    @workflow
    async def shows() -> int:
        for number in range(5):
            publish(f"v{number}", number)
        await go.wait()
        publish("last", 5)
        return 6

    async with world(shows) as env:
        sign = StartInfo.__setattr__

        def unbounded(self: StartInfo, name: str, value: Any) -> None:
            sign(self, name, False if name == "bounded" else value)

        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(StartInfo, "__setattr__", unbounded)
            handle = await env.start(shows)
            await env.settle()
        body: Body = decode_body((await env.store.journal(handle.run_id))[0])
        assert body.start is not None
        assert "bounded" not in (await env.store.journal(handle.run_id))[0].body
        monkeypatch.setattr("batuta.engine.machine.core.MOST_PUBLISHED", 3)
        await env.crash()
        await handle.signal(go, 1)
        assert await handle.result() == 6


# -- messages that wait


async def test_a_run_is_sent_no_more_than_may_wait_and_takes_more_when_it_has_read() -> None:
    async with world(reads) as env:
        await env.client.quotas.set("waiting_messages", 5)
        handle = await env.start(reads, 6)
        await env.settle()
        await env.worker.stop()
        for _ in range(5):
            await handle.signal(go, 1)
        with pytest.raises(QuotaExceeded, match=r"5 unread messages wait in the inbox .*: try again in 1 s") as full:
            await handle.signal(go, 1)
        assert (full.value.quota, full.value.limit, full.value.used) == ("waiting_messages", 5, 5)
        await env.deploy()
        await env.settle()
        await handle.signal(go, 1)
        assert await handle.result() == 6


async def test_a_run_with_a_full_inbox_can_be_cancelled() -> None:
    async with world(waits) as env:
        await env.client.quotas.set("waiting_messages", 1)
        handle = await env.start(waits)
        await env.settle()
        await env.worker.stop()
        await handle.signal(go, 1)
        with pytest.raises(QuotaExceeded):
            await handle.signal(go, 2)
        assert await handle.cancel()
        await env.deploy()
        await env.settle()
        assert (await handle.describe()).state in (RunState.COMPLETED, RunState.CANCELLED)


async def test_the_default_is_documented_and_listed_when_it_is_changed() -> None:
    assert MOST_WAITING == 10_000
    async with world(waits) as env:
        assert await env.client.quotas.set("waiting_messages", 20)
        [quota] = await env.client.quotas.list()
        assert (quota.name, quota.limit, quota.used) == ("waiting_messages", 20, None)
        handle = await env.start(waits)  # it is no quota of starts
        await handle.signal(go, 1)
        assert await handle.result() == 1


@pytest.mark.parametrize("limit", [0, -1, 1.5, "5", True])
async def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    async with world(waits) as env:
        with pytest.raises(InvalidInput, match="waiting_messages"):
            await env.client.quotas.set("waiting_messages", limit)


async def test_on_every_store_a_full_inbox_refuses_signals_also_in_a_burst(arena: Arena) -> None:
    client = await arena.client()
    await client.quotas.set("waiting_messages", 10)
    handle = await client.start(reads, 10)
    sent = await asyncio.gather(*(handle.signal(go, 1) for _ in range(30)), return_exceptions=True)
    refused = [one for one in sent if one is not None]
    assert len(refused) == 20
    assert all(isinstance(one, QuotaExceeded) for one in refused)
    await arena.worker(client, reads)
    assert await handle.result(PATIENCE) == 10


async def test_jobs_and_their_progress_are_not_counted() -> None:
    async with jobs(works) as env:
        await env.client.quotas.set("waiting_messages", 1)
        await (await env.client.enqueue(works)).result()
