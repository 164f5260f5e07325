"""An activity that a person answers. While it waits, its run takes no memory and its worker may be gone.

Prints:
    asked for o-7
    the worker is gone, the question is not
    o-7 was approved by Ada
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import CompleteLater, RunState, activity, activity_info, connect, workflow

inbox: asyncio.Queue[str] = asyncio.Queue()


@activity(timeout=7 * 86_400)
async def ask_manager(order: str) -> str:
    print(f"asked for {order}")
    await inbox.put(activity_info().token)  # a mail with a link, say
    raise CompleteLater


@workflow
async def purchase(order: str) -> str:
    manager = await ask_manager(order)
    return f"{order} was approved by {manager}"


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'answer.db'}") as batuta:
        async with batuta.worker(workflows=[purchase], activities=[ask_manager]):
            handle = await batuta.start(purchase, "o-7")
            token = await inbox.get()
        assert (await handle.describe()).state is RunState.WAITING
        print("the worker is gone, the question is not")
        await batuta.complete(token, "Ada")  # what the page behind the link does
        async with batuta.worker(workflows=[purchase], activities=[ask_manager]):
            print(await handle.result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
