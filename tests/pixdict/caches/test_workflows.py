"""The state of runs of claims in the cache, written as they go (C-04)."""

import asyncio
import json
from typing import Any

import pytest
from msgspec import Struct

import batuta
from batuta import NonRetryable, activity, workflow
from batuta.cache import Cache, CacheBackend, MemoryCache
from batuta.clock import ManualClock
from pixdict.caches import WorkflowStates
from tests.cache.until import until
from tests.pixdict.caches.kit import Rows

open_door = asyncio.Event()


class New(Struct):
    id: str
    fails: bool = False


@activity
async def open_claim(new: New) -> str:
    await open_door.wait()
    if new.fails:
        raise NonRetryable("refused")
    return new.id


go_on = batuta.Signal("go_on")


@workflow(name="claim_key", fails=[NonRetryable])
async def claim_key(new: New) -> str:
    await open_claim(new)
    await go_on.wait()
    return "COMPLETED"


@workflow
async def something_else() -> str:
    return await open_claim(New("x"))


WORK: dict[str, Any] = {"workflows": [claim_key, something_else], "activities": [open_claim]}


@pytest.fixture(autouse=True)
def door() -> None:
    open_door.clear()


async def metadata(backend: CacheBackend, id: str) -> Any:
    found = await backend.get(f"workflow:claim:{id}:metadata")
    return None if found is None else json.loads(found)


async def status(backend: CacheBackend, id: str) -> Any:
    found = await backend.get(f"workflow:claim:{id}:status")
    return None if found is None else json.loads(found)


# covers C-04
async def test_status_and_metadata_follow_the_activities_of_a_claim(backend: CacheBackend, cache: Cache) -> None:
    states = WorkflowStates(cache)
    async with batuta.connect("memory://", middleware=[states]) as client, client.worker(**WORK):
        handle = await client.start(claim_key, New("c-1"), id="claim-c-1")
        await until(lambda: current(backend, "claim-c-1", "open_claim"))
        written = await metadata(backend, "claim-c-1")
        started = written.pop("started_at")
        assert started.endswith("Z")
        assert written == {
            "workflow_id": "claim-c-1",
            "workflow_type": "claim_key",
            "claim_id": "c-1",
            "current_activity": "open_claim",
        }
        assert await status(backend, "claim-c-1") == "RUNNING"
        found = await backend.get_with_lifetime("workflow:claim:claim-c-1:status")
        assert found is not None
        assert found[1] <= 30
        found = await backend.get_with_lifetime("workflow:claim:claim-c-1:metadata")
        assert found is not None
        assert 30 * 86_400 - 60 < found[1] <= 30 * 86_400
        open_door.set()
        await until(lambda: current(backend, "claim-c-1", None))
        await handle.signal(go_on)
        assert await handle.result() == "COMPLETED"
        await until(lambda: has_status(backend, "claim-c-1", "COMPLETED"))
        await states.flush()
        assert (await metadata(backend, "claim-c-1"))["started_at"] == started
        assert states._known == {}


async def current(backend: CacheBackend, id: str, name: str | None) -> bool:
    found = await metadata(backend, id)
    return found is not None and found["current_activity"] == name


async def has_status(backend: CacheBackend, id: str, wanted: str) -> bool:
    return bool(await status(backend, id) == wanted)


async def test_other_workflows_are_not_written(backend: CacheBackend, cache: Cache) -> None:
    open_door.set()
    states = WorkflowStates(cache)
    async with batuta.connect("memory://", middleware=[states]) as client, client.worker(**WORK):
        await (await client.start(something_else)).result()
    await states.flush()
    assert (await backend.info()).keys == 0


async def test_ends_have_the_words_of_document_c(backend: CacheBackend, cache: Cache) -> None:
    states = WorkflowStates(cache)
    async with batuta.connect("memory://", middleware=[states]) as client, client.worker(**WORK):
        failed = await client.start(claim_key, New("1", fails=True), id="claim-1")
        stopped = await client.start(claim_key, New("2"), id="claim-2")
        late = await client.start(claim_key, New("3"), id="claim-3", timeout=0.2)
        await until(lambda: current(backend, "claim-2", "open_claim"))
        await stopped.terminate("by hand")
        await until(lambda: has_status(backend, "claim-2", "FAILED"))
        await until(lambda: current(backend, "claim-2", None))
        await until(lambda: has_status(backend, "claim-3", "TIMED_OUT"))
        open_door.set()
        await until(lambda: has_status(backend, "claim-1", "FAILED"))
        del failed, late


async def test_a_run_that_comes_back_to_another_process_keeps_its_beginning(
    backend: CacheBackend, cache: Cache, sqlite_url: str
) -> None:
    async with batuta.connect(sqlite_url, migrate=True, middleware=[WorkflowStates(cache)]) as client:
        handle = await client.start(claim_key, New("1"), id="claim-1")
        open_door.set()
        async with client.worker(**WORK):
            await until(lambda: current(backend, "claim-1", None))
        before = await metadata(backend, "claim-1")
        await backend.delete(["workflow:claim:claim-1:metadata", "workflow:claim:claim-1:status"])
    states = WorkflowStates(cache)
    async with batuta.connect(sqlite_url, middleware=[states]) as client:
        handle = await client.get("claim-1")
        async with client.worker(**WORK):
            await handle.signal(go_on)
            await until(lambda: has_status(backend, "claim-1", "COMPLETED"))
        await states.flush()
    assert await metadata(backend, "claim-1") == before


async def test_readers_ask_the_engine_when_the_status_has_ended() -> None:
    clock = ManualClock()
    async with Cache(MemoryCache(clock=clock), clock=clock) as cache:
        states, rows = WorkflowStates(cache), Rows("waiting")
        assert [await states.status("claim-1", rows) for _ in range(3)] == ["RUNNING"] * 3
        assert rows.reads == 1
        for rows.row, word in (("completed", "COMPLETED"), ("timed_out", "TIMED_OUT"), ("terminated", "FAILED")):
            clock.advance(30)
            assert await states.status("claim-1", rows) == word
        clock.advance(30)
        rows.row = None
        assert await states.status("claim-1", rows) is None
        assert await states.metadata("claim-1") is None
