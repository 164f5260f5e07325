"""A namespace with a breaker and two limits."""

import asyncio

from batuta import Batuta, Rate
from batuta.resilience import Bucket, breaker, partner_limit

GATES = (
    breaker("bank"),
    partner_limit("orders", rate="5/min"),
    partner_limit("balance", bucket=Bucket(10, Rate(6, 60))),
)


async def declare(client: Batuta) -> None:
    """Pass them once, and wait until the store knows them."""
    async with client.gates(*GATES):
        pass
    async with asyncio.timeout(40):
        while len([*await client.breakers.list(), *await client.limits.list()]) < len(GATES):
            await asyncio.sleep(0.01)
