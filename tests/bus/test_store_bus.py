"""The store's own bus passes the shipped suite, in each store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from batuta import connect
from batuta.client import Batuta
from batuta.testing.buses import BusConformance


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Batuta]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")
    async with connect(url) as client:
        yield client


class TestStoreBus(BusConformance):
    """Messages in the store."""
