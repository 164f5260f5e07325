"""Fixtures for all tests: a real PostgreSQL shared by the whole run, and a fresh database for each test.

Where PostgreSQL can't be started, tests that ask for it fail; they are never skipped.
"""

import gc
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from batuta.stores.postgres import PostgresStore
from batuta.testing.databases import DatabaseMaker
from batuta.testing.servers import ExternalPostgres, PostgresServer, ServerUnavailable, launch_postgres
from tests.databases import Databases, aside

os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "false")
"""Tests that speak gRPC and tests that start servers share a process: gRPC's own code after a fork may end the new
process before it becomes the server."""

SETTINGS = {
    "max_connections": "400",
    "autovacuum": "off",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "checkpoint_timeout": "1h",
}
"""Some tests start a dozen processes, and several of these tests run at once. Others count the blocks that a statement
reads: autovacuum would add its own. The log needs no more than a crash of the server asks for."""

ENDS_SESSIONS = re.compile("PANIC|FATAL|terminat|by signal|shut down|starting up|crash")

_SHARED = pytest.StashKey[DatabaseMaker]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With pytest-xdist the controller owns the one server; each worker is told where it is."""
    try:
        if _SHARED not in node.config.stash:
            node.config.stash[_SHARED] = launch_postgres(settings=SETTINGS)
        node.workerinput["postgres_url"] = node.config.stash[_SHARED].url
    except ServerUnavailable as error:
        node.workerinput["postgres_error"] = str(error)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """What the one server said that ends sessions: without it a lost connection can't be told from a crash."""
    server = config.stash.get(_SHARED, None)
    if terminalreporter.stats.get("failed") and isinstance(server, PostgresServer):
        said = [line for line in server.log(100_000).splitlines() if ENDS_SESSIONS.search(line)]
        terminalreporter.section("what the PostgreSQL of this run said last of ended sessions")
        terminalreporter.write("\n".join(said[-100:]) + "\n")


def pytest_collection_finish() -> None:
    """The thousands of tests themselves are no garbage: looking through them takes a tenth of a second each time."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(_SHARED, None):
        server.close()


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[DatabaseMaker]:
    """The test run's PostgreSQL (fsync off). A test that restarts or kills one launches its own."""
    given: dict[str, str] = getattr(request.config, "workerinput", {})
    if "postgres_error" in given:
        raise ServerUnavailable(given["postgres_error"])
    with ExternalPostgres(given["postgres_url"]) if given else launch_postgres(settings=SETTINGS) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: DatabaseMaker) -> Iterator[str]:
    """A database that was migrated once, to be copied."""
    url = postgres_server.create_database()
    _migrate(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def postgres_databases(postgres_server: DatabaseMaker, postgres_template: str) -> Iterator[Databases]:
    databases = Databases(postgres_server, postgres_template)
    yield databases
    databases.close()


@pytest.fixture
def new_postgres_url(postgres_server: DatabaseMaker, postgres_template: str) -> Iterator[str]:
    """A migrated, empty database that no test has used before."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def postgres_url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A migrated, empty database of this test's own. Other tests have used it: emptying one takes half of the time of
    making one. Tests that count reads or look at plans ask for `new_postgres_url`, and get that one here too."""
    if "new_postgres_url" in request.fixturenames:
        yield request.getfixturevalue("new_postgres_url")
        return
    databases: Databases = request.getfixturevalue("postgres_databases")
    url = databases.take()
    yield url
    databases.give_back(url)


@pytest.fixture
def empty_postgres_url(postgres_server: DatabaseMaker) -> Iterator[str]:
    """A database in which nothing was migrated yet."""
    url = postgres_server.create_database()
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file of this test's own, not yet made."""
    return f"sqlite:///{tmp_path / 'batuta.db'}"


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    """A database of this test's own, of each kind that outlives its processes."""
    return str(request.getfixturevalue(f"{request.param}_url"))


def _migrate(url: str) -> None:
    """Bring the template up to date with the PostgreSQL store's migrations."""
    store = PostgresStore(url)

    async def migrate() -> None:
        try:
            await store.migrate()
        finally:
            await store.close()

    aside(migrate())
