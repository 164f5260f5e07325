"""A worker reads long signals in pages: its memory does not depend on how many of them wait."""

from __future__ import annotations

import asyncio
import sys

import pytest

from batuta import Workflow, connect
from tests.engine.long_signals_worker import counts, leaves_them, long
from tests.long import LONG

pytestmark = pytest.mark.usefixtures("real_time")

COUNT, SIZE = 1_000 if LONG else 50, 1_900_000
MOST_MEGABYTES = 64


@pytest.mark.timeout(1_800 if LONG else 60)
@pytest.mark.parametrize(
    ("url", "flow", "result"),
    [("sqlite", counts, COUNT * SIZE), ("postgres", leaves_them, COUNT)],
    indirect=["url"],
)
async def test_signals_that_wait_do_not_fill_the_memory_of_a_worker(
    url: str, flow: Workflow[[int], int], result: int
) -> None:
    async with connect(url) as client:
        handle = await client.start(flow, COUNT, id="long")
        for number in range(COUNT):
            await handle.signal(long, str(number % 10) * SIZE)
        words = [sys.executable, "-m", "tests.engine.long_signals_worker", url, flow.name]
        worker = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        said, _ = await worker.communicate()
        found, grown = said.decode().split()
        assert int(found) == result
        assert float(grown) <= MOST_MEGABYTES
        assert len([line for line in await handle.journal() if line.body.name == long.name]) == COUNT
