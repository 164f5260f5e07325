from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance import MakeStore


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "batuta.db"


@pytest.fixture
async def make_store(path: Path) -> AsyncIterator[MakeStore]:
    opened: list[SqliteStore] = []

    async def make(namespace: str = "default") -> SqliteStore:
        new = SqliteStore(path, namespace)
        await new.migrate()
        await new.open()
        opened.append(new)
        return new

    yield make
    for each in opened:
        each.faults = None
        await each.close()


@pytest.fixture
async def store(make_store: MakeStore) -> SqliteStore:
    new = await make_store()
    assert isinstance(new, SqliteStore)
    return new
