"""What a run is told of where it comes from, and names that it gives to its messages."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from batuta import (
    InvalidInput,
    Retry,
    Schedule,
    Signal,
    activity,
    activity_info,
    continue_as_new,
    every,
    info,
    job,
    run_child,
    send,
    start_child,
    workflow,
)
from batuta.errors import Nondeterministic
from tests.engine.arena import PATIENCE, Arena
from tests.engine.kit import journal_of, replay, world

item = Signal("item", int)
stop = Signal("stop")


# -- parents


@workflow
async def child(left: int) -> list[str | None]:
    if left:
        continue_as_new(left - 1)
    if info().attempt == 1:
        raise ConnectionError("try again")
    return [info().id, info().parent_id]


@workflow
async def parent() -> list[Any]:
    first = await run_child(child, 0, retry=Retry(attempts=2, first=0.01))
    second = await run_child(child, 2, id="second", retry=Retry(attempts=2, first=0.01))
    return [info().parent_id, first, second]


async def test_a_child_is_told_its_parents_id_also_by_runs_that_follow_it(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, parent, child)
    found = await (await client.start(parent, id="family")).result(PATIENCE)
    assert found[0] is None
    assert [one[1] for one in found[1:]] == ["family", "family"]


async def test_a_journal_from_before_tells_no_parent() -> None:
    @workflow
    async def lonely() -> str | None:
        return info().parent_id

    async with world(lonely) as env:
        handle = await env.start(lonely)
        assert await handle.result() is None
        assert "parent" not in (await journal_of(env, handle))[0].body


# -- slots


@activity
async def slot_of_activity() -> datetime | None:
    return activity_info().slot


@workflow
async def report(rounds: int) -> list[datetime | None]:
    if rounds:
        continue_as_new(rounds - 1)
    return [info().slot, await slot_of_activity(), await slot_of_activity.with_options(queue="other")()]


@job
async def tidy() -> datetime | None:
    return activity_info().slot


@job(process=True)
def crunch() -> datetime | None:
    return activity_info().slot


async def test_runs_and_jobs_of_a_schedule_are_told_their_slot() -> None:
    async with world(report, slot_of_activity, tidy, queues=["default", "other"]) as env:
        for id, target in (("r", report), ("j", tidy)):
            arguments = (1,) if target is report else ()
            await env.client.schedules.create(Schedule(id, every(3600), target, *arguments, jitter=60))
        await env.advance(3700)
        for id, decoded in (("r", report), ("j", tidy)):
            last = (await env.client.schedules.get(id)).last_id
            slot = datetime.fromisoformat(last.partition(":")[2])
            found: Any = await (await env.client.get(last, decoded)).result()
            assert found == ([slot] * 3 if id == "r" else slot)


async def test_a_backfilled_run_is_told_the_slot_it_is_for_and_a_triggered_one_its_time() -> None:
    async with world(report, slot_of_activity, tidy, queues=["default", "other"]) as env:
        await env.client.schedules.create(Schedule("j", every(3600), tidy))
        begin, end = datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 2, tzinfo=UTC)
        ids = await env.client.schedules.backfill("j", begin, end)
        found = [await (await env.client.get(id, tidy)).result() for id in ids]
        assert found == [begin, datetime(2020, 1, 1, 1, tzinfo=UTC)]
        triggered = await env.client.schedules.trigger("j")
        told = await (await env.client.get(triggered.id, tidy)).result()
        assert told is not None
        assert told.isoformat().replace("+00:00", "Z") in triggered.id
        assert await (await env.client.enqueue(tidy)).result() is None


async def test_a_job_in_a_process_is_told_too(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, crunch)
    await client.schedules.create(Schedule("c", every(86400), crunch))
    [id] = await client.schedules.backfill("c", datetime(2020, 1, 1, tzinfo=UTC), datetime(2020, 1, 1, 12, tzinfo=UTC))
    assert await (await client.get(id, crunch)).result(PATIENCE) == datetime(2020, 1, 1, tzinfo=UTC)


# -- named messages


@workflow
async def listener() -> list[int]:
    items: list[int] = []
    item.handle(items.append)
    await stop.wait()
    return items


@workflow
async def sender(to: str) -> str:
    for number in (1, 2, 1):
        await send(to, item, number, message_id=f"order-{number}")
    await send(to, item, 3)
    await send(to, item, 3)
    return "sent"


async def test_a_message_id_is_delivered_once_from_any_sender(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, listener, sender)
    listening = await client.start(listener, id="listener")
    await listening.signal(item, 1, message_id="order-1")
    for _ in range(2):
        assert await (await client.start(sender, "listener")).result(PATIENCE) == "sent"
    await listening.signal(stop)
    assert await listening.result(PATIENCE) == [1, 2, 3, 3, 3, 3]


async def test_a_child_can_be_sent_named_messages() -> None:
    @workflow
    async def mother() -> list[int]:
        one = await start_child(listener)
        for _ in range(2):
            await one.signal(item, 7, message_id="seven")
        await one.signal(stop)
        return await one.result()

    async with world(mother, listener) as env:
        assert await env.run(mother) == [7]


async def test_named_messages_are_sent_once_by_a_worker_that_dies() -> None:
    async with world(listener, sender) as env:
        listening = await env.start(listener, id="listener")
        sending = await env.start(sender, "listener")
        await env.crash()
        assert await sending.result() == "sent"
        await listening.signal(stop)
        assert await listening.result() == [1, 2, 3, 3]


async def test_another_name_for_a_message_does_not_replay() -> None:
    async with world(listener, sender) as env:
        await env.start(listener, id="listener")
        sending = await env.start(sender, "listener")
        await sending.result()
        entries = await journal_of(env, sending)

    @workflow(name="sender")
    async def changed(to: str) -> str:
        for number in (1, 2, 1):
            await send(to, item, number, message_id=f"invoice-{number}")
        return "sent"

    with pytest.raises(Nondeterministic, match="message order-1"):
        replay(changed, entries)


@pytest.mark.parametrize("name", ["", "a\x00b", 5, "cancel:0123abcd-x"])
async def test_a_bad_name_is_refused(name: Any) -> None:
    @workflow
    async def careless() -> str:
        with pytest.raises(InvalidInput, match="message id"):
            await send("listener", item, 1, message_id=name)
        return "refused"

    async with world(careless) as env:
        assert await env.run(careless) == "refused"
