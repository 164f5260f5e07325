"""Stores on a database of the test's own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import making
from tests.stores.postgres.raw import connection
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


@pytest.fixture(params=["empty", "large", "large and analysed"])
async def filled(request: pytest.FixtureRequest, postgres_url: str) -> str:
    """The tables that the module's FILL fills, which it names in FILLED."""
    async with connection(postgres_url) as raw:
        if request.param != "empty":
            await raw.execute(request.module.FILL)
        if request.param == "large and analysed":
            await raw.execute(f"ANALYZE {request.module.FILLED}")
    return str(request.param)
