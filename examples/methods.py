"""Activities with something in their hands: methods of an instance that is given to the worker. Nothing is global.

The same worker as a process: `batuta worker --app methods:app` in this folder.

Prints:
    paid 25.00 from account A-1, balance 75.00
"""

import asyncio
from decimal import Decimal
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import App, activity, connect, workflow


class Bank:
    """Whatever it needs (a connection pool, a channel, a key) is handed to it here."""

    def __init__(self, balances: dict[str, Decimal]) -> None:
        self._balances = balances

    @activity
    async def debit(self, account: str, amount: Decimal) -> Decimal:
        self._balances[account] -= amount
        return self._balances[account]


@workflow
async def pay(account: str, amount: Decimal) -> str:
    balance = await Bank.debit(account, amount)  # through the class: the worker has the instance
    return f"paid {amount} from account {account}, balance {balance}"


def app() -> App:
    return App(workflows=[pay], activities=[Bank({"A-1": Decimal("100.00")})])


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'methods.db'}") as batuta:
        parts = app()
        async with batuta.worker(workflows=parts.workflows, activities=parts.activities):
            handle = await batuta.start(pay, "A-1", Decimal("25.00"))
            print(await handle.result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
