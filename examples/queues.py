"""A queue that calls partners: each of them one call at a time, all together at most four, over all workers.

Prints:
    12 calls, at most 1 at once per partner: True, at most 4 in all: True
    paused (the partner is down), 1 waits
    called acme
"""

import asyncio
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import Queue, connect, job

now: Counter[str] = Counter()
most: Counter[str] = Counter()


@job(queue="partners")
async def call(partner: str) -> str:
    for counted in (partner, "all"):
        now[counted] += 1
        most[counted] = max(most[counted], now[counted])
    await asyncio.sleep(0.01)
    for counted in (partner, "all"):
        now[counted] -= 1
    return f"called {partner}"


async def main(folder: Path) -> None:
    url = f"sqlite:///{folder / 'queues.db'}"
    partners = Queue("partners", concurrency=4, key_concurrency=1)
    async with connect(url) as batuta, connect(url) as other:
        async with batuta.worker(jobs=[call], queues=[partners]), other.worker(jobs=[call], queues=["partners"]):
            names = ["acme", "bolt", "core", "dyno", "echo", "flux"] * 2
            batch = await batuta.enqueue_many([call.call(name).with_options(key=name) for name in names])
            done = [await handle.result() for handle in batch]
            alone = all(most[name] == 1 for name in names)
            print(f"{len(done)} calls, at most 1 at once per partner: {alone}, at most 4 in all: {most['all'] <= 4}")

            await batuta.pause_queue("partners", "the partner is down")
            handle = await batuta.enqueue(call, "acme", key="acme")
            for queue in await batuta.queues():
                if queue.paused:
                    print(f"paused ({queue.reason}), {queue.ready} waits")
            await batuta.resume_queue("partners")
            print(await handle.result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
