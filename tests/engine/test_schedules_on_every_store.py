"""Schedules on each store, in real time, with several workers."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from batuta import Batuta, RunState, Schedule, ScheduleExists, UnknownSchedule, connect, cron, every, once, workflow
from batuta.authoring.backend import Description
from batuta.clock import SECOND
from batuta.engine.backend.schedule_rules import read_plan
from tests.engine.arena import Arena, until


@workflow
async def tick(number: int = 0) -> int:
    return number


async def runs_of(client: Batuta, id: str) -> list[Description]:
    page = await client.list(id_prefix=f"{id}:", limit=1_000)
    assert page.cursor is None
    return page.runs


async def until_runs(client: Batuta, id: str, count: int) -> list[Description]:
    """Wait for so many completed runs of a schedule, or more."""

    async def there() -> bool:
        runs = await runs_of(client, id)
        return sum(run.state is RunState.COMPLETED for run in runs) >= count

    await until(there)
    return sorted(await runs_of(client, id), key=lambda run: run.id)


def slots_of(runs: Sequence[Description]) -> list[datetime]:
    return [datetime.fromisoformat(run.id.partition(":")[2].replace("Z", "+00:00")) for run in runs]


async def test_of_several_workers_one_begins_each_slot(arena: Arena) -> None:
    clients = [await arena.client() for _ in range(3)]
    for client in clients:
        await arena.worker(client, tick)
    await clients[0].schedules.create(Schedule("s", every(1), tick, 7, overlap="allow"))
    slots = slots_of(await until_runs(clients[1], "s", 3))
    assert all(later - slot == timedelta(seconds=1) for slot, later in pairwise(slots))
    await clients[2].schedules.delete("s")
    seen = [run.created_at for run in await runs_of(clients[0], "s")]
    for slot, created in zip(slots, sorted(filter(None, seen)), strict=False):
        assert slot <= created


async def test_a_declared_schedule_works_beside_others_that_declare_it(arena: Arena) -> None:
    declared = [Schedule("s", every(1), tick), Schedule("later", cron("0 0 1 1 *"), tick)]
    clients = [await arena.client() for _ in range(2)]
    await asyncio.gather(*(arena.worker(client, tick, schedules=declared) for client in clients))
    await until_runs(clients[0], "s", 2)
    assert [view.id for view in await clients[1].schedules.list()] == ["later", "s"]


async def test_every_verb_works_on_every_store(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, tick)
    schedules = client.schedules
    with pytest.raises(UnknownSchedule):
        await schedules.get("s")
    yearly = Schedule("s", cron("0 0 1 1 *", "America/Sao_Paulo"), tick, 3, tags={"a": "b"})
    view = await schedules.create(yearly)
    with pytest.raises(ScheduleExists):
        await schedules.create(yearly)
    assert (view.when, view.arguments, view.tags) == ("0 0 1 1 * (America/Sao_Paulo)", [3], {"a": "b"})
    assert [time.astimezone(UTC).hour for time in await schedules.next_times("s", 2)] == [3, 3]
    assert await (await schedules.trigger("s")).result() == 3
    await schedules.pause("s", "for now")
    assert (await schedules.get("s")).reason == "for now"
    assert await (await schedules.trigger("s")).result() == 3
    await schedules.resume("s")
    start = datetime(2020, 6, 1, tzinfo=UTC)
    begun = await schedules.backfill("s", start, start + timedelta(days=730))
    assert begun == ["s:2021-01-01T03:00:00Z", "s:2022-01-01T03:00:00Z"]
    assert await (await client.get(begun[0], tick)).result() == 3
    assert await schedules.backfill("s", start, start + timedelta(days=730)) == []
    assert (await schedules.update(Schedule("s", every(3_600), tick))).when == "every 1 h"
    await schedules.delete("s")
    assert list(await schedules.list()) == []


async def test_after_an_hour_of_downtime_the_window_is_honoured(arena: Arena) -> None:
    client = await arena.client()
    store = arena.store(client)
    windows = {"narrow": 600, "wide": 1_800, "none": 0}
    for id, catch_up in windows.items():
        schedule = Schedule(id, cron("* * * * *"), tick, overlap="allow", catch_up=catch_up)
        await client.schedules.create(schedule)
    skipping = Schedule("skip", cron("* * * * *"), tick, catch_up=600)
    await client.schedules.create(skipping)
    store.shift_clock(3_600)
    await arena.worker(client, tick)
    for id, catch_up in windows.items():
        if catch_up:
            runs = await until_runs(client, id, catch_up // 60)
            first = [run for run in runs if run.created_at == runs[0].created_at]  # those of the look that caught up
            assert first[0].created_at is not None
            fired_at = round(first[0].created_at.timestamp() * SECOND)
            expected = read_plan((await store.schedule(id)).schedule).between(
                fired_at - (catch_up + 2) * SECOND, fired_at, 100
            )
            assert len(expected) - 1 <= len(first) <= len(expected)
            assert len(set(slots_of(runs))) == len(runs)
            assert min(slots_of(first)) >= first[0].created_at - timedelta(seconds=catch_up)
    assert len(await until_runs(client, "skip", 1)) <= 2
    assert len(await runs_of(client, "none")) <= 1


async def test_a_run_that_is_over_its_slot_is_waited_for_on_every_store(arena: Arena) -> None:
    @workflow
    async def nap() -> None:
        await asyncio.sleep(1.5)

    client = await arena.client()
    await arena.worker(client, nap)
    await client.schedules.create(Schedule("s", every(1), nap, overlap="buffer"))
    runs = await until_runs(client, "s", 2)
    await client.schedules.delete("s")
    closed = sorted((run.created_at, run.closed_at) for run in runs if run.closed_at and run.created_at)
    for (_, ended), (began, _) in pairwise(closed):
        assert ended <= began


async def test_a_running_one_is_cancelled_on_every_store(arena: Arena) -> None:
    @workflow
    async def for_ever() -> None:
        await asyncio.sleep(3_600)

    client = await arena.client()
    await arena.worker(client, for_ever)
    await client.schedules.create(Schedule("s", every(1), for_ever, overlap="cancel"))

    async def replaced() -> bool:
        states = Counter(run.state for run in await runs_of(client, "s"))
        return states[RunState.CANCELLED] >= 2

    await until(replaced)


async def test_once_is_once(arena: Arena) -> None:
    clients = [await arena.client() for _ in range(2)]
    for client in clients:
        await arena.worker(client, tick)
    soon = datetime.fromtimestamp((await arena.store(clients[0]).now()) / SECOND + 0.5, UTC)
    await clients[0].schedules.create(Schedule("s", once(soon), tick, 5))
    [run] = await until_runs(clients[1], "s", 1)
    assert await (await clients[0].get(run.id, tick)).result() == 5

    async def over() -> bool:
        return (await clients[0].schedules.get("s")).next_at is None

    await until(over)


async def test_a_look_that_was_overtaken_begins_nothing(arena: Arena) -> None:
    """F22: a scheduler that decided and then stood still finds that another has had the slot."""
    client, other = await arena.client(), await arena.client()
    late: list[Any] = []
    store = arena.store(client)
    fire = store.fire

    async def stand_still(firings: Any) -> list[bool]:
        if not late:
            late.extend(firings)
            return [False] * len(firings)
        return await fire(firings)

    store.fire = stand_still  # type: ignore[method-assign]  # what a stopped process does
    await arena.worker(client, tick)
    await client.schedules.create(Schedule("s", every(1), tick, overlap="allow"))

    async def decided() -> bool:
        return bool(late)

    await until(decided)
    await arena.worker(other, tick)
    await until_runs(other, "s", 2)
    assert await fire(late) == [False]
    runs = await runs_of(client, "s")
    assert len({run.id for run in runs}) == len(runs)


async def test_schedules_whose_names_read_alike_in_two_namespaces_begin_their_own_runs(url: str) -> None:
    """`acme/eu` + `x` is not `acme` + `eu/x`: neither takes the slots of the other, nor its arguments."""
    given = {("acme/eu", "x"): 1, ("acme", "eu/x"): 2}
    async with AsyncExitStack() as stack:
        clients = {key: await stack.enter_async_context(connect(url, namespace=key[0])) for key in given}
        for key, client in clients.items():
            await client.schedules.create(Schedule(key[1], every(1), tick, given[key], overlap="allow"))
            await stack.enter_async_context(client.worker(workflows=[tick]))
        for key, client in clients.items():
            for run in (await until_runs(client, key[1], 2))[:2]:
                assert await (await client.get(run.id, tick)).result(20) == given[key]
