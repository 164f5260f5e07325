"""Workflows and jobs that the dashboard is tried with."""

import asyncio
from dataclasses import dataclass
from typing import Literal

import batuta
from batuta import App, Retry, Signal, Update, activity, job, run_child, workflow
from batuta.resilience import breaker, partner_limit


@dataclass
class Verdict:
    """What a person decided."""

    approved: bool
    reason: Literal["fine", "fraud"] = "fine"
    notes: list[str] | None = None


approve = Signal("approve", Verdict)
change_address = Update("change_address", str)


@activity
async def reserve(order: str, cents: int) -> str:
    return f"reserved {cents} for {order}"


@activity(retry=Retry(attempts=2, first=0.05), gates=[breaker("bank"), partner_limit("bank", rate="1000/s")])
async def charge(order: str, cents: int) -> str:
    if cents < 0:
        raise ValueError(f"cannot charge {cents}")
    return f"charged {cents}"


@workflow
async def checkout(order: str, cents: int) -> str:
    @change_address.handle
    async def change(street: str, number: int) -> str:
        return f"{order} goes to {street} {number}"

    batuta.publish("stage", "reserving")
    reserved = await reserve(order, cents)
    charged = await charge(order, cents)
    batuta.publish("stage", "waiting for approval")
    verdict = await approve.wait()
    return f"{reserved}, {charged}, {'approved' if verdict.approved else 'declined'}: {verdict.reason}"


@activity
async def take_long(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "done"


@workflow
async def slow(seconds: float) -> str:
    return await take_long(seconds)


@workflow
async def household(members: int) -> int:
    return sum(await asyncio.gather(*(run_child(wide, 1, id=f"member-{number}") for number in range(members))))


@activity
async def count(number: int) -> int:
    return number


@workflow
async def wide(steps: int) -> int:
    total = 0
    for first in range(0, steps, 500):
        total += sum(await asyncio.gather(*(count(number) for number in range(first, min(steps, first + 500)))))
    return total


@job(retry=Retry(attempts=1))
async def mail(to: str) -> str:
    if "@" not in to:
        raise ValueError(f"no such address: {to}")
    return f"sent to {to}"


APP = App(workflows=[checkout, slow, household, wide], activities=[reserve, charge, take_long, count], jobs=[mail])
