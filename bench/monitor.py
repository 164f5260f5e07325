"""K3: 24 hours of pixdict's monitor of rate limits in virtual time: 288 checks of 29 policies, on SQLite."""

import asyncio
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from prometheus_client import CollectorRegistry

from batuta.testing import Environment, in_virtual_time
from batuta.testing.crashes import apart
from bench.child import Figures, Task
from pixdict.connect.database import SqliteDatabase
from pixdict.connect.monitor import (
    QUEUE,
    WORKFLOWS,
    MonitorMetrics,
    MonitorTables,
    PolicyReading,
    RateLimitActivities,
    schedule,
)

TIMES: Final = 5
DAY: Final = 86_400
POLICIES: Final = [
    PolicyReading(
        policy_name=f"POLICY_{number}",
        category="A",
        capacity=36_000,
        refill_tokens=1_200,
        refill_period_sec=60,
        available_tokens=36_000,
    )
    for number in range(29)
]


class Bridge:
    """A stand-in."""

    async def list_policies(self) -> list[PolicyReading]:
        return POLICIES


async def monitor_day(task: Task) -> Figures:
    """Seconds of real time and of processor time; the median of five."""
    taken = [apart(_timed_day) for _ in range(TIMES)]
    return {
        "day_s": statistics.median(wall for wall, _ in taken),
        "day_cpu_s": statistics.median(cpu for _, cpu in taken),
    }


def _timed_day() -> tuple[float, float]:
    begun, spent = time.perf_counter(), time.process_time()
    with TemporaryDirectory() as folder:
        _day(Path(folder))
    return time.perf_counter() - begun, time.process_time() - spent


@in_virtual_time
async def _day(folder: Path) -> None:
    database = SqliteDatabase(folder / "pixdict.db")
    metrics = MonitorMetrics(CollectorRegistry())
    activities = RateLimitActivities(Bridge(), MonitorTables(database), metrics, _publish)
    async with Environment(workflows=WORKFLOWS, activities=[activities], queues=[QUEUE], schedules=[schedule()]):
        await asyncio.sleep(DAY)  # unlike advance(), waits for the thread of SQLite
        [stored] = await database.run("SELECT count(*) AS count FROM dict_rate_limit_states")
    await database.close()
    assert stored["count"] == 288 * len(POLICIES)


async def _publish(topic: str, payload: Any, *, key: str, id: str, type: str) -> None:
    raise AssertionError("every bucket is full")
