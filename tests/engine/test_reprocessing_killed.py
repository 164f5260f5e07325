"""A reprocessing that is killed in the middle and called again: each dead letter is begun anew once."""

# covers D-02
import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from batuta import Batuta, Retry, connect, job
from batuta.connect import store_for
from batuta.journal.dead_letters import LetterFilter
from batuta.journal.records import RunFilter
from batuta.verify import verify
from tests.engine.arena import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(120)]

LETTERS = 300
PATIENCE = 60.0
COMMAND = ("dead-letters", "reprocess", "--name", "send", "--rate", "1000", "--yes", "--json")

executed: Counter[int] = Counter()
works = [False]


@job(retry=Retry(attempts=1))
async def send(number: int) -> int:
    if not works[0]:
        raise ConnectionError(f"no mail for {number}")
    executed[number] += 1
    return number


async def reprocess(url: str, failpoint: str = "") -> "subprocess.CompletedProcess[str]":
    """The command, as a process of its own."""
    environment = os.environ | {"BATUTA_DATABASE_URL": url} | ({"BATUTA_FAILPOINT": failpoint} if failpoint else {})
    command = [sys.executable, "-m", "batuta", *COMMAND]
    return await asyncio.to_thread(
        subprocess.run, command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


async def give_up_all(client: Batuta) -> None:
    async with client.worker(jobs=[send]):
        await client.enqueue_many([send.call(number) for number in range(LETTERS)])

        async def all_are() -> bool:
            return await client.dead_letters.count() == LETTERS

        await until(all_are, PATIENCE)


@pytest.mark.parametrize(
    ("url", "site"), [("sqlite", "reprocess.before"), ("postgres", "reprocess.after")], indirect=["url"]
)
async def test_each_is_begun_anew_once(url: str, site: str, real_time: None) -> None:
    works[0] = False
    executed.clear()
    async with connect(url) as client:
        await give_up_all(client)
        killed = await reprocess(url, f"{site}:2:kill")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        left = await client.dead_letters.count()
        assert left == (LETTERS - 100 if site == "reprocess.before" else LETTERS - 200)
        again = await reprocess(url)
        assert again.returncode == 0, again.stderr
        assert f'"reprocessed":{left}' in again.stdout.replace(" ", "")
        works[0] = True
        async with client.worker(jobs=[send]):

            async def all_done() -> bool:
                return await client.count(kind="job", state="completed") == LETTERS

            await until(all_done, PATIENCE)
    assert executed == Counter(range(LETTERS))
    await each_has_one_successor(url)


async def each_has_one_successor(url: str) -> None:
    store = store_for(url)
    await store.open()
    try:
        letters = (await store.letters(LetterFilter(states=()), None, 1_000)).letters
        assert {letter.state for letter in letters} == {"reprocessed"}
        assert len({letter.successor for letter in letters}) == LETTERS
        assert await store.count_runs(RunFilter()) == 2 * LETTERS
        assert len(await store.audit()) == LETTERS
        report = await verify(store, patience=5)
        assert not report.violations, report.violations
    finally:
        await store.close()
