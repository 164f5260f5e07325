"""Journals of the monitor, recorded once: today's code replays them. `python -m tests.pixdict.monitor.test_replay`
records them again, for a change that is meant to break them."""

import asyncio
import tempfile
from pathlib import Path

from batuta.testing import assert_replays, in_virtual_time, record
from pixdict.connect.monitor import WORKFLOWS, monitor_rate_limits, monitor_rate_limits_loop
from pixdict.connect.monitor.models import LoopState
from pixdict.errors import BridgeUnavailable
from tests.pixdict.monitor.kit import FULL, LOW, FakeBridge, FakeBus, Monitor

JOURNALS = Path(__file__).parents[1] / "journals"
CASES = {
    "success": (FakeBridge(*FULL), FakeBus()),
    "alerts": (FakeBridge(*LOW), FakeBus()),
    "alerts-not-published": (FakeBridge(*LOW), FakeBus(errors=[ConnectionError("away")] * 9)),
    "bridge-away": (FakeBridge(errors=[BridgeUnavailable("away")] * 9), FakeBus()),
}


def test_recorded_journals_replay():
    """Success, alerts, a bus that stays away, a Bridge that stays away, and a long-lived run half way."""
    assert len(list(JOURNALS.glob("monitor-*.json"))) == len(CASES) + 1
    assert_replays(WORKFLOWS, str(JOURNALS / "monitor-*.json"))


@in_virtual_time
async def record_all() -> None:
    for name, (bridge, bus) in CASES.items():
        with tempfile.TemporaryDirectory() as folder:
            async with Monitor(Path(folder), bridge, bus).environment() as env:
                handle = await env.start(monitor_rate_limits)
                await asyncio.sleep(60)
                await record(handle, JOURNALS / f"monitor-{name}.json")
    with tempfile.TemporaryDirectory() as folder:
        async with Monitor(Path(folder), FakeBridge(*LOW)).environment() as env:
            long_lived = await env.start(monitor_rate_limits_loop, LoopState())
            await asyncio.sleep(1000)
            await record(long_lived, JOURNALS / "monitor-loop.json")


if __name__ == "__main__":
    record_all()
