"""bus: messages through the store's own bus. Each transaction of a publisher writes a row of its own for every message
and publishes them with it; 64 subscribers, one for each topic, get them as jobs. One process does all."""

import asyncio
import time
from itertools import count
from typing import Any, Final

import asyncpg

from batuta import connect, job
from batuta.bus import Message, subscribe
from batuta.client import Batuta
from bench.child import Figures, Task

SUBSCRIBERS: Final = 64
PUBLISHERS: Final = 8
TOGETHER: Final = 50
"""Messages of a transaction: those of one topic and key."""


async def bus(task: Task) -> Figures:
    """Messages a second: published with their rows, and from the first publication until all are handled."""
    handled, done = 0, asyncio.Event()
    total = max(1, task.runs) * TOGETHER

    async def handle(message: Message[Any]) -> None:
        nonlocal handled
        handled += 1
        if handled == total:
            done.set()

    subscriptions = [
        subscribe(f"topic-{number}", job(name=f"subscriber-{number}", result=False)(handle))
        for number in range(SUBSCRIBERS)
    ]
    async with connect(task.url) as client:
        await _make_table(task.url)
        async with client.worker(subscriptions=subscriptions):
            begun = time.perf_counter()
            numbers = count()
            await asyncio.gather(*(_publish(client, task, numbers) for _ in range(PUBLISHERS)))
            published = time.perf_counter() - begun
            await done.wait()
            took = time.perf_counter() - begun
    return {"published_per_s": total / published, "per_s": total / took, "messages": total}


async def _make_table(url: str) -> None:
    if url.startswith("postgres"):
        connection = await asyncpg.connect(url)
        await connection.execute("CREATE TABLE IF NOT EXISTS sales (id bigint, number int)")
        await connection.close()


async def _publish(client: Batuta, task: Task, numbers: "count[int]") -> None:
    """Until all transactions of the task are done."""
    connection = await asyncpg.connect(task.url) if task.url.startswith("postgres") else None
    while (number := next(numbers)) < task.runs:
        topic, payloads = f"topic-{number % SUBSCRIBERS}", [{"sale": number, "line": line} for line in range(TOGETHER)]
        if connection is None:
            await client.publish_many(topic, payloads)
            continue
        async with connection.transaction():
            await connection.executemany(
                "INSERT INTO sales VALUES ($1, $2)", [(number, line) for line in range(TOGETHER)]
            )
            await client.publish_many(topic, payloads, transaction=connection)
    if connection is not None:
        await connection.close()
