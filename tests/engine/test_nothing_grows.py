"""A worker that has run thousands of runs is as small as one that has run none."""

import asyncio
import gc
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest

from batuta import Batuta, Retry, RunFailed, RunState, activity, workflow
from batuta.clock import SystemClock
from batuta.engine.activities.call import Call
from batuta.engine.backend.native import NativeBackend
from batuta.engine.machine.machine import Machine
from batuta.engine.run.owned_run import OwnedRun
from batuta.engine.worker import timers
from batuta.engine.worker.session import Session
from batuta.engine.worker.waiters import Completion
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from tests.engine.arena import until
from tests.engine.kit import world

HOUR, MONTH = 3_600, 30 * 86_400
FEW = 12
"""More than any of the engine's containers holds when nothing goes on."""


@activity
async def act() -> int:
    return 1


@activity(retry=Retry(attempts=2, first=5), timeout=HOUR, total_timeout=HOUR)
async def fails() -> None:
    await asyncio.sleep(1)
    raise ValueError("always")


@activity
def in_a_thread() -> int:
    return 1


@activity
async def works_long() -> int:
    await asyncio.sleep(2 * HOUR)
    return 1


@workflow
async def calls() -> int:
    return await act()


@workflow
async def has_time() -> int:
    async with asyncio.timeout(HOUR):
        return await act() + await in_a_thread()


@workflow
async def fails_in_time() -> None:
    async with asyncio.timeout(HOUR):
        await fails()


@workflow
async def sleeps() -> None:
    await asyncio.sleep(MONTH)


@workflow
async def labours() -> int:
    async with asyncio.timeout(MONTH):
        return await works_long()


ALL: tuple[Any, ...] = (calls, has_time, fails_in_time, sleeps, labours, act, fails, in_a_thread, works_long)


def containers(owner: object, name: str) -> Iterator[tuple[str, int]]:
    """Every container that the object has, and those in it, with their lengths."""
    for key, value in vars(owner).items():
        yield from lengths(value, f"{name}.{key}")


def lengths(value: object, name: str) -> Iterator[tuple[str, int]]:
    if isinstance(value, dict | list | set | deque):
        yield name, len(value)
        for inner in value.values() if isinstance(value, dict) else value:
            yield from lengths(inner, f"{name}[]")


def large(session: Session) -> dict[str, int]:
    """What has grown in a worker, its client's waiters and its backend."""
    parts = {
        "session": session,
        "executor": session.executor,
        "places": session.executor._slots,
        "loop gate": SimpleNamespace(row=session.executor._slots._kinds[0].row),
        "timers": session.timers,
        "poller": session._poller,
        "committer": session.committer,
        "news": session._inbox,
        "waiters": session.waiters,
        "backend": session.waiters._runs_here.__self__,  # type: ignore[attr-defined]  # a bound method
    }
    found = dict(length for name, part in parts.items() for length in containers(part, name))
    assert {"session.runs", "timers._heap", "poller._due", "waiters.waiting", "backend._workers"} <= found.keys()
    del found["session.workflows"]  # what it was given, and its activities for other queues
    return {name: length for name, length in found.items() if length > FEW}


Alive = Callable[[], Counter[str]]


def in_memory() -> Counter[str]:
    """How many of the engine's larger objects there are."""
    gc.collect()
    kinds = (OwnedRun, Machine, Call, Completion)
    return Counter(type(thing).__name__ for thing in gc.get_objects() if isinstance(thing, kinds))


@pytest.fixture
def alive() -> Alive:
    """How many more there are than before this test."""
    before = in_memory()
    return lambda: in_memory() - before


def session_of(env: Environment) -> Session:
    assert env.worker.session is not None
    return env.worker.session


@pytest.fixture(autouse=True)
def no_heap_is_worth_keeping(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timers, "_MANY", FEW // 2)


async def end_of(env: Environment, *which: Any, **options: Any) -> None:
    """Run these to their ends, all at once."""
    handles = [await env.start(one, **options) for one in which]
    ends = await asyncio.gather(*(handle.result() for handle in handles), return_exceptions=True)
    assert {type(end) for end in ends} <= {int, RunFailed}


async def test_two_thousand_runs_with_timeouts_leave_nothing_in_memory(alive: Alive) -> None:
    async with Environment(workflows=ALL[:5], activities=ALL[5:], max_activities=50) as env:
        before = asyncio.get_running_loop().time()
        for _ in range(4):
            await end_of(env, *[calls, has_time, fails_in_time, calls, has_time] * 100, timeout=MONTH)
        await env.advance(2)
        assert asyncio.get_running_loop().time() - before < HOUR, "nothing may have run out by itself"
        assert large(session_of(env)) == {}
        assert alive() == {}
        assert await env.client.count(state=RunState.COMPLETED) == 1_600


async def test_runs_that_are_terminated_cancelled_or_out_of_time_leave_nothing_in_memory(alive: Alive) -> None:
    async with Environment(workflows=ALL[:5], activities=ALL[5:], max_activities=20) as env:
        kinds: list[Any] = [labours, sleeps] * 100
        started = [await env.start(one) for one in kinds]
        started += [await env.start(labours, timeout=60) for _ in range(100)]
        await env.settle()
        for number, handle in enumerate(started[:200]):
            await (handle.terminate("enough") if number % 4 < 2 else handle.cancel())
        del handle, started
        await env.advance(100)
        await end_of(env, has_time)  # alarms of runs that are gone are thrown away when the next one goes
        assert large(session_of(env)) == {}
        assert alive() == {}


async def test_waiting_for_a_result_in_vain_leaves_nothing_behind() -> None:
    async with world(*ALL) as env:
        handle = await env.start(labours)
        again = await env.client.get(handle.id, labours)
        steady = [asyncio.create_task(one.result()) for one in (handle, again)]
        for _ in range(100):
            for one in (handle, again):
                with pytest.raises(TimeoutError):
                    await one.result(1)
        assert large(session_of(env)) == {}
        (run,) = session_of(env).runs.values()
        assert run.completion is not None
        assert len(run.completion._waiters) <= 1
        assert await asyncio.gather(*steady) == [1, 1]


async def test_evicted_runs_and_their_retries_are_not_kept_until_they_are_due(alive: Alive) -> None:
    @activity(retry=Retry(attempts=3, first=HOUR, longest=HOUR))
    async def fails_for_an_hour() -> None:
        raise ValueError("always")

    @workflow
    async def tries() -> None:
        await fails_for_an_hour()

    async with Environment(workflows=[tries, sleeps], activities=[fails_for_an_hour]) as env:
        for _ in range(100):
            await env.start(tries)
            await env.start(sleeps)
        await env.advance(60)
        assert large(session_of(env)) == {}
        assert alive() == {}


async def test_activities_that_were_given_up_do_not_keep_their_run_until_they_would_have_been_due(alive: Alive) -> None:
    @activity(retry=Retry(attempts=3, first=20), total_timeout=HOUR)
    async def fails_again() -> None:
        raise ValueError("always")

    @workflow
    async def gives_up() -> int:
        for patience in (1, 2):
            with suppress(TimeoutError):
                async with asyncio.timeout(patience):
                    await (fails_again() if patience == 1 else works_long.with_options(total_timeout=HOUR)())
        return 1

    async with Environment(workflows=[gives_up], activities=[fails_again, works_long], max_activities=2) as env:
        await end_of(env, *[gives_up] * 20)
        await env.advance(1)
        assert large(session_of(env)) == {}
        assert alive() == {}


class Beating(MemoryStore):
    """A store whose workers have heartbeats, and remember what is due."""

    poll_seconds: float | None = 0.02


async def test_the_poller_does_not_remember_every_run_that_sleeps(real_time: None) -> None:
    store = Beating(MemoryDatabase())
    backend = NativeBackend(store, SystemClock())
    async with Batuta(backend, store.open, store.close) as client:
        worker = backend.worker([sleeps], [], ["default"], heartbeat=0.02)
        async with worker:
            for number in range(200):
                await client.start(sleeps, id=str(number))
            session = worker.session
            assert session is not None

            async def evicted() -> bool:
                return not session.runs

            await until(evicted)
            assert large(session) == {}


async def test_workers_that_were_stopped_are_forgotten() -> None:
    async with world(*ALL) as env:
        for _ in range(20):
            async with env.client.worker(workflows=[calls], activities=[act]):
                pass
        assert large(session_of(env)) == {}
        assert len(await env.store.workers()) == 1


async def test_generators_that_came_to_their_end_are_not_kept_while_the_run_goes_on() -> None:
    async def numbers() -> Any:
        for number in range(3):
            yield number

    @workflow
    async def makes_generators() -> int:
        for _ in range(300):
            assert [number async for number in numbers()] == [0, 1, 2]
            await asyncio.sleep(0.1)
        await asyncio.sleep(20)
        return 1

    async with world(makes_generators, always_replay=False) as env:
        handle = await env.start(makes_generators)
        await env.advance(40)
        (run,) = session_of(env).runs.values()
        assert len(run.machine.loop._generators) <= 64  # of three hundred
        assert await handle.result() == 1


async def test_a_journal_that_does_not_replay_leaves_nothing_behind(alive: Alive) -> None:
    versions = {"now": 1}

    @workflow
    async def changes() -> None:
        for _ in range(600):
            await act()
        if versions["now"] == 1:
            await works_long()
        else:
            await act()

    async with Environment(workflows=[changes], activities=[act, works_long], always_replay=False) as env:
        for _ in range(FEW + 1):
            await env.start(changes)
        await env.settle()
        versions["now"] = 2
        await env.crash()
        await env.advance(2)  # asyncio keeps cancelled timers as long as one before them is to come
        assert await env.client.count(state=RunState.NEEDS_CODE) == FEW + 1
        assert large(session_of(env)) == {}
        assert alive() == {}


async def test_the_limit_on_silence_does_not_keep_runs_that_have_ended(alive: Alive) -> None:
    @activity(heartbeat=HOUR, timeout=2 * HOUR)
    async def quick() -> int:
        return 1

    @workflow
    async def calls_quick() -> int:
        return await quick()

    async with world(calls_quick, quick) as env:
        for _ in range(100):
            await env.run(calls_quick)
        await env.advance(5)
        assert not {kind: count for kind, count in alive().items() if count > FEW}
