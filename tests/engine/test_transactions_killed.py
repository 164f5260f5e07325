"""Callers' transactions and other processes: who hears of them, and what is left when one is killed in the middle."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import asyncpg
import psycopg
import pytest

from batuta import connect, job, sync

PATIENCE = 30.0
pytestmark = pytest.mark.usefixtures("real_time")

LISTENS = """
import asyncio, sys
from batuta.connect import store_for

async def main(url):
    store, heard = store_for(url), asyncio.Queue()
    await store.open()
    store.listen(heard.put_nowait)
    if not url.startswith("sqlite"):
        while (await heard.get()).closed is not None:  # until it can hear
            pass
    print("listens", flush=True)
    while not (await heard.get()).due:
        pass
    print("due", flush=True)
    await store.close()

asyncio.run(main(sys.argv[1]))
"""

DIES = """
import os, signal, sqlite3, sys
import batuta.sync

url, place = sys.argv[1:]
with batuta.sync.connect(url) as client:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(place)
        with client.transaction(connection):
            connection.execute("INSERT INTO orders VALUES (1)")
            client.enqueue("double", 1, id="x", transaction=connection)
            os.kill(os.getpid(), signal.SIGKILL)
    else:
        import psycopg
        with psycopg.connect(url) as connection:
            connection.execute("INSERT INTO orders VALUES (1)")
            client.enqueue("double", 1, id="x", transaction=connection)
            os.kill(os.getpid(), signal.SIGKILL)
"""


@job
async def double(number: int) -> int:
    return 2 * number


@contextmanager
def process(program: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Ended at the end, whatever happens."""
    made = subprocess.Popen([sys.executable, "-c", program, *words], stdout=subprocess.PIPE, text=True)
    try:
        yield made
    finally:
        made.kill()
        made.communicate()


def said(by: subprocess.Popen[str]) -> str:
    assert by.stdout is not None
    return by.stdout.readline().strip()


async def test_another_process_is_woken_by_the_commit_on_postgresql(postgres_url: str) -> None:
    with process(LISTENS, postgres_url) as other:
        async with connect(postgres_url) as client:
            assert await asyncio.to_thread(said, other) == "listens"
            connection = await asyncpg.connect(postgres_url)
            async with connection.transaction():
                await client.enqueue(double, 1, transaction=connection)
            assert await asyncio.to_thread(said, other) == "due"
            await connection.close()


async def test_another_process_is_woken_by_the_commit_on_sqlite(sqlite_url: str, tmp_path: Path) -> None:
    async with connect(sqlite_url) as client:
        with process(LISTENS, sqlite_url) as other, closing(sqlite3.connect(tmp_path / "batuta.db")) as connection:
            assert await asyncio.to_thread(said, other) == "listens"
            async with client.transaction(connection):
                await client.enqueue(double, 1, transaction=connection)
            assert await asyncio.to_thread(said, other) == "due"


@pytest.mark.parametrize("kind", ["postgres", "sqlite"])
def test_nothing_is_left_of_a_caller_that_is_killed_before_its_commit(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url, file = request.getfixturevalue(f"{kind}_url"), str(tmp_path / "batuta.db")
    with sync.connect(url) as client:
        client.count()
        with psycopg.connect(url) if kind == "postgres" else closing(sqlite3.connect(file)) as own:
            own.execute("CREATE TABLE orders (id INTEGER)")
            own.commit()
        with process(DIES, url, file) as caller:
            assert caller.wait(PATIENCE) == -signal.SIGKILL
        with client.worker(jobs=[double], grace=1.0):
            assert client.enqueue(double, 4, id="x").result(PATIENCE) == 8
        assert client.count(kind="any") == 1
        with psycopg.connect(url) if kind == "postgres" else closing(sqlite3.connect(file)) as own:
            assert own.execute("SELECT count(*) FROM orders").fetchone() == (0,)


def test_a_user_with_little_more_than_insert_may_enqueue(postgres_url: str) -> None:
    role = password = f"app_{os.urandom(6).hex()}"
    with sync.connect(postgres_url) as client, psycopg.connect(postgres_url) as owner:
        client.count()
        owner.execute(f"CREATE ROLE {role} LOGIN PASSWORD '{password}'")
        owner.execute(f"GRANT USAGE ON SCHEMA batuta TO {role}")
        owner.execute(f"GRANT SELECT, INSERT, UPDATE ON ALL TABLES IN SCHEMA batuta TO {role}")
        owner.commit()
        try:
            with psycopg.connect(postgres_url, user=role, password=password) as connection:
                for options in ({"key": "k"}, {"unique": "u"}, {"unique": "d", "debounce": 60}):
                    client.enqueue(double, 1, transaction=connection, **options)
            assert client.count(kind="job") == 3
        finally:
            owner.execute(f"DROP OWNED BY {role}")
            owner.execute(f"DROP ROLE {role}")
            owner.commit()
