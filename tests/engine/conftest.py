"""Engine tests run in virtual time, but for those that go through every store."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from batuta.codecs import Compression, Encryption, Keys
from batuta.connect import store_for
from batuta.journal.store import Store
from batuta.stores.coded import coded
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import VirtualLoop
from tests.engine.arena import Arena
from tests.engine.quotakit import House

REAL_TIME = {"arena", "real_time", "url", "sqlite_url", "postgres_url", "empty_postgres_url"}
"""Fixtures whose tests need real seconds: a database has a clock of its own, which virtual time would run away from."""


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    real = REAL_TIME & set(item.fixturenames)
    return {"real": asyncio.SelectorEventLoop} if real else {"virtual": VirtualLoop}


@pytest.fixture
def real_time() -> None:
    """Asked for by tests that talk to something outside this process."""


@pytest.fixture(params=["coded", "sqlite", "postgres"])
def make_store(request: pytest.FixtureRequest) -> Callable[[], Store]:
    """Gives store objects on one database of each kind. The one in memory has codecs: without, others test it."""
    if request.param == "coded":
        database, codecs = MemoryDatabase(), [Compression(least=100), Encryption(Keys.new("k1"))]
        return lambda: coded(MemoryStore(database), codecs)
    url = request.getfixturevalue(f"{request.param}_url")
    return lambda: store_for(url)


@pytest.fixture
async def arena(make_store: Callable[[], Store]) -> AsyncIterator[Arena]:
    """A database of each kind, in real time."""
    made = Arena(make_store)
    yield made
    await made.close()


@pytest.fixture
async def house() -> AsyncIterator[House]:
    """Clients of one database in memory, as of several processes, in virtual time."""
    made = House()
    yield made
    await made.open.aclose()
