"""The store's own bus passes the shipped suite, in each store."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from batuta import connect
from batuta.client import Batuta
from batuta.errors import InvalidInput
from batuta.testing.buses import BusConformance


@pytest.fixture(params=["memory", "sqlite", "postgres"])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Batuta]:
    url = "memory://" if request.param == "memory" else request.getfixturevalue(f"{request.param}_url")
    async with connect(url) as client:
        yield client


class TestStoreBus(BusConformance):
    """Messages in the store."""


@pytest.mark.parametrize("cursor", ["x", -1, 2**70, 1.5, True])
async def test_a_cursor_that_no_page_had_is_refused(client: Batuta, cursor: int) -> None:
    with pytest.raises(InvalidInput, match="cursor"):
        await client.bus.messages("orders", cursor=cursor)
