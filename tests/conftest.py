"""Fixtures for all tests: a real PostgreSQL shared by the whole run, and a fresh database for each test.

Where PostgreSQL can't be started, tests that ask for it fail; they are never skipped.
"""

import asyncio
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from batuta.stores.postgres import PostgresStore
from batuta.testing.databases import DatabaseMaker
from batuta.testing.servers import ExternalPostgres, PostgresServer, ServerUnavailable, launch_postgres

EMPTY = """
    DO $$
    DECLARE
        name text;
        used boolean;
    BEGIN
        FOR name IN
            SELECT format('%I.%I', schemaname, tablename) FROM pg_tables
            WHERE schemaname = 'batuta' AND tablename <> 'migrations'
        LOOP
            EXECUTE 'SELECT EXISTS (SELECT FROM ' || name || ')' INTO used;
            IF used THEN
                EXECUTE 'TRUNCATE ' || name || ' RESTART IDENTITY';
            END IF;
        END LOOP;
    END
    $$
"""

MANY = {"max_connections": "400"}
"""Some tests start a dozen processes, and several of these tests run at once."""

ENDS_SESSIONS = re.compile("PANIC|FATAL|terminat|by signal|shut down|starting up|crash")

_SHARED = pytest.StashKey[DatabaseMaker]()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """With pytest-xdist the controller owns the one server; each worker is told where it is."""
    try:
        if _SHARED not in node.config.stash:
            node.config.stash[_SHARED] = launch_postgres(settings=MANY)
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


def pytest_unconfigure(config: pytest.Config) -> None:
    if server := config.stash.get(_SHARED, None):
        server.close()


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> Iterator[DatabaseMaker]:
    """The test run's PostgreSQL (fsync off). A test that restarts or kills one launches its own."""
    given: dict[str, str] = getattr(request.config, "workerinput", {})
    if "postgres_error" in given:
        raise ServerUnavailable(given["postgres_error"])
    with ExternalPostgres(given["postgres_url"]) if given else launch_postgres(settings=MANY) as server:
        yield server


@pytest.fixture(scope="session")
def postgres_template(postgres_server: DatabaseMaker) -> Iterator[str]:
    """A database that was migrated once, to be copied."""
    url = postgres_server.create_database()
    _migrate(url)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture
def postgres_url(postgres_server: DatabaseMaker, postgres_template: str) -> Iterator[str]:
    """A migrated, empty database of this test's own."""
    url = postgres_server.create_database(template=postgres_template)
    yield url
    postgres_server.drop_database(url)


@pytest.fixture(scope="session")
def emptied_postgres(postgres_server: DatabaseMaker, postgres_template: str) -> Iterator[Callable[[], str]]:
    """Gives one and the same migrated database, emptied: in a fifth of the time that a new one takes.

    For tests that use it through stores alone, and close these.
    """
    url = postgres_server.create_database(template=postgres_template)

    def emptied() -> str:
        postgres_server.execute(EMPTY, url)
        return url

    yield emptied
    postgres_server.drop_database(url)


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

    with ThreadPoolExecutor(1) as pool:  # the first test to ask for it may be an async one, with a loop running
        pool.submit(lambda: asyncio.run(migrate())).result()
