"""The database's clock is set by an hour while workers are at work: what they wait for takes as long as it should."""

import asyncio
from collections.abc import Sequence
from itertools import count
from typing import Any

import pytest

from batuta import (
    ActivityTimeout,
    Batuta,
    Handle,
    Queue,
    Retry,
    RunState,
    Schedule,
    activity,
    activity_info,
    every,
    workflow,
)
from batuta.clock import SECOND
from batuta.errors import OutcomeUnknown
from batuta.journal.records import Change, Refusal, Verdict
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from tests.engine.arena import Arena, until, until_state
from tests.engine.kit import replay_all

HOUR = 3_600.0
WHILE = 0.6
"""Seconds that something takes: an hour more or less would be noticed."""
both_ways = pytest.mark.parametrize("step", [-HOUR, HOUR])

times: list[tuple[str, float]] = []
gate = asyncio.Event()


@pytest.fixture(autouse=True)
def _afresh() -> None:
    global gate  # noqa: PLW0603 - it belongs to the event loop of one test
    times.clear()
    gate = asyncio.Event()


def moment(name: str) -> float:
    return next(at for what, at in times if what == name)


@activity
async def note(name: str) -> None:
    times.append((name, asyncio.get_running_loop().time()))


@activity(retry=Retry(attempts=2, first=WHILE, jitter=0))
async def fails_once() -> int:
    await note(f"attempt {activity_info().attempt}")
    if activity_info().attempt == 1:
        raise ConnectionError("busy")
    return activity_info().attempt


@activity(timeout=WHILE, retry=Retry(attempts=1))
async def hangs() -> None:
    await note("hangs")
    await gate.wait()


@activity
async def waits() -> None:
    await note("waits")
    await gate.wait()


@workflow
async def sleeps(seconds: float) -> None:
    await note("before")
    await asyncio.sleep(seconds)
    await note("after")


@workflow
async def sleeps_on(seconds: float, several: int) -> None:
    """As one that polls does: within a limit that it keeps."""
    async with asyncio.timeout(60):
        for number in range(several):
            await note(f"sleep {number}")
            await asyncio.sleep(seconds)


@workflow
async def tries() -> int:
    return await fails_once()


@workflow
async def limited() -> str:
    try:
        await hangs()
    except ActivityTimeout:
        await note("over")
        return "over"
    return "done"


@workflow
async def holds() -> None:
    await waits()


@workflow
async def holds_and_sleeps(seconds: float) -> None:
    await waits()
    await asyncio.sleep(seconds)


@workflow
async def tick() -> None: ...


ALL: tuple[Any, ...] = (
    sleeps,
    sleeps_on,
    tries,
    limited,
    holds,
    holds_and_sleeps,
    tick,
    note,
    fails_once,
    hangs,
    waits,
)


async def until_noted(name: str) -> None:
    async def noted() -> bool:
        return any(what == name for what, _ in times)

    await until(noted)


async def start(client: Batuta, flow: Any, *args: Any, id: str) -> Handle[Any]:
    """Until the next heartbeat the database takes the worker's lease for over: a start may be told "unknown"."""
    while True:
        try:
            return await client.start(flow, *args, id=id)
        except OutcomeUnknown:
            await asyncio.sleep(0.05)


async def set_clock(arena: Arena, client: Batuta, step: float) -> None:
    """Set it, and wait until the worker has noticed: runs that begin then are by the clock as it is."""
    store = arena.store(client)
    store.shift_clock(step)
    tries = count()

    async def noticed() -> bool:
        await client.start(tick, delay=0.01)  # has the worker look for what is due
        handle = await start(client, tick, id=f"tick-{next(tries)}")
        entries = await store.journal(handle.run_id)
        return bool(entries) and abs(entries[0].at - await store.now()) < 60 * SECOND

    await until(noticed)


async def never_goes_back(arena: Arena, client: Batuta, handle: Handle[Any]) -> list[int]:
    """The times of the run's journal, which are in order. Its timers fire no sooner than they say."""
    entries = await arena.store(client).journal(handle.run_id)
    at = [entry.at for entry in entries]
    assert at == sorted(at)
    return at


@both_ways
async def test_a_run_that_begins_after_the_step_sleeps_retries_and_times_out(arena: Arena, step: float) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL)
    await client.start(tick)
    arena.store(client).shift_clock(step)
    begun = ((sleeps, 0.3), (tries,), (limited,))
    handles = [await start(client, *args, id=str(number)) for number, args in enumerate(begun)]
    assert [await handle.result(timeout=20) for handle in handles] == [None, 2, "over"]
    for handle in handles:
        await never_goes_back(arena, client, handle)
    await replay_all(arena.store(client), {one.name: one for one in (sleeps, tries, limited, tick)})


@both_ways
async def test_a_start_before_the_worker_has_noticed_the_step_is_written(arena: Arena, step: float) -> None:
    """The database takes the worker's lease for over until the next heartbeat: the run waits in its queue meanwhile."""
    client = await arena.client()
    await arena.worker(client, *ALL)
    await client.start(tick)
    arena.store(client).shift_clock(step)
    handles = [await client.start(tick, id=f"at-once-{number}") for number in range(3)]
    assert all(handle.is_new for handle in handles)
    for handle in handles:
        await handle.result(timeout=30)


@both_ways
async def test_a_sleep_that_the_step_falls_into_takes_as_long_as_it_should(arena: Arena, step: float) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL)
    handle = await client.start(sleeps, WHILE)
    await until_noted("before")
    arena.store(client).shift_clock(step)
    await handle.result(timeout=20)
    assert moment("after") - moment("before") >= WHILE
    at = await never_goes_back(arena, client, handle)
    assert at[-2] - at[1] >= WHILE * SECOND
    await replay_all(arena.store(client), {"sleeps": sleeps})


@both_ways
async def test_a_retry_that_the_step_falls_into_comes_when_it_should(arena: Arena, step: float) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL)
    handle = await client.start(tries)
    await until_noted("attempt 1")
    arena.store(client).shift_clock(step)
    assert await handle.result(timeout=20) == 2
    assert moment("attempt 2") - moment("attempt 1") >= WHILE
    await never_goes_back(arena, client, handle)


@both_ways
async def test_a_limit_of_an_attempt_that_the_step_falls_into_holds_as_long_as_it_should(
    arena: Arena, step: float
) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL)
    handle = await client.start(limited)
    await until_noted("hangs")
    arena.store(client).shift_clock(step)
    assert await handle.result(timeout=20) == "over"
    assert moment("over") - moment("hangs") >= WHILE
    await never_goes_back(arena, client, handle)


@both_ways
async def test_a_run_goes_on_sleeping_and_waking_after_the_step(arena: Arena, step: float) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL)
    handle = await client.start(sleeps_on, 0.1, 6)
    await until_noted("sleep 1")
    arena.store(client).shift_clock(step)
    await handle.result(timeout=20)
    at = await never_goes_back(arena, client, handle)
    assert at[-1] - at[0] < 60 * SECOND if step < 0 else at[-1] - at[0] >= 0.6 * SECOND
    await replay_all(arena.store(client), {"sleeps_on": sleeps_on})


async def test_waits_that_would_leave_memory_stay_while_the_journal_is_ahead_of_the_database(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL, keep_in_memory=0.1)
    handle = await client.start(holds_and_sleeps, 0.5)
    await until_noted("waits")
    await set_clock(arena, client, -HOUR)
    gate.set()
    await handle.result(timeout=20)


async def test_a_sleep_that_has_left_memory_is_not_longer_by_the_step_back(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL, keep_in_memory=0.1)
    handle = await client.start(sleeps, WHILE)
    await until_state(handle, RunState.WAITING)
    arena.store(client).shift_clock(-HOUR)
    await client.start(tick, delay=0.01)
    await handle.result(timeout=20)
    assert moment("after") - moment("before") >= WHILE
    await never_goes_back(arena, client, handle)


async def test_a_run_whose_journal_is_ahead_goes_on_with_another_worker(arena: Arena) -> None:
    client = await arena.client()
    worker = await arena.worker(client, *ALL)
    handle = await client.start(sleeps_on, 0.2, 5)
    await until_noted("sleep 1")
    arena.store(client).shift_clock(-HOUR)
    await arena.kill(client, worker)
    await arena.worker(client, *ALL)
    await handle.result(timeout=20)
    await never_goes_back(arena, client, handle)
    await replay_all(arena.store(client), {"sleeps_on": sleeps_on})


async def test_what_was_due_before_the_clock_was_set_back_is_still_due(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL, max_runs=1)
    first = await client.start(holds)
    await until_noted("waits")
    waiting = [await client.start(tick) for _ in range(3)]
    arena.store(client).shift_clock(-HOUR)
    later = await client.start(tick, delay=HOUR / 2, id="later")
    gate.set()
    for handle in [first, *waiting]:
        await handle.result(timeout=20)
    assert (await later.describe()).state is RunState.PENDING


@both_ways
async def test_a_schedule_made_after_the_step_fires_and_the_scheduler_does_not_spin(
    arena: Arena, step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL, heartbeat=2.0)
    store = arena.store(client)
    looks, find = 0, store.due_schedules

    async def counted(*args: Any) -> Any:
        nonlocal looks
        looks += 1
        return await find(*args)

    monkeypatch.setattr(store, "due_schedules", counted)
    store.shift_clock(step)
    await client.schedules.create(Schedule("s", every(1), tick, overlap="allow"))

    async def fired() -> bool:
        runs = (await client.list(id_prefix="s:")).runs
        return sum(run.state is RunState.COMPLETED for run in runs) >= 2

    began = asyncio.get_running_loop().time()
    await until(fired)
    took = asyncio.get_running_loop().time() - began
    assert looks <= 20 * (took + 1)
    assert len((await client.list(id_prefix="s:")).runs) <= took + 2


@both_ways
async def test_no_worker_takes_another_one_for_dead(arena: Arena, step: float) -> None:
    clients = [await arena.client() for _ in range(2)]
    workers = [await arena.worker(client, *ALL, lease=2.0, fast_detection=False) for client in clients]
    ids = [worker.session.info.worker_id for worker in workers if worker.session is not None]
    handles = [await client.start(holds) for client in clients]
    await until(lambda: _is_true(len(times) == 2))
    for client in clients:
        arena.store(client).shift_clock(step)
    for sleeper in [await start(client, sleeps, 2.5, id="s") for client in clients]:  # beyond a lease
        await sleeper.result(timeout=20)
    gate.set()
    for handle in handles:
        await handle.result(timeout=20)
    assert [worker.session.info.worker_id for worker in workers if worker.session is not None] == ids
    assert sum(what == "waits" for what, _ in times) == 2


async def _is_true(value: bool) -> bool:
    return value


async def test_a_rate_is_not_used_up_until_the_clock_is_where_it_was(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *ALL, queues=[Queue("slow", rate="2/s")])
    first = [await client.start(tick, queue="slow") for _ in range(2)]
    for handle in first:
        await until_state(handle, RunState.COMPLETED)
    arena.store(client).shift_clock(-HOUR)
    for handle in [await client.start(tick, queue="slow") for _ in range(3)]:
        await handle.result(timeout=20)


class HoldsFailures(MemoryStore):
    """Makes failed attempts durable only when the gate is open."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.gate = asyncio.Event()

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        if any(change.attempts for change in changes):
            await self.gate.wait()
        return await super().commit(worker_id, changes)


class HoldingEnvironment(Environment):
    store: HoldsFailures

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        return HoldsFailures(database)


async def test_a_retry_that_was_due_before_its_failure_was_durable_survives_a_step() -> None:
    """How far the clock was set is known to a fraction of a second: by the run's clock it may be due later again."""
    async with HoldingEnvironment(workflows=[tries], activities=[fails_once]) as env:
        handle = await env.start(tries)
        await env.advance(2)
        assert env.worker.session is not None
        [run] = env.worker.session.runs.values()
        run.clock_set(3 * SECOND)  # as a step that was taken for longer than it was
        env.store.gate.set()
        assert await handle.result() == 2
