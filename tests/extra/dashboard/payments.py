"""A payment company for pictures of the dashboard, and an hour of its past, made in virtual time."""

from __future__ import annotations

import asyncio
import random as chance
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import batuta
from batuta import App, Queue, Retry, Schedule, Signal, Update, activity, cron, every, job, run_child, workflow
from batuta.authoring.client.acting import acting_as
from batuta.bus import Message, subscribe
from batuta.client import Batuta
from batuta.clock import SECOND, SystemClock
from batuta.engine.backend.middleware import backend_for
from batuta.errors import Failed
from batuta.flows.workflow import Flows
from batuta.journal.retention import Retention
from batuta.resilience import breaker, partner_limit
from batuta.testing.stores import sqlite_store
from batuta.testing.virtualtime import VirtualClock, VirtualLoop

PAST = 3_566.0
"""Seconds that the past lasts."""
SHOWN = "order-20931"
"""The run that pictures show."""


class CardNetworkTimeout(Exception):
    """The card network did not answer in time."""


class IssuerUnavailable(Exception):
    """The bank of the card is away."""


class PaymentDeclined(Failed):
    """The bank of the card said no."""


@dataclass
class Review:
    """What a person decided about an order."""

    approved: bool
    reason: Literal["looks fine", "known customer", "fraud"] = "looks fine"
    note: str = ""


review = Signal("review", Review)
delivered = Signal("delivered", str)
change_address = Update("change_address", str)
_tries: dict[str, int] = {}
CARDS = [
    breaker("card network", failures=8, open_for=30),
    partner_limit("card network", rates=["60/s", "1000/h"], concurrency=20),
]
ISSUER = [breaker("issuer", failures=2, open_for=300), partner_limit("issuer", rate="30/min")]


@activity
async def reserve_funds(order: str, cents: int) -> str:
    await asyncio.sleep(chance.uniform(0.2, 1.2))
    return f"hold-{order.rpartition('-')[2]}"


@activity(retry=Retry(attempts=5, first=1.5, jitter=0), gates=CARDS)
async def charge_card(order: str, cents: int) -> str:
    tries = _tries[order] = _tries.get(order, 0) + 1
    await asyncio.sleep(chance.uniform(0.8, 1.6))
    if (order == SHOWN and tries < 3) or chance.random() < 0.06:
        raise CardNetworkTimeout("no answer from the card network within 1.2 s")
    if chance.random() < 0.02:
        raise PaymentDeclined(f"the bank declined {cents / 100:.2f}")
    return f"ch_{chance.randrange(16**8):08x}"


@activity(retry=Retry(attempts=20, first=4, longest=90))
async def notify_merchant(order: str, charge: str) -> str:
    await asyncio.sleep(chance.uniform(0.1, 0.5))
    if order == SHOWN:
        raise ConnectionError("https://merchant.example/hooks answered 502")
    return "200 OK"


@workflow
async def ship(order: str) -> str:
    return f"delivered to {await delivered.wait()}"


@workflow
async def checkout(order: str, cents: int) -> str:
    """Reserve, charge, review what is expensive, ship and tell the merchant."""
    batuta.publish("stage", "paying")

    @change_address.handle
    async def change(street: str) -> str:
        return f"{order} goes to {street}"

    hold = await reserve_funds(order, cents)
    charge = await charge_card(order, cents)
    if cents > 100_000:
        await asyncio.sleep(10)
        batuta.publish("stage", "waiting for a review")
        await review.wait()
        batuta.publish("stage", "shipping")
        await asyncio.gather(run_child(ship, order, id=f"{batuta.info().id}-parcel"), notify_merchant(order, charge))
    else:
        await notify_merchant(order, charge)
    return f"{charge} for {hold}"


@activity(retry=Retry(attempts=2, first=2, jitter=0), gates=ISSUER)
async def pay_back(charge: str) -> str:
    await asyncio.sleep(chance.uniform(0.5, 3))
    if chance.random() < 0.3:
        raise IssuerUnavailable("the issuer of the card is not reachable")
    return f"paid back {charge}"


@workflow
async def refund(charge: str) -> str:
    return await pay_back(charge)


@activity
async def transfer(account: int) -> int:
    await asyncio.sleep(0.4 + account % 7 / 5)
    return account * 13 % 9_000


@workflow
async def payout_batch(accounts: int) -> int:
    return sum(await asyncio.gather(*(transfer(account) for account in range(accounts))))


@workflow
async def pix_claim(key: str) -> str:
    """Seven days for the owner of the key to object."""
    await asyncio.sleep(7 * 86_400)
    return f"{key} moved"


@activity
async def compare_ledgers() -> int:
    await asyncio.sleep(chance.uniform(20, 45))
    return 0


@workflow
async def reconcile() -> int:
    return await compare_ledgers()


@job(queue="webhooks", retry=Retry(attempts=3, first=2, jitter=0))
async def send_webhook(merchant: str, number: int) -> str:
    await asyncio.sleep(chance.uniform(0.05, 0.6))
    if merchant == "bolt" and chance.random() < 0.5:
        raise ConnectionError("https://bolt.example/hooks answered 502")
    return "200 OK"


@job(queue="psp-acme")
async def settle(batch: str) -> str:
    return f"settled {batch}"


async def book(message: Message[dict[str, Any]]) -> None:
    """In the ledger."""


async def score(message: Message[dict[str, Any]]) -> None:
    """How risky a payment is."""
    if message.payload["cents"] > 500_000:
        raise ValueError("the model knows no such amounts")


DISPUTE: dict[str, Any] = {
    "name": "dispute",
    "description": "Pays small disputes back at once; a person decides about the others.",
    "trigger_type": "dispute_opened",
    "steps": [
        {
            "key": "large",
            "type": "condition",
            "config": {"rule": {"field": "amount", "operator": "greater_than", "value": 100}, "onFalse": "tell"},
        },
        {
            "key": "ask",
            "type": "approval",
            "config": {"title": "Pay {{ event.payload.amount }} back to {{ event.payload.customer }}?"},
        },
        {"key": "wait", "type": "delay", "config": {"seconds": 2}},
        {"key": "tell", "type": "action", "config": {"actionType": "webhook"}},
        {"key": "done", "type": "end"},
    ],
}
_FLOWS = Flows().parts()

APP = App(
    workflows=[checkout, ship, refund, payout_batch, pix_claim, reconcile, *_FLOWS["workflows"]],
    activities=[
        *(reserve_funds, charge_card, notify_merchant, pay_back, transfer, compare_ledgers),
        *_FLOWS["activities"],
    ],
    jobs=[send_webhook, settle],
    queues=["default", Queue("webhooks", concurrency=20, key_concurrency=2), Queue("psp-acme", rate="100/s")],
    schedules=[
        Schedule("ledgers", every(600), reconcile),
        Schedule("payouts", cron("*/20 * * * *"), payout_batch, 40),
        Schedule("statements", cron("0 6 * * 1-5", zone="America/Sao_Paulo"), payout_batch, 12),
    ],
    subscriptions=[
        subscribe("payments.settled", book, name="ledger"),
        subscribe("payments.settled", score, name="risk", retry=Retry(attempts=2, first=0.1)),
        subscribe("claims.opened", book, name="claims-ledger"),
    ],
    webhooks=True,
    retention=[Retention("30d"), Retention("3d", workflow="send_webhook")],
)


def make_past(file: Path) -> None:
    """An hour of it in a database, up to now."""
    began = SystemClock().now() - round(PAST * SECOND)
    with asyncio.Runner(loop_factory=lambda: VirtualLoop(VirtualClock(began))) as runner:
        runner.run(_live_for_an_hour(file))


async def _live_for_an_hour(file: Path) -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    chance.seed(7)
    store = sqlite_store(file, loop.clock, virtual=True)
    await store.migrate()
    options: dict[str, Any] = {name: getattr(APP, name) for name in APP.__struct_fields__}
    async with Batuta(backend_for(store, loop.clock), store.open, store.close) as client:
        async with client.worker(**options, grace=0.5):
            for number in range(9):
                await client.start(pix_claim, f"+55 11 9{number:04}-1234", id=f"claim-{7_000 + number}")
            await client.quotas.set("starts_per_second", 500, burst=1_000)
            await client.quotas.set("open_runs", 50)
            await _disputes(client)
            await _traffic(client)
            await _operators(client)
            await asyncio.sleep(12)


async def _traffic(client: Batuta) -> None:
    """Orders, refunds and webhooks, with a crowd in the middle."""
    number = 20_000
    for minute in range(58):
        crowd = 2.2 if 26 <= minute <= 38 else 1.0
        for _ in range(round(chance.uniform(4, 8) * crowd)):
            number += 1
            cents = chance.randrange(900, 90_000)
            tags = {"merchant": chance.choice(("acme", "bolt", "crane"))}
            await client.start(checkout, f"order-{number}", cents, id=f"order-{number}", tags=tags)
            if chance.random() < 0.5:
                merchant = tags["merchant"]
                await client.enqueue(send_webhook, merchant, number, id=f"hook-{number}", key=merchant)
        if minute % 3 == 0:
            await client.start(refund, f"ch_{number}", id=f"refund-{number}")
        await asyncio.sleep(60)
    await asyncio.sleep(48)
    tags = {"merchant": "acme", "amount": "1,999.00"}
    order = await client.start(checkout, SHOWN, 199_900, id=SHOWN, tags=tags)
    await asyncio.sleep(26)
    await order.signal(review, Review(approved=True, reason="known customer"))


async def _disputes(client: Batuta) -> None:
    flow = await client.flows.create(DISPUTE)
    await client.flows.publish(flow.id)
    for customer, amount in (("Ana", 1_250), ("Rui", 40), ("Eva", 320), ("Tom", 75)):
        await client.flows.events.send("dispute_opened", {"customer": customer, "amount": amount}, source="acquirer")


async def _operators(client: Batuta) -> None:
    """What people did: it stands in the audit log."""
    with acting_as("ada", "the acquirer has an incident"):
        await client.pause_queue("psp-acme", "the acquirer has an incident")
        await client.breakers.open("issuer", "the acquirer has an incident")
    for number in range(3):
        await client.start(refund, f"ch_{number}", id=f"refund-{20_940 + number}")
    with acting_as("grace"):
        await client.limit_queue("webhooks", rate="200/min")
        await (await client.get("claim-7003")).pause("waits for the legal department")
        await (await client.get("claim-7008")).cancel("withdrawn by the owner")
        await (await client.get(SHOWN)).fork(id=f"{SHOWN}-again", at=1)
    for number in range(6):
        await client.enqueue(settle, f"batch-{number}", id=f"settle-{number}")
