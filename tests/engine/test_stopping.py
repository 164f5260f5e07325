"""Starting, stopping and registering anew: nothing is left behind, and nobody waits for what need not be waited for."""

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import pytest

from batuta import Batuta, Retry, RunState, activity, workflow
from batuta.clock import SystemClock
from batuta.engine.backend.native import NativeBackend
from batuta.engine.worker.session import Session
from batuta.errors import StoreUnavailable
from batuta.journal.records import Claim, WorkerInfo
from batuta.journal.store import Heartbeat
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from tests.engine.kit import world

executed: list[str] = []


@activity(retry=Retry(attempts=10, first=8, factor=1))
async def fails(times: int) -> str:
    executed.append("attempt")
    if len(executed) <= times:
        raise ValueError("not yet")
    return "done"


@activity
async def works(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "worked"


@workflow
async def tries(times: int) -> str:
    return await fails(times)


@workflow
async def labours(seconds: float) -> str:
    return await works(seconds)


@workflow
async def undoes() -> str:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        return f"undone: {await works(10)}"
    return "not cancelled"


def session_of(env: Environment) -> Session:
    assert env.worker.session is not None
    return env.worker.session


# -- stopping


async def test_a_stop_does_not_wait_for_retries_and_begins_none() -> None:
    executed.clear()
    async with world(tries, fails) as env:
        handle = await env.start(tries, 3)
        await env.settle()
        before = asyncio.get_running_loop().time()
        await env.worker.stop()
        assert asyncio.get_running_loop().time() - before < 1
        assert len(executed) == 1
        assert (await handle.describe()).state is RunState.WAITING
        await env.deploy()
        assert await handle.result() == "done"
        assert len(executed) == 4


async def test_an_attempt_that_fails_during_a_stop_is_tried_again_elsewhere() -> None:
    tried: list[int] = []

    @activity(retry=Retry(attempts=2, first=8))
    async def fails_late() -> str:
        tried.append(1)
        await asyncio.sleep(5)
        if len(tried) == 1:
            raise ValueError("late")
        return "done"

    @workflow
    async def once_more() -> str:
        return await fails_late()

    async with world(once_more, fails_late) as env:
        handle = await env.start(once_more)
        await env.settle()
        before = asyncio.get_running_loop().time()
        await env.worker.stop()
        assert asyncio.get_running_loop().time() - before < 6
        assert len(tried) == 1
        await env.deploy()
        assert await handle.result() == "done"


async def test_a_stop_that_is_cancelled_can_be_asked_for_again() -> None:
    async with world(labours, works) as env:
        handle = await env.start(labours, 20)
        await env.settle()
        stopping = asyncio.create_task(env.worker.stop())
        await env.advance(1)
        stopping.cancel()
        await asyncio.gather(stopping, return_exceptions=True)
        await env.worker.stop()
        await env.deploy()
        assert await handle.result() == "worked"


async def test_work_that_a_crash_cancels_before_it_begins_leaves_no_warning_behind() -> None:
    async def work() -> None: ...

    async with world(labours, works) as env:
        begun = work()
        session_of(env).spawn(begun)
        await env.crash()
        assert inspect.getcoroutinestate(begun) == inspect.CORO_CLOSED


async def test_asking_again_after_a_crash_does_not_cancel_the_cleaning_up() -> None:
    async with world(undoes, works) as env:
        handle = await env.start(undoes)
        await env.advance(1)
        await handle.cancel()
        await env.advance(1)
        await env.crash()
        await handle.cancel()
        await env.advance(1)
        await handle.cancel()
        assert await handle.result() == "undone: worked"


# -- registering anew


async def test_a_lost_session_is_retired_even_when_that_fails_at_first(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(labours, works) as env:
        handle = await env.start(labours, 100)
        await env.settle()
        lost, retire, errors = session_of(env), env.store.retire, [StoreUnavailable("away"), RuntimeError("a bug")]

        async def fails_first(worker_id: str) -> None:
            if errors:
                raise errors.pop()
            await retire(worker_id)

        monkeypatch.setattr(env.store, "retire", fails_first)
        lost._lost("a test says so")
        await env.advance(20)
        assert session_of(env) is not lost
        assert [one.worker_id for one in await env.store.workers()] == [session_of(env).info.worker_id]
        assert await handle.result() == "worked"
        assert (await handle.describe()).deaths == 0


async def test_an_unexpected_error_while_registering_anew_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async with world(labours, works) as env:
        register, errors = env.store.register, [RuntimeError("a bug"), StoreUnavailable("away")]

        async def fails_first(worker: WorkerInfo) -> int:
            if errors:
                raise errors.pop()
            return await register(worker)

        monkeypatch.setattr(env.store, "register", fails_first)
        session_of(env)._lost("a test says so")
        await env.advance(20)
        assert not errors
        assert await env.run(labours, 1) == "worked"


# -- starts that fail


class Heartless(MemoryStore):
    """A database that takes registrations, but no heartbeats."""

    poll_seconds: float | None = 0.02

    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryDatabase())
        self.error, self.broken = error, True

    @asynccontextmanager
    async def heartbeat(self, worker_id: str) -> AsyncIterator[Heartbeat]:
        if self.broken:
            raise self.error
        async with super().heartbeat(worker_id) as heartbeat:
            yield heartbeat


class Unclaimable(MemoryStore):
    """A database whose rows cannot be read."""

    poll_seconds: float | None = 0.02

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        raise ValueError("a row that cannot be read")


STORES: dict[str, MemoryStore] = {
    "heart away": Heartless(StoreUnavailable("away")),
    "heart forbidden": Heartless(PermissionError("no")),
    "unreadable": Unclaimable(MemoryDatabase()),
}


@pytest.mark.parametrize("kind", STORES)
async def test_a_start_that_fails_leaves_neither_thread_nor_task_nor_row(kind: str, real_time: None) -> None:
    store = STORES[kind]
    threads = set(threading.enumerate())
    backend = NativeBackend(store, SystemClock())
    async with Batuta(backend, store.open, store.close):
        tasks = asyncio.all_tasks()
        for _ in range(20):
            worker = backend.worker([labours], [works], ["default"], heartbeat=0.02)
            with pytest.raises((StoreUnavailable, ValueError)):
                async with asyncio.timeout(20):
                    await worker.start()
            for _ in range(5):
                await asyncio.sleep(0)
            assert asyncio.all_tasks() == tasks
            assert not [t.name for t in set(threading.enumerate()) - threads if t.name.startswith("batuta")]
        assert not await store.workers()
        assert not backend._workers


async def test_a_worker_whose_start_failed_can_be_started_when_the_database_is_there(real_time: None) -> None:
    store = Heartless(PermissionError("no"))
    backend = NativeBackend(store, SystemClock())
    async with Batuta(backend, store.open, store.close) as client:
        worker = backend.worker([labours], [works], ["default"], heartbeat=0.02)
        with pytest.raises(StoreUnavailable):
            await worker.start()
        store.broken = False
        async with worker:
            handle = await client.start(labours, 0)
            assert await handle.result(20) == "worked"


# -- the time in which an activity must begin


async def test_an_activity_that_began_in_time_may_go_on_after_a_crash() -> None:
    @workflow
    async def hurries() -> str:
        return await works.with_options(start_timeout=1, retry=Retry(attempts=1))(100)

    async with world(hurries, works) as env:
        handle = await env.start(hurries)
        await env.advance(50)
        await env.crash()
        assert await handle.result() == "worked"


@pytest.mark.parametrize("once", [True, False], ids=["once", "retried"])
async def test_an_activity_that_finds_no_place_fails_as_soon_as_its_time_is_over(once: bool) -> None:
    @workflow
    async def hurries() -> float:
        busy = asyncio.create_task(works(100))
        await asyncio.sleep(1)
        begun = asyncio.get_running_loop().time()
        with pytest.raises(Exception, match="did not start within"):
            await works.with_options(start_timeout=3, once=once)(1)
        took = asyncio.get_running_loop().time() - begun
        await busy
        return took

    async with world(hurries, works, max_activities=1) as env:
        assert 3 <= await env.run(hurries) < 4


# -- calls that wait for a place


@pytest.mark.parametrize("once", [True, False], ids=["once", "any"])
async def test_a_stop_begins_nothing_that_waited_for_a_place(once: bool) -> None:
    begun: list[int] = []

    @activity(once=once)
    async def slow(number: int) -> int:
        begun.append(number)
        await asyncio.sleep(10)
        return number

    @workflow
    async def calls_slow(number: int) -> int:
        return await slow(number)

    async with world(calls_slow, slow, max_activities=2) as env:
        handles = [await env.start(calls_slow, number) for number in range(6)]
        await env.advance(5)
        before = env.now
        await env.worker.stop(grace=100)
        took = (env.now - before).total_seconds()
        if not once:  # the start of those is durable: they must be executed here
            assert begun == [0, 1]
            assert took < 6
        await env.deploy()
        assert [await handle.result() for handle in handles] == list(range(6))
        assert sorted(begun) == list(range(6))
