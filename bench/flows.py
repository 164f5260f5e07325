"""What the interpreter of flows costs: the same steps as a flow and in Python, in turns. `python -m bench.flows [URL]`.

Also how long the three steps of the Orkestr document take, from the start to the end.
"""

import asyncio
import gc
import json
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import Any, Final

from msgspec import Raw

from batuta import Batuta, activity, connect, workflow
from batuta.flows.models import Event, FlowStart
from batuta.flows.workflow import Flows, flow

ROUNDS: Final = 7
RUNS: Final = 300
STEPS: Final = 5
ALONE: Final = 300


@activity
async def add_one(value: int) -> int:
    return value + 1


@workflow
async def in_python(amount: int) -> int:
    value = 0
    if amount > 100:
        for _ in range(STEPS):
            value = await add_one(value)
    return value


def _steps() -> list[dict[str, Any]]:
    rule = {"field": "amount", "operator": "greater_than", "value": 100}
    calls: list[dict[str, Any]] = [{"key": "big", "type": "condition", "config": {"rule": rule, "onFalse": "done"}}]
    before = "0"
    for number in range(STEPS):
        config = {"activity": "add_one", "args": [f"{{{{ {before} }}}}"]}
        calls.append({"key": f"s{number}", "type": "python", "config": config})
        before = f"steps.s{number}.output"
    return [*calls, {"key": "done", "type": "end", "config": {}}]


DOCUMENT: Final[list[dict[str, Any]]] = [
    {
        "key": "check_overdue",
        "type": "condition",
        "config": {"rule": {"field": "amount", "operator": "greater_than", "value": 100}, "onFalse": "done"},
    },
    {"key": "notify", "type": "action", "config": {"actionType": "webhook"}},
    {"key": "done", "type": "end"},
]


def _start(steps: list[dict[str, Any]]) -> FlowStart:
    event = Event(
        id="e", tenant_id="default", type="x", payload={"amount": 2500}, source="api", created_at=datetime.now(UTC)
    )
    return FlowStart(workflow_id="w", name="bench", version=1, steps=Raw(json.dumps(steps).encode()), event=event)


async def _burst(count: int, begin: Callable[[], Awaitable[Any]]) -> float:
    """Runs each second."""
    gc.collect()
    before = time.perf_counter()
    handles = await asyncio.gather(*(begin() for _ in range(count)))
    await asyncio.gather(*(handle.result() for handle in handles))
    return count / (time.perf_counter() - before)


async def compare(client: Batuta) -> dict[str, float]:
    """Bursts in turns, so that the noise of the machine hits both alike."""
    steps = _steps()
    code: list[float] = []
    flows: list[float] = []
    for _ in range(ROUNDS + 1):
        code.append(await _burst(RUNS, lambda: client.start(in_python, 2500)))
        flows.append(await _burst(RUNS, lambda: client.start(flow, _start(steps))))
    python, as_flow = statistics.median(code[1:]), statistics.median(flows[1:])
    return {
        "Python, steps/s": python * STEPS,
        "flow, steps/s": as_flow * STEPS,
        "Python over flow": python / as_flow,
    }


async def alone(client: Batuta) -> dict[str, float]:
    """One run after the other, and many at once."""
    took: list[float] = []
    for _ in range(ALONE):
        before = time.perf_counter()
        await (await client.start(flow, _start(DOCUMENT))).result()
        took.append(1000 * (time.perf_counter() - before))
    took.sort()
    at_once = [await _burst(RUNS, lambda: client.start(flow, _start(DOCUMENT))) for _ in range(ROUNDS)]
    return {
        "three steps, p50 ms": took[len(took) // 2],
        "three steps, p99 ms": took[len(took) * 99 // 100],
        "three steps at once, runs/s": statistics.median(at_once),
    }


async def main(url: str) -> None:
    parts = Flows(activities=[add_one]).parts()
    parts["workflows"] = [*parts["workflows"], in_python]
    async with connect(url) as client, client.worker(**parts):
        for name, value in ((await compare(client)) | (await alone(client))).items():
            print(f"{name}: {value:,.2f}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "memory://"))
