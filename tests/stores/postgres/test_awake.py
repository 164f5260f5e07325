"""A worker stays awake for the reply to a lone commit, and for nothing else."""

from __future__ import annotations

import asyncio
import os
from itertools import pairwise
from pathlib import Path

import pytest

from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.fast import busy_poll
from batuta.stores.postgres.fast.busy_poll import MOST_SKIPPED, BusyPoll, processors
from batuta.testing.conformance.kit import live_worker, start_owned

ROUNDS = 5


class Clock:
    """Stands still until it is moved."""

    now = 100.0

    def __call__(self) -> float:
        return self.now


class Noted(BusyPoll):
    """Writes down when it is asked to stay awake."""

    def __init__(self) -> None:
        super().__init__(0.0)
        self.asked: list[str] = []

    def stay(self) -> None:
        self.asked.append("stay")

    def rest(self) -> None:
        self.asked.append("rest")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    monkeypatch.setattr(busy_poll, "processors", lambda: 2)
    return Clock()


async def is_awake(one: BusyPoll) -> bool:
    """Some rounds of the event loop later."""
    for _ in range(ROUNDS):
        await asyncio.sleep(0)
    return one.is_awake


async def reply(one: BusyPoll, clock: Clock, *, quick: bool) -> bool:
    """Whether one stayed awake for it."""
    one.stay()
    stayed = one.is_awake
    if not quick:
        clock.now += 1.0
        assert not await is_awake(one)
    one.rest()
    assert not await is_awake(one)
    return stayed


async def test_the_event_loop_is_awake_until_the_reply_is_here(clock: Clock) -> None:
    one = BusyPoll(0.5, clock)
    one.stay()
    assert await is_awake(one)
    one.rest()
    assert not await is_awake(one)


async def test_a_reply_that_takes_longer_is_waited_for_asleep(clock: Clock) -> None:
    one = BusyPoll(0.5, clock)
    one.stay()
    clock.now += 0.4
    assert await is_awake(one)
    clock.now += 0.1
    assert not await is_awake(one)


async def test_where_replies_are_slow_it_is_tried_ever_more_rarely(clock: Clock) -> None:
    one = BusyPoll(0.5, clock)
    stayed = [await reply(one, clock, quick=False) for _ in range(200)]
    tries = [number for number, yes in enumerate(stayed) if yes]
    skipped = [later - earlier - 1 for earlier, later in pairwise(tries)]
    assert skipped == [1, 2, 4, 8, 16, 32, MOST_SKIPPED, MOST_SKIPPED]


async def test_one_quick_reply_makes_up_for_all_slow_ones(clock: Clock) -> None:
    one = BusyPoll(0.5, clock)
    for _ in range(20):
        await reply(one, clock, quick=False)
    while not await reply(one, clock, quick=True):
        pass
    assert await reply(one, clock, quick=False)
    assert [await reply(one, clock, quick=True) for _ in range(3)] == [False, True, True]


@pytest.mark.parametrize(("seconds", "processors"), [(0.0, 8), (0.5, 1)])
async def test_switched_off_or_with_one_processor_there_is_no_busy_poll(
    seconds: float, processors: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_poll, "processors", lambda: processors)
    one = BusyPoll(seconds, Clock())
    one.stay()
    assert not one.is_awake


async def test_a_store_stays_awake_for_a_lone_change_and_not_for_several(store: PostgresStore) -> None:
    worker = await live_worker(store)
    first, second = await start_owned(store, worker), await start_owned(store, worker)
    noted = store._busy_poll = Noted()
    assert await first.write(store, worker) is None
    assert noted.asked == ["stay", "rest"]
    assert await store.commit(worker.worker_id, [first.change(), second.change()]) == {}
    assert noted.asked == ["stay", "rest"]


# -- how many processors there are


def groups(root: Path, of_this_process: str, **files: str) -> Path:
    """The files that tell of control groups."""
    for name, text in {"proc/self/cgroup": of_this_process, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def _eight(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(8)), raising=False)


V2 = "0::/pod/box\n"
V1 = "4:memory:/pod\n2:cpu,cpuacct:/pod/box\n0::/\n"


@pytest.mark.usefixtures("_eight")
@pytest.mark.parametrize(
    ("of_this_process", "files", "several"),
    [
        ("", {}, 8),
        (V2, {"sys/fs/cgroup/pod/box/cpu.max": "150000 100000\n"}, 1.5),
        (V2, {"sys/fs/cgroup/pod/box/cpu.max": "max 100000\n"}, 8),
        (V2, {"sys/fs/cgroup/pod/box/cpu.max": "max 100000\n", "sys/fs/cgroup/pod/cpu.max": "50000 100000\n"}, 0.5),
        ("0::/\n", {"sys/fs/cgroup/cpu.max": "400000 100000\n"}, 4),
        ("0::/../../elsewhere\n", {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        (V2, {"sys/fs/cgroup/pod/box/cpu.max": "what 0\n"}, 8),
        (
            V1,
            {
                "sys/fs/cgroup/cpu,cpuacct/pod/box/cpu.cfs_quota_us": "300000\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/box/cpu.cfs_period_us": "100000\n",
            },
            3,
        ),
        (
            V1,
            {
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "100000\n",
                "sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
            },
            1,
        ),
        (
            V1,
            {
                "sys/fs/cgroup/cpu,cpuacct/pod/box/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu,cpuacct/pod/box/cpu.cfs_period_us": "100000\n",
            },
            8,
        ),
    ],
)
def test_a_containers_quota_counts_as_processors(
    tmp_path: Path, of_this_process: str, files: dict[str, str], several: float
) -> None:
    assert processors(groups(tmp_path, of_this_process, **files)) == several


@pytest.mark.parametrize(("several", "stays"), [(1.0, False), (1.9, False), (2.0, True)])
async def test_no_busy_poll_with_less_than_two_processors(
    several: float, stays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(busy_poll, "processors", lambda: several)
    kept = BusyPoll(0.01)
    kept.stay()
    assert kept.is_awake is stays
    kept.rest()
