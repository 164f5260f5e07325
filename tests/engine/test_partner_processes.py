"""Four processes at one limit, and at one half-open breaker, of which one is killed."""

import asyncio
import sys
import time
from asyncio.subprocess import PIPE, Process
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from batuta import connect
from tests.engine import partner_worker
from tests.engine.arena import until

PROCESSES = 4


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, real_time: None) -> str:
    return str(request.getfixturevalue(f"{request.param}_url"))


@asynccontextmanager
async def processes(kind: str, url: str, folder: Path) -> AsyncIterator[list[Process]]:
    """All of them begin at the same time."""
    folder.mkdir()
    program = [sys.executable, "-m", "tests.engine.partner_worker", kind, url]
    found = [
        await asyncio.create_subprocess_exec(*program, str(folder / f"{n}"), stdin=PIPE, stdout=PIPE)
        for n in range(PROCESSES)
    ]
    try:
        for one in found:
            assert one.stdout is not None
            assert await asyncio.wait_for(one.stdout.readline(), 60) == b"ready\n"
        for one in found:
            assert one.stdin is not None
            one.stdin.write(b"\n")
            await one.stdin.drain()
        yield found
    finally:
        for one in found:
            if one.returncode is None:
                one.kill()
            await one.wait()


async def test_four_processes_never_pass_more_than_the_limit_and_use_most_of_it(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "passes"
    async with connect(url):
        pass
    async with processes("limit", url, folder) as found:
        for one in found:
            assert await asyncio.wait_for(one.wait(), 120) == 0
    times = sorted(float(at) for file in folder.iterdir() for at in file.read_text().split())
    most = max(bisect_left(times, at + 1) - number for number, at in enumerate(times))
    assert most <= 1000
    used = len(times) / (times[-1] - times[0]) / 1000
    print(f"most in a second: {most}, used: {used:.0%}")
    assert used > 0.3, "on a quiet machine more than 90 %"


def lines(folder: Path) -> dict[str, int]:
    return {file.name: len(file.read_text().split()) for file in folder.iterdir()}


async def test_exactly_the_quota_of_probes_passes_also_when_a_prober_is_killed(url: str, tmp_path: Path) -> None:
    folder = tmp_path / "passes"
    async with connect(url) as client:
        with pytest.raises(ConnectionError):
            async with client.gates(partner_worker.BREAKER):
                raise ConnectionError("away")

        async def is_open() -> bool:
            return any(one.state == "open" for one in await client.breakers.list())

        await until(is_open)
        async with processes("probe", url, folder) as found:
            await until(passed(folder, 3))
            ends = time.monotonic() + 4  # longer than the lease: the living renew it
            while time.monotonic() < ends:
                assert sum(lines(folder).values()) == 3
                await asyncio.sleep(0.1)
            victim = next(name for name, count in lines(folder).items() if count)
            had = lines(folder)[victim]
            found[int(victim)].kill()
            await until(passed(folder, 3 + had), 60)
            await asyncio.sleep(1)
            assert sum(lines(folder).values()) == 3 + had
            assert (await client.breakers.get("shared")).probes == 3


def passed(folder: Path, count: int) -> Callable[[], "asyncio.Future[bool]"]:
    async def enough() -> bool:
        return sum(lines(folder).values()) >= count

    return enough  # type: ignore[return-value]
