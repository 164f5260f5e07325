"""Every store that needs no server passes the shipped suite."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batuta.journal.store import Store
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing import conformance
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import making


@pytest.fixture(params=["memory", "sqlite"])
async def make_store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[MakeStore]:
    database = MemoryDatabase()

    def new(namespace: str) -> Store:
        if request.param == "memory":
            return MemoryStore(database, namespace)
        return SqliteStore(tmp_path / "batuta.db", namespace)

    async with making(new, migrate=True) as make:
        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> Store:
    return await make_store()


globals().update(conformance.suite())
