"""Runs that try again, runs that wait for a call, and workers, as a client finds them: on every store."""

import asyncio
import os
from typing import Any

import pytest

from batuta import Retry, activity, job, run_child, workflow
from batuta.errors import InvalidInput
from tests.engine.arena import Arena, until


@activity(retry=Retry(first=3600, longest=3600, jitter=0))
async def charge(order: str) -> None:
    raise LookupError(f"the bank is away for {order}")


@activity
async def pack(order: str) -> None:
    await asyncio.sleep(3600)


@job(retry=Retry(first=3600, longest=3600, jitter=0))
async def mail(to: str) -> None:
    raise LookupError(to)


@workflow
async def order(number: str) -> None:
    await charge(number)


@workflow
async def parcel(number: str) -> None:
    await asyncio.gather(pack(number), run_child(order, number, id=f"of-{number}"))


async def listed(client: Any, **where: Any) -> list[str]:
    return [run.id for run in (await client.list(**where)).runs]


async def test_runs_that_try_again_or_wait_for_a_call_are_found(arena: Arena) -> None:
    client = await arena.client()
    async with client.worker(workflows=[order, parcel], activities=[charge, pack], jobs=[mail], heartbeat=0.1):
        await client.start(order, "1", id="o-1")
        await client.start(parcel, "2", id="p-2")
        await client.enqueue(mail, "ada", id="m-1")

        async def all_retry() -> bool:
            return await client.count(retrying=True, kind="any") == 3

        await until(all_retry)
        assert await listed(client, retrying=True) == ["of-2", "o-1"]
        assert await listed(client, retrying=True, kind="job") == ["m-1"]
        assert await listed(client, retrying=2, kind="any") == []
        assert await listed(client, waiting_for="charge") == ["of-2", "o-1"]
        assert await listed(client, waiting_for="pack") == ["p-2"]
        assert await listed(client, waiting_for="order") == ["p-2"]
        assert await listed(client, waiting_for="mail", kind="job") == ["m-1"]
        assert await listed(client, waiting_for="nothing") == []
        first = await client.list(waiting_for="charge", limit=1)
        second = await client.list(waiting_for="charge", limit=1, cursor=first.cursor)
        assert [run.id for run in first.runs + second.runs] == ["of-2", "o-1"]
        assert await client.list(waiting_for="charge", state="completed") == await client.list(state="completed")
        [worker] = await client.workers.list()
        assert (worker.pid, worker.live, worker.queues) == (os.getpid(), True, ["default"])
        assert {"order", "parcel"} <= worker.code.keys()
        assert worker.started_at <= worker.beat_at
        assert 0 <= worker.silent < 60
        await client.select(kind="any", everything=True).terminate("enough")
        assert await client.count(retrying=True, kind="any") == 0
        assert await listed(client, waiting_for="charge") == []


@pytest.mark.parametrize("wrong", [{"retrying": -1}, {"retrying": "yes"}, {"waiting_for": 5}, {"retrying": 2**40}])
async def test_filters_that_make_no_sense_are_refused(arena: Arena, wrong: dict[str, Any]) -> None:
    client = await arena.client()
    with pytest.raises(InvalidInput):
        await client.list(**wrong)


async def test_runs_that_wait_for_a_call_cannot_be_counted(arena: Arena) -> None:
    client = await arena.client()
    with pytest.raises(InvalidInput, match="filter of list only"):
        await client.count(waiting_for="charge")
