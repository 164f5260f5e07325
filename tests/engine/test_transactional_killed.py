"""Transactional activities under kills, on both databases: rows that they wrote = entries of their results, always."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from batuta import activity, failpoints, job, sync, transaction, workflow
from batuta.journal.entries import EntryKind, decode_body
from batuta.journal.records import RunFilter, RunKind
from batuta.testing import crash_sweep
from batuta.verify import verify
from tests.databases import Databases
from tests.engine.till import PATIENCE, Till, go, till_on
from tests.long import LONG

OURS = {
    "transaction.begun",
    "transaction.turned",
    "transaction.written",
    "transaction.committed",
    "transaction.durable",
}
COUNT = 6


@activity(transactional=True)
def write(number: int) -> int:
    connection = transaction().connection
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id INTEGER)")
    connection.execute("INSERT INTO orders VALUES (?)", (number,))
    transaction().enqueue(note, number, id=f"note-{number}")
    return number


@activity(transactional=True)
def count() -> list[int]:
    return [row[0] for row in transaction().connection.execute("SELECT id FROM orders ORDER BY id")]


@job
async def note(number: int) -> int:
    return number


@activity
async def plain(number: int) -> int:
    return number


@workflow
async def orders() -> list[int]:
    await write(1)
    await plain(2)
    await asyncio.gather(write(3), plain(4), write(5))
    return await count()


def test_a_worker_dies_at_every_point_on_sqlite() -> None:
    swept = crash_sweep(orders, activities=[write, plain, count], jobs=[note], store="sqlite")
    assert swept.ending == [1, 3, 5]
    assert {point.site for point in swept.points} >= OURS


def test_a_worker_dies_at_every_point_in_memory() -> None:
    @activity(transactional=True)
    async def sends(number: int) -> int:
        transaction().enqueue(note, number, id=f"note-{number}")
        return number

    @workflow
    async def twice() -> int:
        return await sends(1) + await sends(2)

    swept = crash_sweep(twice, activities=[sends], jobs=[note])
    assert swept.ending == 3
    assert {point.site for point in swept.points} >= OURS


# -- in real time, on both databases


class Killed(BaseException):
    """What a dying worker's code sees."""


Passage = tuple[str, int]


class Killer:
    """Kills the worker at given passages of failpoints, counted over all sites; another takes over. With `tried`, at
    the first passage that is not among these."""

    def __init__(self, moments: set[int], tried: set[Passage] | None) -> None:
        self.moments, self.tried = moments, tried
        self.passed: list[str] = []
        self.killed = False
        self.worker: Any = None
        self._thread = os.getpid()

    def pass_by(self, site: str) -> None:
        session = None if self.worker is None else self.worker.session
        if session is None or session.over or site.startswith(("lease", "stop", "claim", "enqueue", "recover")):
            return
        self.passed.append(site)
        if len(self.passed) in self.moments or self._is_new(site, self.passed.count(site)):
            self.killed = True
            session.abandon()
            raise Killed(site)

    def _is_new(self, *passage: Any) -> bool:
        if self.tried is None or self.killed or passage in self.tried or (passage[1] > 1 and not LONG):
            return False
        self.tried.add(passage)
        return True


async def live(till: Till, *, moments: set[int] | None = None, tried: set[Passage] | None = None) -> Killer:
    """One life of a run, with worker after worker."""
    killer = Killer(moments or set(), tried)
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    book = till.activity("book", lambda number: transaction().enqueue(note, number, id=f"note-{number}"))

    @workflow
    async def books() -> int:
        await book(1)
        await asyncio.gather(book(2), plain(3), book(4), go.wait())
        return await book(5)

    failpoints.observe(killer.pass_by)
    try:
        async with asyncio.timeout(PATIENCE):
            handle = await till.client.start(books, id="b", signal=(go, 1))
            while (await handle.describe()).closed_at is None:
                async with till.worker(books, book, plain, heartbeat=0.05) as killer.worker:
                    session = killer.worker.session
                    while not session.over and (await handle.describe()).closed_at is None:
                        await asyncio.sleep(0.002)
                    await killer.worker.stop(0.0)
                await till.store.retire(session.info.worker_id)
    finally:
        failpoints.arm()
    await check(till, [books])
    return killer


async def check(till: Till, workflows: Sequence[Any]) -> None:
    found: list[int] = []
    for run in (await till.store.list_runs(RunFilter(kind=RunKind.WORKFLOW), None, 1000)).runs:
        entries = await till.store.journal(run.run_id)
        answers = [decode_body(entry) for entry in entries if entry.kind is EntryKind.ACTIVITY_DONE]
        found += [int(bytes(one.value)) - 1 for one in answers if one.name == "book"]  # type: ignore[arg-type]  # it has one
    assert await till.rows() == sorted(found) == [1, 2, 4, 5]
    notes = await till.store.list_runs(RunFilter(kind=RunKind.JOB), None, 1000)
    assert sorted(run.id for run in notes.runs) == ["note-1", "note-2", "note-4", "note-5"]
    report = await verify(till.store, workflows)
    assert not report.violations, report.violations


async def sweep(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> set[str]:
    """A worker dies at the first passage of each failpoint, of one life each. Which failpoints there are."""
    tried: set[Passage] = set()
    while True:
        with database(kind, request, tmp_path / f"{len(tried)}.db") as url:
            async with till_on(kind, url) as till:
                killer = await live(till, tried=tried)
        if not killer.killed:
            return {site for site, _ in tried}


@contextmanager
def database(kind: str, request: pytest.FixtureRequest, file: Path) -> Iterator[str]:
    """One for each life."""
    if kind == "sqlite":
        yield f"sqlite:///{file}"
        return
    databases: Databases = request.getfixturevalue("postgres_databases")
    url = databases.take()
    yield url
    databases.give_back(url)


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("real_time")
async def test_rows_are_entries_wherever_a_worker_is_killed_on_postgresql(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert await sweep("postgres", request, tmp_path) >= OURS


@pytest.mark.timeout(300)
@pytest.mark.usefixtures("real_time")
async def test_rows_are_entries_wherever_a_worker_is_killed_on_sqlite(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    assert await sweep("sqlite", request, tmp_path) >= OURS


@pytest.mark.usefixtures("real_time")
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("every", [17, 23])
async def test_rows_are_entries_when_workers_are_killed_again_and_again(
    kind: str, every: int, request: pytest.FixtureRequest
) -> None:
    async with till_on(kind, request.getfixturevalue(f"{kind}_url")) as till:
        await live(till, moments=set(range(every, 2_000, every)))


# -- kill -9

WORKS = """
import asyncio, sys
from batuta import activity, connect, transaction, workflow

@activity(name="book", transactional=True)
def plain(number: int) -> int:
    transaction().connection.execute("INSERT INTO orders VALUES (?)", (number,))
    return number

@activity(name="book", transactional=True)
async def awaited(number: int) -> int:
    await transaction().connection.execute("INSERT INTO orders VALUES ($1)", number)
    return number

book = plain if sys.argv[1].startswith("sqlite") else awaited

@workflow
async def books(count: int) -> int:
    for number in range(count):
        await book(number)
    return count

async def main() -> None:
    async with connect(sys.argv[1]) as client, client.worker(workflows=[books], activities=[book]):
        handle = await client.start(books, int(sys.argv[2]), id="b")
        await handle.result()

asyncio.run(main())
"""


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
@pytest.mark.parametrize("site", sorted(OURS))
def test_rows_are_entries_after_a_kill_of_the_process(
    kind: str, site: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    with sync.connect(url) as client:
        client.count()
        file = url.removeprefix("sqlite:///")
        with psycopg.connect(url) if kind == "postgres" else closing(sqlite3.connect(file)) as own:
            own.execute("CREATE TABLE orders (id INTEGER)")
            own.commit()
        nth = 1 if site == "transaction.written" and kind == "postgres" else 3
        killed = _work(url, f"{site}:{nth}:kill")
        assert killed.returncode == -signal.SIGKILL, killed.stderr
        assert _rows(kind, url) == list(range(_entries(client)))
        monkeypatch.setattr(sys, "argv", ["", url, str(COUNT)])
        exec(WORKS, {"__name__": "__main__"})  # again, in this process
        assert _rows(kind, url) == list(range(COUNT)) == list(range(_entries(client)))


def _work(url: str, plan: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"BATUTA_FAILPOINT": plan}
    return subprocess.run(
        [sys.executable, "-c", WORKS, url, str(COUNT)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE * 2,
        check=False,
    )


def _entries(client: Any) -> int:
    lines = client.get("b").journal()
    return sum(line.kind is EntryKind.ACTIVITY_DONE for line in lines)


def _rows(kind: str, url: str) -> list[int]:
    file = url.removeprefix("sqlite:///")
    with psycopg.connect(url) if kind == "postgres" else closing(sqlite3.connect(file)) as own:
        return [row[0] for row in own.execute("SELECT id FROM orders ORDER BY id").fetchall()]
