"""Workflows and jobs for the tests of the server."""

import batuta
from batuta import App, Query, Retry, Signal, Update, activity, job, run_child, workflow

limit = Signal("limit", int)
put = Update("put", int)
size = Query("size", int)


@activity(retry=Retry(attempts=1))
async def charge(amount: int) -> str:
    if amount < 0:
        raise ValueError(f"cannot charge {amount}")
    return f"charged {amount}"


@workflow
async def order(amount: int) -> str:
    batuta.publish("amount", amount)
    return await charge(amount)


@workflow
async def family(amount: int) -> str:
    return await run_child(order, amount, id=f"child-{amount}")


@workflow
async def basket() -> list[str]:
    items: list[str] = []

    @put.handle
    def append(item: str) -> int:
        items.append(item)
        return len(items)

    @size.handle
    def count() -> int:
        return len(items)

    return items[: await limit.wait()]


AWAY = {"nobody"}


@job(retry=Retry(attempts=1))
async def send(to: str) -> str:
    if to in AWAY:
        raise ValueError("no such address")
    return f"sent to {to}"


APP = App(workflows=[order, family, basket], activities=[charge], jobs=[send])
