"""Attempts and waits are data. The key of a call stays the same over all its attempts: pass it on.

Prints:
    attempt 1 failed
    attempt 2 failed
    attempt 3 went well, with the same key every time: True
    no retry: LookupError: there is no account 7
"""

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

from batuta import Retry, activity, activity_info, connect, workflow

keys: list[str] = []


@activity(retry=Retry(attempts=5, first=0.05, factor=2.0, longest=1.0), timeout=10)
async def flaky() -> str:
    info = activity_info()
    keys.append(info.key)
    if info.attempt < 3:
        print(f"attempt {info.attempt} failed")
        raise ConnectionError("the partner does not answer")
    return f"attempt {info.attempt} went well, with the same key every time: {len(set(keys)) == 1}"


@activity(retry=Retry(attempts=5, never=["LookupError"]))
async def find_account(number: int) -> str:
    raise LookupError(f"there is no account {number}")


@workflow
async def patient() -> str:
    return await flaky()


@workflow
async def impatient() -> str:
    try:
        return await find_account.with_options(timeout=5)(7)
    except LookupError as error:  # the same error that the activity raised
        return f"no retry: {type(error).__name__}: {error}"


async def main(folder: Path) -> None:
    async with connect(f"sqlite:///{folder / 'retries.db'}") as batuta:
        async with batuta.worker(workflows=[patient, impatient], activities=[flaky, find_account]):
            print(await (await batuta.start(patient)).result())
            print(await (await batuta.start(impatient)).result())


if __name__ == "__main__":
    with TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))
