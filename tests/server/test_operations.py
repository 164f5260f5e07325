"""Operations on many runs: their progress is in the store, and outlives the server that carries them out."""

import asyncio
from typing import Any

import pytest

import batuta
from batuta.server import Server, operations
from tests.server.test_runs import until
from tests.server.web import Web

TERMINATE = {"verb": "terminate", "filter": {"name": "order"}, "reason": "x"}


@pytest.fixture
def stuck(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Holds an operation up until it is set."""
    go = asyncio.Event()
    do = __import__("batuta.server.bulk", fromlist=["_do"])._do

    async def slowly(*args: Any) -> Any:
        await go.wait()
        return await do(*args)

    monkeypatch.setattr("batuta.server.bulk._do", slowly)
    monkeypatch.setattr(operations, "WRITTEN", 0.01)
    return go


async def begin(web: Web, client: batuta.Batuta) -> str:
    for number in range(3):
        await client.start("order", number, id=f"o{number}")
    begun = await web.post("/api/v1/runs/bulk", TERMINATE)
    assert (begun.status, begun.json["state"], begun.json["actor"]) == (202, "running", "loopback")
    return str(begun.headers["location"])


async def test_another_server_tells_how_far_an_operation_is(
    web: Web, client: batuta.Batuta, stuck: asyncio.Event
) -> None:
    where, other = await begin(web, client), Web(Server(client).serve)
    assert (await other.get(where)).json["state"] == "running"
    await (await client.get("o0")).terminate("by hand")
    await until(lambda: other.get(where), lambda found: found["done"] == 1)
    stuck.set()
    done = await until(lambda: other.get(where), lambda found: found["state"] == "done")
    assert (done["matched"], done["done"]) == (2, 2)
    assert [one["state"] for one in (await other.get("/api/v1/operations")).json["operations"]] == ["done"]


async def test_an_operation_whose_server_ended_says_so(
    web: Web, server: Server, client: batuta.Batuta, stuck: asyncio.Event
) -> None:
    where = await begin(web, client)
    await server.close()
    told = (await Web(Server(client).serve).get(where)).json
    assert (told["state"], told["problem"]["code"], told["done"]) == ("interrupted", "interrupted", 0)
    assert "begin it again" in told["problem"]["detail"]
    assert await client.count(states=("terminated",)) == 0


async def test_an_operation_whose_server_was_killed_is_found_out(
    web: Web, client: batuta.Batuta, stuck: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "WRITTEN", 3600.0)  # it writes no more
    where, other = await begin(web, client), Web(Server(client).serve)
    assert (await other.get(where)).json["state"] == "running"
    monkeypatch.setattr(operations, "SILENT", -1.0)
    assert (await other.get(where)).json["state"] == "interrupted"
    assert (await web.get(where)).json["state"] == "running"  # the one that carries it out knows better
