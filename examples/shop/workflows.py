"""What the shop's workers run: `batuta worker --app workflows`."""

from dataclasses import dataclass

from batuta import App, NonRetryable, Signal, activity, publish, workflow

paid = Signal("paid", str)


class SoldOut(NonRetryable):
    """There is none left, and there will be none in a minute either."""


@dataclass
class Order:
    item: str
    count: int = 1


@activity
async def reserve(order: Order) -> str:
    if order.item == "unicorn":
        raise SoldOut("unicorns are sold out")
    return f"{order.count} x {order.item}"


@activity
async def ship(parcel: str, receipt: str) -> str:
    return f"shipped {parcel}, paid by {receipt}"


@workflow(fails=[SoldOut])
async def order(order: Order) -> str:
    """Reserves, waits up to a day for the payment, ships."""
    parcel = await reserve(order)
    publish("reserved", parcel)
    receipt = await paid.wait(timeout=86_400)
    return await ship(parcel, receipt)


app = App(workflows=[order], activities=[reserve, ship])
