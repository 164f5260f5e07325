"""A cache in front of a slow partner: one call for many readers. Redis if BATUTA_REDIS_URL is set, else this process.

Prints:
    100 readers, 1 call
"""

import asyncio
import os

from batuta.cache import Entity, open_cache

calls: list[str] = []


async def ask_partner() -> str:
    calls.append("status")
    await asyncio.sleep(0.2)  # it is slow
    return "ACTIVE"


async def main() -> None:
    async with await open_cache(os.environ.get("BATUTA_REDIS_URL", "memory://")) as cache:
        status = Entity(cache, "shop:status:{order}", str, lifetime=60)
        found = await asyncio.gather(*(status.get_or_load(ask_partner, order=7) for _ in range(100)))
        print(f"{len(found)} readers, {len(calls)} call")
        await status.delete(order=7)


if __name__ == "__main__":
    asyncio.run(main())
