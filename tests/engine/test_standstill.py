"""A worker whose time, loop or database is not what it was: it goes on, ends itself or begins anew, as it must."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec.structs import replace

from batuta import Batuta, RunState, activity, workflow
from batuta.authoring.definitions import Workflow
from batuta.clock import ManualClock, SystemClock
from batuta.engine.backend.native import NativeBackend
from batuta.engine.worker.lease import went_back
from batuta.engine.worker.worker import Worker
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.records import Change, Pulse, Refusal, Verdict
from batuta.stores.memory import MemoryDatabase
from tests.engine.arena import until
from tests.engine.beating import BeatingStore

begun: list[str] = []
gates: list[asyncio.Event] = []
falls_asleep: list[Callable[[], None]] = []


@activity
async def waits(text: str) -> str:
    begun.append(text)
    await gates[0].wait()
    return text


@workflow
async def greets(text: str) -> str:
    return await waits(text)


@activity
async def sleeps() -> str:
    falls_asleep[0]()
    return "slept"


@workflow
async def greets_after_sleep(text: str) -> list[str]:
    return list(await asyncio.gather(sleeps(), waits(text)))


@workflow
async def naps() -> str:
    await asyncio.sleep(20)
    return "awake"


@asynccontextmanager
async def working(
    clock: ManualClock | None = None, stuck_loop: float = 30.0
) -> AsyncIterator[tuple[BeatingStore, Batuta, Worker]]:
    begun.clear()
    gates[:] = [asyncio.Event()]
    store = BeatingStore(MemoryDatabase(clock))
    async with Batuta(NativeBackend(store, clock or SystemClock()), store.open, store.close) as client:
        code: list[Workflow[..., Any]] = [greets, greets_after_sleep, naps]
        settings: dict[str, Any] = {"heartbeat": 0.02, "stuck_loop": stuck_loop}
        async with client.worker(workflows=code, activities=[waits, sleeps], **settings) as worker:
            yield store, client, worker


def worker_id(worker: Worker) -> str:
    return "" if worker.session is None or worker.session.over else worker.session.info.worker_id


async def test_on_another_timeline_a_worker_drops_everything_and_registers_anew(real_time: None) -> None:
    async with working() as (store, client, worker):
        before = worker_id(worker)
        handle = await client.start(greets, "hello")
        await store.after_beats(2)
        assert begun == ["hello"]
        store.database.timeline = "restored from a backup"

        async def is_another() -> bool:
            return worker_id(worker) not in ("", before)

        await until(is_another)
        gates[0].set()
        assert await handle.result(20) == "hello"
        assert begun == ["hello", "hello"]
        assert [one.worker_id for one in await store.workers()] == [worker_id(worker)]
        await store.after_beats(3)  # the new timeline is the right one now
        assert await (await client.start(greets, "again")).result(20) == "again"


async def test_a_machine_that_was_suspended_ends_nothing_but_the_lease(real_time: None) -> None:
    clock = ManualClock()
    async with working(clock) as (store, client, worker):
        before = worker_id(worker)
        handle = await client.start(greets, "hello")
        await store.after_beats(2)
        session = worker.session
        assert session is not None
        assert session.may_act()
        store.away = True
        clock.advance(3_600)
        assert not session.may_act()
        store.away = False
        await store.after_beats(2)
        assert worker_id(worker) == before
        assert session.may_act()
        gates[0].set()
        assert await handle.result(20) == "hello"
        assert begun == ["hello"]


async def test_heartbeats_that_fail_in_an_unexpected_way_end_nothing_but_the_lease(real_time: None) -> None:
    clock = ManualClock()
    async with working(clock) as (store, client, worker):
        before = worker_id(worker)
        handle = await client.start(greets, "hello")
        await store.after_beats(2)
        store.broken = True
        clock.advance(3_600)
        assert worker.session is not None
        assert not worker.session.may_act()
        store.broken = False
        await store.after_beats(2)
        assert worker_id(worker) == before
        gates[0].set()
        assert await handle.result(20) == "hello"
        assert begun == ["hello"]


async def test_an_activity_whose_turn_comes_when_the_machine_has_slept_waits_for_the_next_heartbeat(
    real_time: None,
) -> None:
    clock = ManualClock()
    async with working(clock) as (store, client, _):

        def fall_asleep() -> None:
            store.away = True
            clock.advance(3_600)

        falls_asleep[:] = [fall_asleep]
        handle = await client.start(greets_after_sleep, "hello")

        async def has_slept() -> bool:
            return store.away

        await until(has_slept)
        for _ in range(20):
            await asyncio.sleep(0)
        assert begun == []
        store.away = False
        gates[0].set()
        assert await handle.result(20) == ["slept", "hello"]
        assert begun == ["hello"]


async def test_a_heartbeat_that_was_under_way_at_the_end_of_a_session_lets_nothing_act(real_time: None) -> None:
    async with working() as (store, _, worker):
        session = worker.session
        assert session is not None
        await store.after_beats(1)
        session.abandon()
        await store.after_beats(2)
        assert not session.may_act()


async def test_a_timer_that_was_due_while_the_machine_slept_fires_at_the_next_heartbeat(real_time: None) -> None:
    clock = ManualClock()
    async with working(clock) as (store, client, _):
        handle = await client.start(naps)
        await store.after_beats(2)
        clock.advance(21)
        assert await handle.result(10) == "awake"
        assert (await handle.describe()).state is RunState.COMPLETED


def test_the_monotonic_clock_counts_the_time_in_which_the_machine_sleeps() -> None:
    boot = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)  # where there is none, the next best
    early = time.clock_gettime(boot)
    assert early <= SystemClock().monotonic() <= time.clock_gettime(boot)


STUCK = """
import asyncio, logging, threading
from batuta.authoring.definitions import Workflow
from batuta.clock import ManualClock
from tests.engine.test_standstill import working
logging.basicConfig()

async def main():
    clock = ManualClock()
    async with working(clock, {limit}) as (store, client, worker):
        await store.after_beats(2)
        clock.advance(31)
        {then}

asyncio.run(main())
print("went on")
"""


def outcome_of(limit: float, then: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.run(
        [sys.executable, "-c", STUCK.format(limit=limit, then=then)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


def test_a_process_whose_loop_stands_still_for_long_ends() -> None:
    done = outcome_of(2, "threading.Event().wait(40)")
    assert done.returncode == 70, done.stderr
    assert "the event loop has stood still for 31 s: this process ends" in done.stderr


def test_a_process_whose_loop_answers_the_second_look_goes_on() -> None:
    done = outcome_of(30, "await store.after_beats(3)")
    assert done.returncode == 0, done.stderr
    assert "went on" in done.stdout


async def test_a_worker_that_cannot_read_what_its_beats_bring_lets_others_have_its_runs(real_time: None) -> None:
    """The store has its beats, and would keep its runs for it for ever."""
    clock = ManualClock()
    async with working(clock) as (store, client, worker):
        before = worker_id(worker)
        handle = await client.start(greets, "hello")
        await store.after_beats(2)
        store.unreadable = True
        clock.advance(60)

        async def is_free() -> bool:
            return (await store.get_run(handle.run_id)).owner is None

        await until(is_free)
        assert "its heartbeats fail" in (await store.get_run(handle.run_id)).reason
        gates[0].set()
        store.unreadable = False
        assert await handle.result(20) == "hello"
        assert worker_id(worker) not in ("", before)
        assert begun == ["hello", "hello"]


class HangingStore(BeatingStore):
    """Its commits get no answer while it hangs."""

    def __init__(self, database: MemoryDatabase | None = None) -> None:
        super().__init__(database)
        self.gate = asyncio.Event()
        self.gate.set()

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        await self.gate.wait()
        return await super().commit(worker_id, changes)


async def test_starts_end_while_a_commit_gets_no_answer(real_time: None) -> None:
    """The one that was sent is unknown, those behind it are withdrawn."""
    begun.clear()
    gates[:] = [asyncio.Event()]
    gates[0].set()
    clock = ManualClock()
    store = HangingStore()
    async with Batuta(NativeBackend(store, clock), store.open, store.close) as client:
        async with client.worker(workflows=[greets], activities=[waits], heartbeat=0.02):
            await store.after_beats(2)
            store.gate.clear()
            sent = asyncio.create_task(client.start(greets, "sent", id="sent"))
            await asyncio.sleep(0.01)
            behind = [asyncio.create_task(client.start(greets, "behind", id=f"behind-{n}")) for n in range(2)]
            await asyncio.sleep(0.01)
            clock.advance(6)
            told = await asyncio.wait_for(asyncio.gather(sent, *behind, return_exceptions=True), 20)
            assert [type(one) for one in told] == [OutcomeUnknown, StoreUnavailable, StoreUnavailable]
            store.gate.set()
            assert await (await client.start(greets, "sent", id="sent")).result(20) == "sent"
            assert begun == ["sent"]
            assert await client.count() == 1


@pytest.mark.parametrize(
    ("after", "noticed"),
    [
        ({"now": 20, "beaten_at": 10, "position": 6}, False),
        ({"now": 20, "beaten_at": 15, "position": 6}, False),  # of a beat whose answer was lost
        ({"now": 20, "beaten_at": None, "position": 6}, False),
        ({"now": 20, "beaten_at": 9, "position": 6}, True),
        ({"now": 20, "beaten_at": 10, "position": 4}, True),
        ({"now": 20, "beaten_at": 10, "position": 6, "timeline": "b"}, True),
        ({"now": 5, "beaten_at": 4, "position": 6}, False),  # the clock was set back, and nothing else
    ],
)
def test_a_database_that_was_set_back_is_known_by_what_it_forgot(after: dict[str, Any], noticed: bool) -> None:
    before = Pulse(now=10, alive=True, timeline="a", position=5)
    assert went_back(before, replace(before, **after)) is noticed
