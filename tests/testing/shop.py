"""What the tests of the kit run."""

import asyncio
from dataclasses import dataclass

from batuta import App, Retry, Schedule, Signal, activity, every, job, run_child, workflow

approve = Signal("approve", bool)


@dataclass
class Parcel:
    sku: str
    grams: int = 0


@activity(retry=Retry(attempts=4, first=1.0, jitter=0))
async def reserve(sku: str, count: int = 1) -> str:
    return f"{count} x {sku}"


@activity
def charge(card: str) -> str:
    return f"charged {card}"


class Carrier:
    @activity
    async def ship(self, parcel: Parcel, *, express: bool = False) -> str:
        return f"{parcel.sku} is on its way"

    @activity
    async def track(self, code: str) -> str:
        return f"{code} is lost"


@workflow
async def order(sku: str) -> str:
    """A thread, a retry or none, a sleep in memory and one out of it."""
    reservation = await reserve(sku)
    payment = await charge("4000")
    await asyncio.sleep(5)
    shipped = await Carrier.ship(Parcel(sku, 100), express=True)
    await asyncio.sleep(86_400)
    return f"{reservation}, {payment}, {shipped}"


@workflow
async def approval() -> str:
    return "approved" if await approve.wait() else "declined"


@workflow
async def family(names: list[str]) -> list[str]:
    return await asyncio.gather(*(run_child(order, name) for name in names))


@job
async def letter(to: str) -> str:
    return f"dear {to}"


app = App(
    workflows=[order, approval],
    activities=[reserve, charge, Carrier()],
    jobs=[letter],
    schedules=[Schedule("daily", every(86_400), letter, "all")],
)
