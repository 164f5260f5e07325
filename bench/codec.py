"""W2-codec: W2 with payloads that are encrypted, and compressed and encrypted, against the same without, in turns."""

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

from batuta import Batuta, connect
from batuta.codecs import Compression, Encryption, Keys, PayloadCodec
from bench.batuta_run import WARM_UP_RUNS, outcome, step, steps
from bench.child import Figures, Task

BURST: Final = 200


async def codec(task: Task) -> Figures:
    """Short bursts of each in turns, so that whatever else the machine does hits all alike. By CPU, too: a burst of one
    process waits for the disk, which does not depend on codecs."""
    made: dict[str, list[PayloadCodec]] = {
        "off": [],
        "encrypted": [Encryption(Keys.new("k1"))],
        "both": [Compression(), Encryption(Keys.new("k1"))],
    }
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in made}
    async with AsyncExitStack() as stack:
        clients = {name: await _client(stack, task.url, name, codecs) for name, codecs in made.items()}
        for client in clients.values():
            await _burst(client, WARM_UP_RUNS, task.steps)
        end = time.perf_counter() + task.seconds
        while time.perf_counter() < end or len(spent["off"]) < 5:
            for name, client in clients.items():
                spent[name].append(await _burst(client, BURST, task.steps))
    count = BURST * task.steps
    figures = {f"{name}_steps_per_s": count / statistics.median(t for t, _ in times) for name, times in spent.items()}
    figures |= {f"{name}_cpu_us": statistics.median(c for _, c in times) * 1e6 / count for name, times in spent.items()}
    return figures | {f"{name}_over_off": _ratio(spent["off"], spent[name]) for name in ("encrypted", "both")}


async def _client(stack: AsyncExitStack, url: str, name: str, codecs: Sequence[PayloadCodec]) -> Batuta:
    """Each has a namespace of its own in the same database."""
    client = await stack.enter_async_context(connect(url, namespace=name, codec=codecs))
    await stack.enter_async_context(client.worker(workflows=[steps], activities=[step]))
    return client


async def _burst(client: Batuta, runs: int, count: int) -> tuple[float, float]:
    """Its seconds, and those of this process's CPU."""
    begun, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(outcome(client, steps, count) for _ in range(runs)))
    return time.perf_counter() - begun, time.process_time() - cpu


def _ratio(off: Sequence[tuple[float, float]], on: Sequence[tuple[float, float]]) -> float:
    """Of the rates: neighbours are compared with each other."""
    return statistics.median(before[0] / after[0] for before, after in zip(off, on, strict=True))
