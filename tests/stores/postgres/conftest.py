"""Stores on a database of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import making
from tests.stores.postgres.stores import long_up


@pytest.fixture
async def make_store(postgres_url: str) -> AsyncIterator[MakeStore]:
    async with making(long_up(postgres_url)) as make:
        yield make


@pytest.fixture
async def store(make_store: MakeStore) -> PostgresStore:
    new = await make_store()
    assert isinstance(new, PostgresStore)
    return new
