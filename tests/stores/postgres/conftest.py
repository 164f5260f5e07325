"""Stores on a database of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore

UPTIME_SECONDS = 3_600
"""The clock of each store goes ahead by this: a server that was just started must not look so."""


@pytest.fixture
async def make_store(postgres_url: str) -> AsyncIterator[MakeStore]:
    opened: list[PostgresStore] = []

    async def make(namespace: str = "default") -> PostgresStore:
        new = PostgresStore(postgres_url, namespace=namespace)
        new.shift_clock(UPTIME_SECONDS)
        await new.open()
        opened.append(new)
        return new

    yield make
    for each in opened:
        await each.close()


@pytest.fixture
async def store(make_store: MakeStore) -> PostgresStore:
    new = await make_store()
    assert isinstance(new, PostgresStore)
    return new
