"""Sample workflows for a first look: orders, an approval, a fan-out, a schedule, a job that becomes a dead letter, a
partner behind a breaker, messages of the bus."""

from __future__ import annotations

import asyncio
from typing import Any

from batuta import App, Retry, Schedule, Signal, activity, bus, every, job, publish, random, run_child, workflow
from batuta.errors import Failed
from batuta.flows.workflow import Flows
from batuta.resilience import breaker, partner_limit

decision = Signal("decision", bool)
BANK = [breaker("bank", failures=6, open_for=5), partner_limit("bank", rate="100/min", concurrency=10)]


class PaymentDeclined(Failed):
    """The bank said no."""


@activity
async def reserve(item: str, quantity: int) -> str:
    await asyncio.sleep(0.3)
    return f"{quantity} x {item}"


@activity(retry=Retry(attempts=4, first=0.5), gates=BANK)
async def charge(cents: int, luck: float) -> str:
    """One bank in five is slow to answer; the workflow decides what a refusal means."""
    await asyncio.sleep(0.4)
    if 0.2 < luck < 0.4:
        raise ConnectionError("the bank did not answer")
    return "declined" if luck < 0.2 else f"payment of {cents / 100:.2f}"


@activity
async def release(reservation: str) -> str:
    await asyncio.sleep(0.2)
    return f"gave back {reservation}"


@activity
async def ship(reservation: str) -> str:
    await asyncio.sleep(0.5)
    await bus.publish("shipments", {"what": reservation}, key=reservation)
    return f"shipped {reservation}"


@workflow
async def order(item: str, quantity: int, cents: int) -> str:
    """Reserve, charge, ship; a declined payment gives the goods back, and the run fails."""
    publish("stage", "reserving")
    reservation = await reserve(item, quantity)
    publish("stage", "charging")
    payment = await charge(cents, random().random())
    if payment == "declined":
        await release(reservation)
        raise PaymentDeclined(f"the payment of {cents / 100:.2f} was declined")
    publish("stage", "shipping")
    return await ship(reservation)


@workflow
async def approval(what: str, cents: int) -> str:
    """Waits for a person: send the signal `decision` with true or false."""
    publish("question", f"may {what} cost {cents / 100:.2f}?")
    return f"{what} is approved" if await decision.wait() else f"{what} is refused"


@activity
async def resize(picture: int) -> int:
    await asyncio.sleep(0.2 + picture % 5 / 10)
    return picture * picture


@workflow
async def page(first: int, pictures: int) -> int:
    """Many activities at once."""
    return sum(await asyncio.gather(*(resize(number) for number in range(first, first + pictures))))


@workflow
async def album(pages: int, pictures: int) -> int:
    """Many children at once."""
    return sum(await asyncio.gather(*(run_child(page, number * pictures, pictures) for number in range(pages))))


@job(retry=Retry(attempts=3, first=0.5))
async def notify(address: str) -> str:
    """Fails for an address that does not exist, and becomes a dead letter."""
    if "@" not in address:
        raise ValueError(f"{address!r} is no address")
    return f"sent to {address}"


@job
async def announce(message: bus.Message[dict[str, str]]) -> str:
    """Gets each message of the topic `shipments`."""
    await asyncio.sleep(0.1)
    return f"told the customer: {message.payload['what']} is on its way"


REMINDER: dict[str, Any] = {
    "name": "invoice reminder",
    "description": "Reminds of large invoices that are overdue, after a person has agreed.",
    "trigger_type": "invoice_overdue",
    "steps": [
        {
            "key": "large",
            "type": "condition",
            "config": {"rule": {"field": "amount", "operator": "greater_than", "value": 100}, "onFalse": "done"},
        },
        {
            "key": "ask",
            "type": "approval",
            "config": {"title": "Remind {{ event.payload.customer }}?", "onRejected": "done"},
        },
        {"key": "notify", "type": "action", "config": {"actionType": "webhook"}},
        {"key": "done", "type": "end"},
    ],
}
"""A flow: its large invoice waits on the page of approvals."""
_FLOWS = Flows().parts()


async def begin(client: Any) -> None:
    """Something of each kind to look at."""
    for item, quantity, cents in (("lamp", 2, 4_990), ("chair", 1, 12_900), ("table", 1, 39_900)):
        await client.start(order, item, quantity, cents, id=f"order-{item}", tags={"shop": "tour"})
    await client.start(approval, "a new oven", 89_900, id="approval-oven")
    await client.start(album, 3, 8, id="album-holiday")
    flow = await client.flows.create(REMINDER)
    await client.flows.publish(flow.id)
    for customer, amount in (("Ana", 2_500), ("Rui", 50)):
        await client.flows.events.send("invoice_overdue", {"customer": customer, "amount": amount}, source="tour")
    await client.enqueue(notify, "nobody", id="notify-unknown")
    await client.enqueue(notify, "ann@example.com", id="notify-ann")


APP = App(
    workflows=[order, approval, album, page, *_FLOWS["workflows"]],
    activities=[reserve, charge, release, ship, resize, *_FLOWS["activities"]],
    jobs=[notify],
    subscriptions=[bus.subscribe("shipments", announce)],
    schedules=[Schedule("orders", every(15), order, "cup", 6, 1_990, tags={"shop": "tour"})],
)
