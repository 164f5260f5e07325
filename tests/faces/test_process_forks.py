"""Processes that are forked while a client, or a worker, is at work: nothing is lost, nobody is locked out."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import asyncpg
import pytest

import batuta.sync
from batuta import activity, workflow

PATIENCE = 60.0

PRELUDE = """
import asyncio, multiprocessing, os, signal, sqlite3, sys, threading, time
import batuta, batuta.sync
from batuta import ClientError, activity, job, workflow

url = sys.argv[1]
fork = multiprocessing.get_context("fork")

def say(*words):
    os.write(1, (" ".join(map(str, words)) + "\\n").encode())  # at once: several processes say something

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

@workflow
async def sleeps() -> None:
    await asyncio.sleep(3600)

@activity
def double(n: int) -> int:
    return 2 * n

@workflow
async def doubles(n: int) -> int:
    return await double(n)

"""


@activity
def double(n: int) -> int:
    return 2 * n


@workflow
async def doubles(n: int) -> int:
    return await double(n)


@workflow
async def sleeps() -> None:
    pass


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    found: str = request.getfixturevalue(f"{request.param}_url")
    return found


class Program:
    """A program that says what it does, line by line."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdin is not None
        assert process.stdout is not None
        self._input: IO[str] = process.stdin
        self._output: IO[str] = process.stdout

    def hears(self) -> str:
        line = self._output.readline()
        assert line, f"it said nothing more, exit code {self.process.poll()}"
        return line.strip()

    def tell(self, line: str) -> None:
        self._input.write(line + "\n")
        self._input.flush()


@contextmanager
def program(text: str, url: str) -> Iterator[Program]:
    # A fork of a process with threads is what this is about.
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + textwrap.dedent(text), url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        yield Program(process)
    finally:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def run(text: str, url: str) -> list[str]:
    """What a program said that ended well."""
    with program(text, url) as started:
        said, _ = started.process.communicate(timeout=PATIENCE)
        assert started.process.returncode == 0, said
        return said.splitlines()


def ids(url: str) -> set[str]:
    with batuta.sync.connect(url) as client:
        return {run.id for run in client.list().runs}


def test_what_a_daemon_was_told_is_there_after_others_came_and_went(url: str) -> None:
    with program(
        """
        client = batuta.sync.connect(url)
        client.start(sleeps, id="before")
        if os.fork():
            os._exit(0)
        os.setsid()
        if os.fork():
            os._exit(0)
        say(os.getpid())
        for line in sys.stdin:
            say(client.start(sleeps, id=line.strip()).id)
        """,
        url,
    ) as daemon:
        pid = int(daemon.hears())
        try:
            for name in ("one", "two", "three"):
                daemon.tell(name)
                assert daemon.hears() == name
                assert name in ids(url)  # a process that opens the file, and leaves it
        finally:
            os.kill(pid, signal.SIGKILL)
    assert ids(url) == {"before", "one", "two", "three"}


@pytest.mark.parametrize("kind", ["sync", "async"])
def test_closing_a_client_while_a_forked_process_lives_leaves_no_lock(url: str, kind: str) -> None:
    with program(
        f"""
        def child():
            say("child")
            time.sleep(3600)

        def begin():
            process = fork.Process(target=child)
            process.start()

        async def work():
            async with batuta.connect(url) as client:
                await client.start(sleeps, id="a")
                begin()

        if {kind!r} == "async":
            asyncio.run(work())
        else:
            with batuta.sync.connect(url) as client:
                client.start(sleeps, id="a")
                begin()
        say("left")
        """,
        url,
    ) as parent:
        assert {parent.hears(), parent.hears()} == {"child", "left"}
        with batuta.sync.connect(url) as client:
            assert client.start(sleeps, id="b").id == "b"
            assert client.count() == 2


def test_children_that_are_forked_during_writes_write_and_so_does_the_parent(url: str) -> None:
    said = run(
        """
        client = batuta.sync.connect(url)
        over = threading.Event()
        written = []

        def write():
            while not over.is_set():
                written.append(client.start(sleeps, id=f"p-{len(written)}").id)
                client.count()

        def child(n):
            client.start(sleeps, id=f"c-{n}")
            assert client.get(f"c-{n}").id == f"c-{n}"

        thread = threading.Thread(target=write)
        thread.start()
        for n in range(12):
            process = fork.Process(target=child, args=(n,))
            process.start()
            process.join()
            assert process.exitcode == 0, process.exitcode
        over.set()
        thread.join()
        assert client.count(id_prefix="c-") == 12
        assert client.count(id_prefix="p-") == len(written) > 0
        client.close()
        say("good")
        """,
        url,
    )
    assert said == ["good"]


def test_a_pool_of_forked_processes_shares_the_work_with_its_parent(url: str) -> None:
    said = run(
        """
        client = batuta.sync.connect(url)

        def ask(n):
            return client.start(doubles, n).result(60)

        with client.worker(workflows=[doubles], activities=[double]):
            assert client.start(doubles, 1).result(60) == 2
            with fork.Pool(3) as pool:
                say(*pool.map(ask, range(6)))
            say(client.start(doubles, 4).result(60))
        client.close()
        """,
        url,
    )
    assert said == ["0 2 4 6 8 10", "8"]


WORKS_AND_FORKS = """
client = batuta.sync.connect(url)
worker = client.worker(workflows=[doubles], activities=[double], lease=3600, heartbeat=0.1)
worker.__enter__()
assert client.start(doubles, 1).result(60) == 2
if os.fork() == 0:
    say("child")
    time.sleep(3600)
sys.stdin.readline()
"""


def test_a_worker_that_was_killed_is_noticed_at_once_while_a_process_forked_from_it_lives(sqlite_url: str) -> None:
    with program(WORKS_AND_FORKS, sqlite_url) as first:
        assert first.hears() == "child"
        first.process.kill()
        first.process.wait()
        # Its lease is an hour: nothing but its lock tells.
        settings: dict[str, Any] = {"lease": 3600.0, "heartbeat": 0.1, "detection_grace": 0.1}
        with batuta.sync.connect(sqlite_url) as client, client.worker(workflows=[doubles], **settings):
            _until(lambda: sum(queue.workers for queue in client.queues()) == 1)


def test_the_sessions_of_a_worker_that_was_killed_end_while_a_process_forked_from_it_lives(postgres_url: str) -> None:
    with program(WORKS_AND_FORKS, postgres_url) as first:
        assert first.hears() == "child"
        assert _sessions(postgres_url)
        first.process.kill()
        first.process.wait()
        _until(lambda: not _sessions(postgres_url), lambda: _sessions(postgres_url))


def _sessions(url: str) -> list[tuple[Any, ...]]:
    """Our sessions of a database, and what each did last."""

    async def ask() -> list[tuple[Any, ...]]:
        connection = await asyncpg.connect(url)
        try:
            found = await connection.fetch(
                "SELECT pid, backend_start, state, wait_event, query FROM pg_stat_activity "
                "WHERE datname = current_database() AND application_name = 'batuta'"  # not those of fixtures
            )
            return [tuple(row) for row in found]
        finally:
            await connection.close()

    return asyncio.run(ask())


def _until(condition: Callable[[], bool], seen: Callable[[], object] = lambda: "") -> None:
    pause = threading.Event()
    for _ in range(600):
        if condition():
            return
        pause.wait(0.05)
    raise AssertionError(f"it never came true: {seen()}")


def test_an_async_client_of_the_parent_is_refused_by_name(url: str) -> None:
    said = run(
        """
        async def use(client):
            for verb in (client.start(sleeps, id="b"), client.get("a"), client.count()):
                try:
                    await verb
                except ClientError as error:
                    assert "before the process was forked" in str(error), error
                else:
                    raise AssertionError("it was used")

        async def anew():
            async with batuta.connect(url) as client:
                await client.start(sleeps, id="c")

        def child(client):
            asyncio.run(use(client))
            asyncio.run(anew())

        async def main():
            async with batuta.connect(url) as client:
                await client.start(sleeps, id="a")
                process = fork.Process(target=child, args=(client,))
                process.start()
                process.join()
                assert process.exitcode == 0
                assert (await client.start(sleeps, id="d")).id == "d"
                say(await client.count())

        asyncio.run(main())
        """,
        url,
    )
    assert said == ["3"]


# -- what SQLite cannot do after a fork


def test_a_file_that_the_program_itself_had_open_at_a_fork_is_refused_until_it_is_closed(sqlite_url: str) -> None:
    said = run(
        """
        client = batuta.sync.connect(url)
        client.start(sleeps, id="a")
        own = sqlite3.connect(url.removeprefix("sqlite:///"))
        assert own.execute("SELECT count(*) FROM runs").fetchone() == (1,)
        pid = os.fork()
        if pid == 0:
            try:
                client.count()
            except ClientError as error:
                say("was open when this process was forked" in str(error))
            own.close()
            say(client.count())
            client.close()
            os._exit(0)
        assert ended(pid) == 0
        say(own.execute("SELECT count(*) FROM runs").fetchone()[0], client.count())
        client.close()
        """,
        sqlite_url,
    )
    assert said == ["True", "1", "1 1"]


def test_a_process_forked_within_a_transaction_is_refused_and_the_transaction_goes_on(sqlite_url: str) -> None:
    said = run(
        """
        client = batuta.sync.connect(url)

        @activity(transactional=True)
        def write() -> int:
            connection = batuta.transaction().connection
            connection.execute("CREATE TABLE IF NOT EXISTS orders (n)")
            connection.execute("INSERT INTO orders VALUES (1)")
            pid = os.fork()
            if pid == 0:
                try:
                    batuta.sync.connect(url).count()
                except ClientError as error:
                    os._exit("was open when this process was forked" not in str(error))
                os._exit(2)
            return ended(pid)

        @workflow
        async def writes() -> int:
            return await write()

        with client.worker(workflows=[writes], activities=[write]):
            say(client.start(writes).result(60))
        client.close()
        """,
        sqlite_url,
    )
    assert said == ["0"]
    connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
    assert connection.execute("SELECT count(*) FROM orders").fetchone() == (1,)
    connection.close()


def test_hints_reach_a_process_that_has_forked_and_writes_nothing(sqlite_url: str) -> None:
    said = run(
        """
        client = batuta.sync.connect(url)
        handle = client.start(doubles, 4, id="a")
        process = fork.Process(target=time.sleep, args=(0,))
        process.start()
        process.join()
        writer = handle._home.thread.client._backend._store._writer
        assert writer._connection is None or writer.look(lambda cursor: 1) == 1
        say(writer.look(lambda cursor: cursor.execute("SELECT count(*) FROM runs").fetchone()[0]))
        client.close()
        """,
        sqlite_url,
    )
    assert said == ["1"]


def test_a_process_that_only_read_after_a_fork_leaves_the_log_to_the_last_under_the_lock(
    sqlite_url: str, tmp_path: Path
) -> None:
    path = Path(sqlite_url.removeprefix("sqlite:///"))
    run(
        """
        client = batuta.sync.connect(url)
        client.start(sleeps, id="a")
        process = fork.Process(target=time.sleep, args=(0,))
        process.start()
        process.join()
        assert client.count() == 1
        client.close()
        """,
        sqlite_url,
    )
    assert not Path(f"{path}-wal").exists()
    assert ids(sqlite_url) == {"a"}
