"""K1 and K2: what tests with `batuta.testing` cost, a crash sweep and a month."""

import statistics
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from batuta import Retry, Signal, activity, workflow
from batuta.cli.demo.ledger import Ledger
from batuta.cli.demo.orders import Order, Shop, order
from batuta.testing import Environment, crash_sweep, double, run
from batuta.testing.crashes import apart
from bench.child import Figures, Task

WEEK: Final = 7 * 86_400.0
TIMES: Final = 20

evidence = Signal("evidence", str)


@activity
async def remind(claim: str, number: int) -> None: ...


@activity(retry=Retry(attempts=5, first=60.0, jitter=0))
async def pay(claim: str, cents: int) -> str:
    return f"paid {cents} for {claim}"


@workflow
async def claim(name: str, cents: int) -> str:
    """Waits for evidence, reminding each week; after five weeks it is closed."""
    for week in range(1, 6):
        try:
            await evidence.wait(timeout=WEEK)
            return await pay(name, cents)
        except TimeoutError:
            await remind(name, week)
    return "closed without evidence"


async def demo_sweep(task: Task) -> Figures:
    """K1."""
    with TemporaryDirectory() as folder:
        shop = Shop(Ledger(Path(folder, "ledger")))

        def swept(store: Any) -> float:
            begun = time.perf_counter()
            found = crash_sweep(order, Order("lamp", 2, 9_900, "4000 1234"), activities=[shop], store=store)
            took = time.perf_counter() - begun
            assert len(found.points) > 50
            assert not found.unreached
            return took

        return {"memory_s": swept("memory"), "sqlite_s": swept("sqlite")}


async def claim_month(task: Task) -> Figures:
    """K2: the first is not counted, as a suite has more tests than one."""
    samples = [_timed(lambda: apart(lambda: run(_claim_test()))) for _ in range(TIMES + 1)]
    return {"ms": statistics.median(samples[1:]) * 1000, "first_ms": samples[0] * 1000}


def _timed(work: Callable[[], None]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


async def _claim_test() -> None:
    reminded, paid = double(remind), double(pay, returns="paid", fails=2)
    async with Environment(workflows=[claim], activities=[reminded, paid]) as env:
        handle = await env.start(claim, "claim-1", 25_000)
        await env.advance(timedelta(days=30))
        reminded.assert_called(4)
        await handle.signal(evidence, "a photo")
        assert await handle.result() == "paid"
        paid.assert_called_with("claim-1", 25_000)
