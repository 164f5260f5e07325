"""idempotent: a trivial handler behind the idempotency middleware, against the same with one bare commit, in turns."""

import asyncio
import os
import sqlite3
import statistics
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, closing
from itertools import count
from tempfile import TemporaryDirectory
from typing import Any, Final

import asyncpg

from batuta import connect
from batuta.resilience.idempotency_asgi import IdempotencyKeys
from bench.child import Figures, Task

BURST: Final = 100
CALLERS: Final = 4


async def idempotent(task: Task) -> Figures:
    """A few callers, each of which sends a request when the one before is answered."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(connect(task.url))
        commit = await _bare_commit(stack, task.url)
        kept = IdempotencyKeys(_handler, client=client)
        spent: dict[str, list[float]] = {"bare": [], "middleware": []}

        async def with_commit(scope: Any, receive: Any, send: Any) -> None:
            await commit()
            await _handler(scope, receive, send)

        end = time.perf_counter() + task.seconds
        while time.perf_counter() < end or len(spent["bare"]) < 5:
            spent["bare"].append(await _burst(with_commit))
            spent["middleware"].append(await _burst(kept))
    pairs = zip(spent["bare"], spent["middleware"], strict=True)
    rates = {f"{name}_per_s": BURST / statistics.median(times) for name, times in spent.items()}
    return rates | {"middleware_over_bare": statistics.median(bare / kept for bare, kept in pairs)}


async def _bare_commit(stack: AsyncExitStack, url: str) -> Callable[[], Awaitable[object]]:
    """One row in one transaction, by the driver alone, as durable as the store's own."""
    if url.startswith("sqlite"):
        folder = stack.enter_context(TemporaryDirectory(dir=os.path.dirname(url.removeprefix("sqlite:///")) or "."))
        file = sqlite3.connect(f"{folder}/bare.db", isolation_level=None, check_same_thread=False)
        stack.enter_context(closing(file))
        file.execute("PRAGMA journal_mode = WAL")
        file.execute("PRAGMA synchronous = FULL")
        file.execute("CREATE TABLE bare (key TEXT, answer TEXT)")
        return lambda: asyncio.to_thread(file.execute, "INSERT INTO bare VALUES ('key', 'an answer')")
    pool = await stack.enter_async_context(asyncpg.create_pool(url, min_size=CALLERS, max_size=CALLERS))
    await pool.execute("CREATE TABLE IF NOT EXISTS bare (key text, answer text)")
    return lambda: pool.execute("INSERT INTO bare VALUES ('key', 'an answer')")


async def _handler(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 201, "headers": [(b"content-type", b"text/plain")]})
    await send({"type": "http.response.body", "body": b"done"})


_keys = count()


async def _burst(app: Any) -> float:
    begun = time.perf_counter()
    await asyncio.gather(*(_caller(app) for _ in range(CALLERS)))
    return time.perf_counter() - begun


async def _caller(app: Any) -> None:
    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: dict[str, Any]) -> None: ...

    for _ in range(BURST // CALLERS):
        headers = [(b"idempotency-key", b"k%d-%d" % (time.time_ns(), next(_keys)))]
        scope = {"type": "http", "method": "POST", "path": "/", "query_string": b"", "headers": headers}
        await app(scope, receive, send)
