"""Workers killed and stopped while schedules fire: each slot has its run, and only one."""

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from batuta import Batuta, RunState, Schedule, cron, every, failpoints, info, once, workflow
from batuta.authoring.client.calendar import slots
from batuta.clock import SECOND
from batuta.connect import connect, store_for
from batuta.engine.backend.schedule_rules import first_row, slot_id
from batuta.journal.entries import EntryKind
from batuta.journal.records import RunFilter
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.arena import until
from tests.engine.slots_worker import tick
from tests.long import LONG, some_of
from tests.properties.test_crashes import Killer, forgive_the_killed

# -- one process, every moment


@workflow
async def work(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return info().id


SCHEDULES = [
    Schedule("skip", cron("* * * * *"), work, 5),
    Schedule("allow", cron("*/2 * * * *"), work, 150, overlap="allow"),
    Schedule("buffer", every(60), work, 45, overlap="buffer"),
    Schedule("cancel", every(60), work, 600, overlap="cancel"),
]
"""Every slot of each of them begins."""


async def three_minutes(moments: set[int]) -> Killer:
    asyncio.get_running_loop().set_exception_handler(forgive_the_killed)
    async with Environment(workflows=[work]) as env:
        await env.advance(80 - env.now.second)  # to a moment that is far from any slot
        begin = await env.store.now()
        await env.deploy(schedules=SCHEDULES)
        killer = Killer(env, moments)
        failpoints.armed = killer  # type: ignore[assignment]  # it passes by as an armed plan does
        try:
            await env.advance(3 * 60)
        finally:
            failpoints.arm()
        await killer.recovered()
        await env.advance(15)
        runs = (await env.store.list_runs(RunFilter(), None, 1000)).runs
        end = await env.store.now()
        expected = [slot_id(one.id, slot) for one in SCHEDULES for slot in slots(one.when, begin, end)]
        assert Counter(run.id for run in runs) == Counter(expected), killer.killed
        report = await verify(env.store, [work])
        assert not report.violations, report.violations
        return killer


async def test_no_slot_is_lost_or_doubled_wherever_a_worker_is_killed() -> None:
    calm = await three_minutes(set())
    assert len(calm.sites) > 50
    killed: set[str] = set()
    for moment in some_of(calm.sites):
        killed.update((await three_minutes({moment})).killed)
    assert {"schedule.before_fire", "schedule.after_fire"} <= killed


async def test_no_slot_is_lost_or_doubled_when_workers_are_killed_again_and_again() -> None:
    for step in (2, 3, 5, 7) if LONG else (2, 5):
        await three_minutes(set(range(step, 2_000, step)))


# -- several processes

processes = [pytest.mark.chaos, pytest.mark.timeout(180)]
PATIENCE = 60.0
MANY = 300
STAND = "schedule.before_fire:1:sleep=1.5"
"""Has decided, and stands still before it writes: what it decided is old by then."""


@asynccontextmanager
async def workers(url: str, *failing: str) -> AsyncIterator[list["subprocess.Popen[str]"]]:
    """A worker process for each, with that failpoint armed, all of them ready."""
    processes = []
    for failpoint in failing:
        environment = os.environ | ({"BATUTA_FAILPOINT": failpoint} if failpoint else {})
        command = [sys.executable, "-m", "tests.engine.slots_worker", url]
        processes.append(subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True))
    try:
        for process in processes:
            assert process.stdout is not None
            assert await asyncio.to_thread(process.stdout.readline) == "ready\n"
        yield processes
    finally:
        for process in processes:
            process.kill()
            process.communicate()


async def completed(client: Batuta) -> int:
    return await client.count(state=RunState.COMPLETED)


async def ended(process: "subprocess.Popen[str]") -> None:
    async def gone() -> bool:
        return process.poll() is not None

    await until(gone, PATIENCE)
    assert process.returncode == -signal.SIGKILL


async def put_many(url: str, schedules: list[Schedule]) -> None:
    """As `client.schedules.create`, without reading each back."""
    store = store_for(url)
    await store.open()
    try:
        async with connect(url, migrate=False) as client:
            plans = {one.id: client.schedules._backend.plan(one) for one in schedules}  # type: ignore[attr-defined]  # the native one
        now = await store.now()
        for id, plan in plans.items():
            assert await store.put_schedule(first_row(id, plan, now))
    finally:
        await store.close()


class TestProcesses:
    pytestmark = processes

    @pytest.mark.parametrize(
        ("url", "site"),
        [("sqlite", "schedule.before_fire"), ("postgres", "schedule.after_fire")],
        indirect=["url"],
    )
    async def test_hundreds_of_schedules_of_the_same_second_run_once_though_a_worker_is_killed(
        self, url: str, site: str, real_time: None
    ) -> None:
        async with connect(url) as client, workers(url, f"{site}:1:kill", STAND, STAND) as processes:
            at = datetime.fromtimestamp((await _now(url)) // SECOND + 5, UTC)
            await put_many(url, [Schedule(f"s{n:03}", once(at), tick, n) for n in range(MANY)])

            async def all_done() -> bool:
                return await completed(client) >= MANY

            await until(all_done, PATIENCE)
            await ended(processes[0])
            ids = await _all_ids(client)
            assert Counter(ids) == Counter(f"s{n:03}:{at:%Y-%m-%dT%H:%M:%S}Z" for n in range(MANY))
            await _each_began_once(url)

    async def test_a_worker_that_was_stopped_past_its_lease_fires_nothing_when_it_wakes(
        self, url: str, real_time: None
    ) -> None:
        """F22."""
        async with connect(url) as client, workers(url, "schedule.before_fire:2:stop") as [stopped]:
            await client.schedules.create(Schedule("s", every(1), tick, overlap="allow"))
            await until(lambda: _is_stopped(stopped), PATIENCE)
            before = await client.count()
            async with workers(url, ""):

                async def took_over() -> bool:
                    return await completed(client) >= before + 4

                await until(took_over, PATIENCE)
                os.kill(stopped.pid, signal.SIGCONT)
                again = await completed(client)

                async def went_on() -> bool:
                    return await completed(client) >= again + 3

                await until(went_on, PATIENCE)
                await client.schedules.delete("s")
            slots = sorted(_slot(id) for id in await _all_ids(client))
            assert len(slots) == len(set(slots))
            assert slots[-1] - slots[0] == timedelta(seconds=len(slots) - 1)

    @pytest.mark.parametrize(
        ("url", "site", "nth"),
        [("sqlite", "schedule.after_fire", 2), ("postgres", "schedule.before_fire", 1)],
        indirect=["url"],
    )
    async def test_slots_go_on_wherever_the_only_worker_is_killed(
        self, url: str, site: str, nth: int, real_time: None
    ) -> None:
        async with connect(url) as client:
            async with workers(url, f"{site}:{nth}:kill") as [killed]:
                await client.schedules.create(Schedule("s", every(1), tick, overlap="allow"))
                await ended(killed)
            before = await client.count()
            async with workers(url, ""):

                async def went_on() -> bool:
                    return await completed(client) >= before + 2

                await until(went_on, PATIENCE)
                await client.schedules.delete("s")
            slots = sorted(_slot(id) for id in await _all_ids(client))
            assert slots[-1] - slots[0] == timedelta(seconds=len(slots) - 1)
            assert len(slots) == len(set(slots))


async def _now(url: str) -> int:
    store = store_for(url)
    await store.open()
    try:
        return await store.now()
    finally:
        await store.close()


async def _all_ids(client: Batuta) -> list[str]:
    ids: list[str] = []
    cursor = None
    while True:
        page = await client.list(cursor=cursor, limit=1_000)
        ids += [run.id for run in page.runs]
        if (cursor := page.cursor) is None:
            return ids


def _slot(id: str) -> datetime:
    return datetime.fromisoformat(id.partition(":")[2].replace("Z", "+00:00"))


async def _is_stopped(process: "subprocess.Popen[str]") -> bool:
    found = subprocess.run(["ps", "-o", "state=", "-p", str(process.pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip().startswith("T")


async def _each_began_once(url: str) -> None:
    """Every journal has one beginning and one end."""
    store = store_for(url)
    await store.open()
    try:
        for run in (await store.list_runs(RunFilter(), None, 1_000)).runs:
            kinds = [entry.kind for entry in await store.journal(run.run_id)]
            assert kinds == [EntryKind.STARTED]
    finally:
        await store.close()
