"""A run that people talk to: it is asked, told, updated and watched while it waits.

Prints:
    status: waiting for approval, 0 lines
    lines: 1
    lines: 2
    rejected: at least one, please
    published: {'lines': 2}
    result: 2 lines approved
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import Query, Signal, Update, UpdateRejected, activity, connect, publish, workflow

approve = Signal("approve", bool)
add_line = Update("add_line", int)
status = Query("status", str)


@activity
async def reserve(sku: str, count: int) -> str:
    return f"{count} x {sku}"


@workflow
async def order() -> str:
    lines: list[str] = []

    def some(sku: str, count: int) -> None:
        if count < 1:
            raise ValueError("at least one, please")

    @add_line.handle(validator=some)
    async def add(sku: str, count: int) -> int:
        lines.append(await reserve(sku, count))
        publish("lines", len(lines))
        return len(lines)

    status.handle(lambda: f"waiting for approval, {len(lines)} lines")
    try:
        approved = await approve.wait(timeout=7 * 24 * 3600)
    except TimeoutError:
        approved = False
    return f"{len(lines)} lines {'approved' if approved else 'declined'}"


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'orders.db'}") as batuta:
        async with batuta.worker(workflows=[order], activities=[reserve]):
            handle = await batuta.start(order, id="order-1")
            print("status:", await handle.query(status))
            for sku in ("tea", "cup"):
                print("lines:", await handle.update(add_line, sku, 1))
            try:
                await handle.update(add_line, "spoon", 0)
            except UpdateRejected as error:
                print("rejected:", error.__cause__)
            print("published:", await handle.published())
            await handle.signal(approve, True, message_id="the boss said so")
            print("result:", await handle.result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
