"""W2-around: W2 with telemetry, tracing and middleware switched on, against the same without, in turns.

`idle` has middleware that does nothing, so that everything that asks for it is there and finds nothing to do: what is
switched off must not be measurable. It has more turns than the others, for that is a small difference to look for. Each
is compared with a burst of `off` beside it, which comes before it in one round and after it in the next. `metrics` has
`batuta.metrics.Metrics`."""

import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any, ClassVar, Final

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from batuta import Batuta, Middleware, RunCall, connect
from batuta.authoring.middleware import Proceed
from batuta.metrics import Metrics
from batuta.otel import Tracing
from batuta.telemetry import Event
from bench.batuta_run import WARM_UP_RUNS, outcome, step, steps
from bench.child import Figures, Task

SHARE: Final = 0.01
"""Of the runs that are traced where the bar is: what a system of this rate can afford to keep."""
BURST: Final = 200
TURNS: Final = ("idle", "idle", "idle", "metrics", "on")
"""Of one round."""
ALL_TRACED_EVERY: Final = 3
"""Rounds: it takes long, and shows itself soon."""


class Listener(Middleware):
    """What a user's own would do: count every event, and be around every run."""

    def __init__(self) -> None:
        self.counts: Counter[type[Event]] = Counter()

    async def run(self, run: RunCall, proceed: Proceed) -> Any:
        return await proceed()

    def event(self, event: Event) -> None:
        self.counts[type(event)] += 1


class Nowhere(SpanExporter):
    exported: ClassVar[int] = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        Nowhere.exported += len(spans)
        return SpanExportResult.SUCCESS


def _provider() -> TracerProvider:
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(Nowhere()))
    return provider


async def around(task: Task) -> Figures:
    """Short bursts of each in turns, so that whatever else the machine does hits all alike."""
    made: dict[str, list[Middleware]] = {
        "off": [],
        "idle": [Middleware()],
        "metrics": [Metrics()],
        "on": [Tracing(_provider(), sample=SHARE), Listener()],
        "all_traced": [Tracing(_provider()), Listener()],
    }
    spent: dict[str, list[float]] = {name: [] for name in made}
    ratios: dict[str, list[float]] = {name: [] for name in made if name != "off"}
    async with AsyncExitStack() as stack:
        clients = {name: await _client(stack, task.url, name, middleware) for name, middleware in made.items()}
        for client in clients.values():
            await burst(client, WARM_UP_RUNS, task.steps)
        end = time.perf_counter() + task.seconds
        while time.perf_counter() < end or len(ratios["on"]) < 4:
            number = len(ratios["on"])
            for name in TURNS if number % ALL_TRACED_EVERY else (*TURNS, "all_traced"):
                for each in (("off", name), (name, "off"))[number % 2]:
                    spent[each].append(await burst(clients[each], BURST, task.steps))
                ratios[name].append(spent["off"][-1] / spent[name][-1])
    rates = {f"{name}_steps_per_s": BURST * task.steps / statistics.median(times) for name, times in spent.items()}
    return rates | {f"{name}_over_off": statistics.median(found) for name, found in ratios.items()}


async def _client(stack: AsyncExitStack, url: str, name: str, middleware: Sequence[Middleware]) -> Batuta:
    """Each has a namespace of its own in the same database."""
    client = await stack.enter_async_context(connect(url, namespace=name, middleware=middleware))
    await stack.enter_async_context(client.worker(workflows=[steps], activities=[step]))
    return client


async def burst(client: Batuta, runs: int, count: int) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(outcome(client, steps, count) for _ in range(runs)))
    return time.perf_counter() - begun
