"""A server in this process, on a store in memory."""

from collections.abc import AsyncIterator

import pytest

import batuta
from batuta.server import Server
from tests.server.shop import APP
from tests.server.web import Web


@pytest.fixture
async def client() -> AsyncIterator[batuta.Batuta]:
    async with batuta.connect("memory://") as opened:
        yield opened


@pytest.fixture
async def server(client: batuta.Batuta) -> AsyncIterator[Server]:
    made = Server(client)
    yield made
    await made.close()


@pytest.fixture
async def web(server: Server) -> Web:
    """From this machine, where there is no key, with the token that changes need."""
    asks = Web(server.serve)
    token = (await asks.get("/api/v1/session")).json["csrf_token"]
    return asks.with_headers(x_csrf_token=token)


@pytest.fixture
async def worker(client: batuta.Batuta) -> AsyncIterator[None]:
    async with client.worker(workflows=APP.workflows, activities=APP.activities, jobs=APP.jobs, queues=["default"]):
        yield
