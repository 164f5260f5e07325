"""The reference workflows: everything that the engine can do, in as little time as it can take.

`order` passes sequential and parallel activities, a short and a long wait (the long one leaves memory), retries, a
`once` activity and a compensation. `hold` waits until it is cancelled, and cleans up. Results can be told beforehand,
except whether a `once` activity was cut off.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time
from typing import Any

from batuta import (
    CompleteLater,
    Interrupted,
    NonRetryable,
    Retry,
    Workflow,
    activity,
    activity_info,
    heartbeat,
    workflow,
)
from chaos.ledger import LedgerClient

SHORT_WAIT_S = 0.05
LONG_WAIT_S = 0.6
KEEP_IN_MEMORY_S = 0.3
"""What the worker is told: the long wait is over it, the short one and the retries are not."""
EFFECT_S = 0.02
SLOW_EFFECT_S = 0.3
THERE = "there"
"""The queue that activities are routed to."""
SILENCE_S = 10.0
QUICK = Retry(attempts=3, first=0.04, factor=1.0, jitter=0.0)


class Refused(Exception):
    """What `ship` answers, every time."""


class Effects:
    """Activities that tell the ledger what they do. One instance for a worker."""

    def __init__(self, ledger: LedgerClient) -> None:
        self._ledger = ledger

    def _note(self, what: str, *, once: bool = False, text: str = "") -> None:
        info = activity_info()
        self._ledger.write(what, key=info.key, name=info.name, run=info.id, attempt=info.attempt, once=once, text=text)

    @activity(retry=QUICK)
    async def reserve(self, order: str) -> str:
        self._note("begin")
        await asyncio.sleep(EFFECT_S)
        self._note("end")
        return f"reserved {order}"

    @activity(retry=QUICK)
    def pack(self, number: int) -> int:
        self._note("begin")
        time.sleep(EFFECT_S)
        self._note("end")
        return number * 10

    @activity(retry=QUICK)
    async def flaky(self, number: int) -> int:
        self._note("begin")
        if activity_info().attempt < 3:
            self._note("fail")
            raise ConnectionError("not yet")
        self._note("end")
        return number * 100

    @activity(once=True, retry=Retry(attempts=1))
    async def charge(self, order: str) -> str:
        self._note("begin", once=True)
        await asyncio.sleep(EFFECT_S)
        self._note("end", once=True)
        return f"charged {order}"

    @activity(retry=Retry(attempts=1))
    async def ship(self, order: str) -> str:
        self._note("begin")
        self._note("fail")
        raise Refused(order)

    @activity(retry=QUICK)
    async def refund(self, order: str) -> str:
        self._note("begin")
        self._note("end")
        return f"refunded {order}"

    @activity(retry=QUICK)
    async def work(self, order: str, number: int, seconds: float) -> int:
        self._note("begin")
        await asyncio.sleep(seconds)
        self._note("end")
        return number

    @activity(retry=QUICK)
    async def release(self, order: str) -> str:
        self._note("begin")
        await asyncio.sleep(EFFECT_S)
        self._note("end")
        return f"released {order}"

    @activity(retry=QUICK)
    async def deadly(self, order: str) -> None:
        self._note("begin")
        os.kill(os.getpid(), signal.SIGKILL)

    @activity(retry=Retry(attempts=5, first=1.0, factor=1.0, jitter=0.0))
    async def patient(self, order: str) -> str:
        """Fails once; its retry is a second away."""
        self._note("begin")
        if activity_info().attempt == 1:
            self._note("fail")
            raise ConnectionError("not yet")
        self._note("end")
        return f"patient {order}"

    @activity(queue=THERE, heartbeat=SILENCE_S, retry=Retry(attempts=8, first=0.04, factor=1.0, jitter=0.0))
    async def render(self, order: str) -> str:
        """Routed. Its first attempt tells how far it came, and fails; the next one goes on from there."""
        first, page = activity_info().attempt == 1, activity_info().details
        heartbeat(1 if first else None)
        self._note("begin")
        await asyncio.sleep(EFFECT_S)
        if first:
            self._note("fail")
            raise ConnectionError("not yet")
        self._note("end")
        return f"rendered {order} from page {page}"

    @activity(retry=QUICK)
    async def ask(self, order: str) -> str:
        """Answered from outside: the tester finds the token in the ledger."""
        self._note("begin")
        self._note("token", text=activity_info().token)
        raise CompleteLater


@workflow
async def order(name: str) -> dict[str, Any]:
    """The reference workflow."""
    told: dict[str, Any] = {"reserved": await Effects.reserve(name)}
    told["numbers"] = await asyncio.gather(Effects.pack(1), Effects.flaky(2), Effects.work(name, 3, EFFECT_S))
    await asyncio.sleep(SHORT_WAIT_S)
    told["charged"] = await _charge(name)
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(Effects.work(name, 4, SLOW_EFFECT_S))
            group.create_task(_ship(name))
    except* Refused:
        told["compensated"] = await Effects.refund(name)
    await asyncio.sleep(LONG_WAIT_S)
    told["last"] = await Effects.reserve(f"{name} again")
    return told


async def _charge(name: str) -> str:
    try:
        return await Effects.charge(name)
    except Interrupted:
        return "unknown"


async def _ship(name: str) -> None:
    await Effects.reserve(f"{name} shipping")
    await Effects.ship(name)


def expected_order(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """What `order` must return. Only the `once` activity may have two answers."""
    charged = "unknown" if told.get("charged") == "unknown" else f"charged {name}"
    return {
        "reserved": f"reserved {name}",
        "numbers": [10, 200, 3],
        "charged": charged,
        "compensated": f"refunded {name}",
        "last": f"reserved {name} again",
    }


@workflow
async def hold(name: str) -> str:
    """Works and waits until it is cancelled; then cleans up."""
    await Effects.reserve(name)
    try:
        await Effects.work(name, 1, 30.0)
    except asyncio.CancelledError:
        return await Effects.release(name)
    raise NonRetryable("nobody cancelled")


@workflow
async def steps(name: str, count: int, seconds: float) -> list[int]:
    """A chain of equal activities."""
    return [await Effects.work(name, number, seconds) for number in range(count)]


@workflow
async def waits(name: str, seconds: float) -> str:
    """Long enough out of memory to be handed around."""
    await Effects.reserve(name)
    await asyncio.sleep(seconds)
    return await Effects.release(name)


@workflow
async def poison(name: str) -> None:
    """Kills whoever runs it."""
    await Effects.deadly(name)


@workflow
async def patience(name: str) -> str:
    """Waits for a retry."""
    return await Effects.patient(name)


@workflow
async def ticks(name: str) -> int:
    """Always about to write something."""
    for number in range(40):
        await Effects.work(name, number, 0.01)
        await asyncio.sleep(0.01)
    return 40


@workflow
async def slot(name: str) -> str:
    """What a schedule starts."""
    return await Effects.reserve(name)


ALL: list[Workflow[..., Any]] = [order, hold, steps, waits, poison, patience, ticks, slot]
