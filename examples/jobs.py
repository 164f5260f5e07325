"""Plain jobs: enqueue one, one later, at most one of a kind, and many with a callback.

Prints:
    sent "welcome" to ada
    bob is asked once, however often he is enqueued: True
    the newsletter reached 3 of 4, not: letter-2
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import NonRetryable, Retry, batch_info, connect, job


@job(retry=Retry(attempts=5, first=0.01), timeout=30)
async def send(name: str, text: str) -> str:
    if name == "nobody":
        raise NonRetryable("no such address")
    return f'sent "{text}" to {name}'


@job
async def report(what: str) -> str:
    batch = await batch_info()
    return f"the {what} reached {batch.completed} of {batch.total}, not: {', '.join(batch.not_completed)}"


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'jobs.db'}") as batuta, batuta.worker(jobs=[send, report]):
        handle = await batuta.enqueue(send, "ada", "welcome", priority=10, tags={"kind": "welcome"})
        print(await handle.result())

        first = await batuta.enqueue(send, "bob", "how was it?", unique="bob", delay=3600)
        again = await batuta.enqueue(send, "bob", "how was it?", unique="bob")
        print(f"bob is asked once, however often he is enqueued: {first.run_id == again.run_id}")

        names = ["ada", "bob", "nobody", "eve"]
        calls = [send.call(name, "news").with_options(id=f"letter-{n}") for n, name in enumerate(names)]
        batch = await batuta.enqueue_many(calls, on_done=report.call("newsletter"))
        assert batch.done is not None
        print(await batch.done.result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
