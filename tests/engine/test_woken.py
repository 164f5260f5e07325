"""Whoever waits for a result is woken when it is there. Nothing here polls: the next look would be in a day."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest

from batuta import Batuta, ClientError, Handle, RunTerminated, activity, connect, workflow
from batuta.engine.worker import waiters
from batuta.errors import WorkerError
from batuta.ids import RunId
from batuta.journal.store import Store
from tests.engine.arena import Arena, until
from tests.engine.kit import world

gate: list[asyncio.Event] = []


@activity
async def waits() -> str:
    await gate[0].wait()
    return "done"


@workflow
async def held() -> str:
    return await waits()


@workflow
async def sleeps(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "slept"


@pytest.fixture(autouse=True)
def no_polling(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_LOOK_AGAIN", 86_400.0)


def count_looks(store: Store, monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts how often the store was asked which runs are closed."""
    looks, closed_among = Counter[str](), store.closed_among

    async def counted(run_ids: Sequence[RunId]) -> Any:
        found = await closed_among(run_ids)
        looks["made"] += 1
        return found

    monkeypatch.setattr(store, "closed_among", counted)
    return looks


async def waiting_for(client: Batuta, id: str, looks: Counter[str]) -> asyncio.Task[Any]:
    """Somebody who has looked for the end in vain, and waits."""
    handle: Handle[Any] = await client.get(id)
    task = asyncio.create_task(handle.result(20))

    async def looked() -> bool:
        return looks["made"] > 0

    await until(looked)
    return task


async def test_a_result_wakes_who_waits_for_it_through_another_client(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate[:] = [asyncio.Event()]
    one, other = await arena.client(), await arena.client()
    await arena.worker(one, held, waits)
    await one.start(held, id="a")
    looks = count_looks(arena.store(other), monkeypatch)
    task = await waiting_for(other, "a", looks)
    gate[0].set()
    assert await task == "done"


async def test_a_run_terminated_by_another_client_wakes_who_waits_where_it_runs(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate[:] = [asyncio.Event()]
    one, other = await arena.client(), await arena.client()
    await arena.worker(one, held, waits)
    await one.start(held, id="a")
    looks = count_looks(arena.store(one), monkeypatch)
    task = await waiting_for(one, "a", looks)
    handle: Handle[Any] = await other.get("a")
    await handle.terminate("enough")
    with pytest.raises(RunTerminated):
        await task


async def test_a_run_terminated_where_it_runs_wakes_who_waits_there(sqlite_url: str, real_time: None) -> None:
    async with connect(sqlite_url) as client, client.worker(workflows=[sleeps]):
        handle = await client.start(sleeps, 20, id="a")
        again = await client.get("a", sleeps)
        task = asyncio.create_task(again.result(20))
        await asyncio.sleep(0)
        await handle.terminate("enough")
        with pytest.raises(RunTerminated):
            await task


async def test_a_result_is_not_asked_for_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(sleeps) as env:
        looks = count_looks(env.store, monkeypatch)
        handle = await env.start(sleeps, 30 * 86_400)
        assert await handle.result() == "slept"
        assert looks["made"] <= 3


async def test_callers_that_wait_when_the_client_closes_get_an_error(sqlite_url: str, real_time: None) -> None:
    async with connect(sqlite_url) as client:
        handle = await client.start(sleeps, 3600)
        task = asyncio.create_task(handle.result())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    with pytest.raises(WorkerError, match="closed"):
        async with asyncio.timeout(20):
            await task


async def test_a_result_awaited_in_another_event_loop_is_refused_and_who_waits_at_home_is_still_woken(
    sqlite_url: str, real_time: None
) -> None:
    gate[:] = [asyncio.Event()]
    async with connect(sqlite_url) as client, client.worker(workflows=[held], activities=[waits]):
        handle = await client.start(held)
        task = asyncio.create_task(handle.result(20))
        for awaited in (handle.result(), handle.update("hurry")):
            with pytest.raises(ClientError, match="another event loop"):
                await asyncio.to_thread(asyncio.run, awaited)
        gate[0].set()
        assert await task == "done"
