"""A long activity says how far it has come; the next attempt goes on from there.

Prints:
    attempt 1 begins at page 0
    attempt 2 begins at page 3
    copied 6 pages
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import Retry, activity, activity_info, connect, heartbeat, workflow


@activity(heartbeat=30, retry=Retry(attempts=3, first=0.05))
async def copy(pages: int) -> str:
    info = activity_info()
    first = info.details or 0
    print(f"attempt {info.attempt} begins at page {first}")
    for page in range(first, pages):
        await asyncio.sleep(0.01)
        heartbeat(page + 1)
        if page == 2 and info.attempt == 1:
            raise ConnectionError("the line went dead")
    return f"copied {pages} pages"


@workflow
async def backup(pages: int) -> str:
    return await copy(pages)


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'heartbeats.db'}") as batuta:
        async with batuta.worker(workflows=[backup], activities=[copy]):
            print(await (await batuta.start(backup, 6)).result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
