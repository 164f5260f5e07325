"""A stage for chaos cases: the ledger's process, and places on both stores."""

import asyncio
import random
import shutil
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from chaos.calls import Begin
from chaos.case import Case
from chaos.checker import Checker, read_journals
from chaos.places import Place, Places
from chaos.process import Crew
from chaos.report import Tally
from chaos.stage import Stage

JOBS = 6
SEED = 20


@pytest.fixture
def stage(tmp_path: Path, postgres_url: str) -> Iterator[Stage]:
    with Crew(tmp_path) as crew, Places(tmp_path, postgres_url) as places:
        yield Stage(crew, places, JOBS, chance=random.Random(SEED))


@pytest.fixture
def tally() -> Tally:
    return Tally("a seeded part")


def assert_holds(tally: Tally) -> None:
    """Nothing was lost, committed twice or otherwise wrong, and `verify` agreed after every case."""
    assert not tally.violations, "\n".join(tally.violations)
    assert (tally.lost, tally.twice, tally.storms, tally.unverified) == (0, 0, 0, 0)
    assert tally.verified == tally.cases > 0


# -- finished cases, to be tampered with


def finished_case(directory: Path, begin: Sequence[Begin]) -> Path:
    """Let one worker do these runs, undisturbed. The directory."""

    async def work(crew: Crew) -> None:
        async with Case("checked", await Places(directory).fresh("sqlite"), crew) as case:
            worker = case.worker(begin=list(begin), leave=True)
            assert await worker.ended(30) == 0, worker.log()

    with Crew(directory) as crew:
        asyncio.run(work(crew))
    return directory


@asynccontextmanager
async def copied_case(finished: Path, directory: Path) -> AsyncIterator[Case]:
    """A copy of a finished case."""
    with Crew(directory) as crew:
        shutil.copy(finished / "ledger" / "checked.jsonl", crew.books)
        shutil.copy(finished / "case1.db", directory)
        place = Place("sqlite", f"sqlite:///{directory / 'case1.db'}", "default")
        async with Case("checked", place, crew, answers=False) as case:
            yield case


async def judged(case: Case) -> Tally:
    tally = Tally("judged")
    Checker(case, tally, await read_journals(case)).check()
    return tally


def tamper(case: Case, statement: str) -> None:
    """Change the store behind everybody's back."""
    connection = sqlite3.connect(case.place.url.removeprefix("sqlite:///"))
    with connection:
        assert connection.execute(statement).rowcount > 0
    connection.close()
