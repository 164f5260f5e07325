"""Workers are killed in the middle of deliveries: what was published is delivered, in order by key."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

from batuta import connect
from batuta.testing.buses import caught_up, until
from tests.long import LONG

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(180)]

KEYS = "abcde"
KILLS = 20 if LONG else 3
EACH = 12


def lines(file: Path) -> list[list[str]]:
    """What was delivered, attempt by attempt. A line may be cut off by the kill."""
    return [parts for line in file.read_text().splitlines() if len(parts := line.split()) == 3]


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_killed_workers_lose_no_message_and_no_order(
    request: pytest.FixtureRequest, store: str, tmp_path: Path
) -> None:
    url: str = request.getfixturevalue(f"{store}_url")
    file = tmp_path / "delivered"
    command = [sys.executable, "-m", "tests.bus.killed_worker", url, str(file)]
    published: dict[str, list[str]] = defaultdict(list)
    async with connect(url) as client:
        for life in range(KILLS + 1):
            process = subprocess.Popen(command)
            try:
                await until(lambda life=life: file.exists() and file.read_text().count("ready") > life)  # type: ignore[misc]
                before = len(lines(file))
                for number in range(EACH):
                    for key in KEYS:
                        id = await client.publish("orders", life * EACH + number, key=key)
                        published[key].append(id)
                if life < KILLS:
                    await until(lambda before=before: len(lines(file)) >= before + EACH)  # type: ignore[misc]
                else:
                    await caught_up(client, "note")
            finally:
                process.kill()
                await asyncio.to_thread(process.wait)
    first: dict[str, list[str]] = defaultdict(list)
    for key, payload, id in lines(file):
        assert published[key][int(payload)] == id
        if id not in first[key]:
            first[key].append(id)
    assert first == published
    assert len(lines(file)) < sum(map(len, published.values())) + (KILLS + 1) * 10 * len(KEYS)
