"""The demo's workflow: an order of several activities, undone by plain `except` when something goes wrong."""

from __future__ import annotations

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from batuta.app import App
from batuta.authoring.activity.attempt import activity_info
from batuta.authoring.definitions import activity, workflow
from batuta.authoring.retry import Retry
from batuta.cli.demo.ledger import Ledger
from batuta.errors import NonRetryable

LEDGER = "DEMO_LEDGER"
"""The environment variable that tells a worker where the ledger is."""


@dataclass
class Order:
    item: str
    quantity: int
    cents: int
    card: str


class CardDeclined(NonRetryable):
    """The bank refused; it would refuse again."""


class Shop:
    """The world outside. Each step takes a moment, and is written to the ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @activity
    async def reserve(self, item: str, quantity: int) -> str:
        with self._ledger.witness():
            await asyncio.sleep(0.4)
            return f"{quantity} x {item}"

    @activity
    async def release(self, reservation: str) -> None:
        with self._ledger.witness():
            await asyncio.sleep(0.6)

    @activity
    async def charge(self, card: str, cents: int) -> str:
        with self._ledger.witness():
            await asyncio.sleep(0.5)
            if card.endswith("0000"):
                raise CardDeclined(f"card {card} was declined")
            return f"payment of {cents / 100:.2f}"

    @activity
    async def refund(self, payment: str) -> None:
        with self._ledger.witness():
            await asyncio.sleep(0.4)

    @activity
    async def pack(self, reservation: str) -> str:
        with self._ledger.witness():
            await asyncio.sleep(1.2)
            return f"parcel with {reservation}"

    @activity(retry=Retry(attempts=5, first=0.3))
    async def ship(self, parcel: str) -> str:
        with self._ledger.witness():
            await asyncio.sleep(0.3)
            if activity_info().attempt == 1:
                raise ConnectionError("the carrier does not answer")
            return "BR-4711"


@workflow
async def order(order: Order) -> str:
    """Reserve, charge, pack, ship; on any failure, undo the finished steps."""
    reservation = await Shop.reserve(order.item, order.quantity)
    try:
        payment = await Shop.charge(order.card, order.cents)
        try:
            parcel = await Shop.pack(reservation)
            await asyncio.sleep(0.3)  # durable: the van comes later
            tracking = await Shop.ship(parcel)
        except Exception:
            await Shop.refund(payment)
            raise
    except Exception:
        await Shop.release(reservation)
        raise
    return f"shipped as {tracking}"


def app() -> App:
    """For `batuta worker --app batuta.cli.demo.orders:app`."""
    return App(workflows=[order], activities=[Shop(Ledger(Path(os.environ[LEDGER])))])
