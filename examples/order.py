"""An order that is undone by plain `except` when something fails. The undoing is as durable as the rest.

Prints:
    order-1: shipped
    order-2: failed: CardDeclined: card 0000 was declined
    order-2 did: reserve, charge (failed), release
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import NonRetryable, RunFailed, activity, connect, workflow


class CardDeclined(NonRetryable):
    """The bank said no, and would say no again."""


@dataclass
class Order:
    item: str
    card: str


@activity
async def reserve(item: str) -> str:
    return f"reservation of {item}"


@activity
async def release(reservation: str) -> None: ...


@activity
async def charge(card: str) -> None:
    if card == "0000":
        raise CardDeclined(f"card {card} was declined")


@workflow
async def order(order: Order) -> str:
    reservation = await reserve(order.item)
    try:
        await charge(order.card)
    except Exception:
        await release(reservation)
        raise
    return "shipped"


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'order.db'}") as batuta:
        async with batuta.worker(workflows=[order], activities=[reserve, release, charge]):
            good = await batuta.start(order, Order("lamp", "1234"), id="order-1")
            bad = await batuta.start(order, Order("chair", "0000"), id="order-2")
            print(f"order-1: {await good.result()}")
            try:
                await bad.result()
            except RunFailed as error:
                print(f"order-2: failed: {type(error.__cause__).__name__}: {error.__cause__}")
            steps = [line for line in await bad.journal() if line.body.name]
            names = [line.body.name + (" (failed)" if line.kind == "activity_failed" else "") for line in steps]
            print(f"order-2 did: {', '.join(names)}")


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
