"""Reads that are asked for at the same time: done once, and never older than the question."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

import batuta
from batuta.errors import StoreUnavailable
from batuta.server import Server
from batuta.server.http.shared_reads import SharedReads
from batuta.server.table import TABLE
from tests.server.web import Web


class Counted:
    """A read that ends when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.may_end = asyncio.Event()

    async def __call__(self) -> int:
        self.begun += 1
        number = self.begun
        await self.may_end.wait()
        return number


@pytest.fixture
async def reads() -> AsyncIterator[SharedReads]:
    made = SharedReads()
    yield made
    await made.close()


async def turns() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_callers_at_the_same_time_share_one_read(reads: SharedReads) -> None:
    work = Counted()
    work.may_end.set()
    assert await asyncio.gather(*(reads.read("a", work) for _ in range(10))) == [1] * 10
    assert list(await asyncio.gather(reads.read("a", work), reads.read("b", work))) == [2, 3]


async def test_who_asks_while_it_is_read_gets_the_next_read(reads: SharedReads) -> None:
    work = Counted()
    first = asyncio.ensure_future(reads.read("a", work))
    await turns()
    later = [asyncio.ensure_future(reads.read("a", work)) for _ in range(5)]
    await turns()
    assert work.begun == 1
    work.may_end.set()
    assert (await first, await asyncio.gather(*later)) == (1, [2] * 5)


async def test_a_caller_who_leaves_takes_nothing_away_from_the_others(reads: SharedReads) -> None:
    work = Counted()
    leaving, staying = (asyncio.ensure_future(reads.read("a", work)) for _ in range(2))
    await turns()
    leaving.cancel()
    await turns()
    work.may_end.set()
    assert await staying == 1
    assert leaving.cancelled()


async def test_an_error_reaches_all_and_is_not_kept(reads: SharedReads) -> None:
    async def fail() -> Any:
        raise StoreUnavailable("away")

    found = await asyncio.gather(*(reads.read("a", fail) for _ in range(3)), return_exceptions=True)
    assert [type(one) for one in found] == [StoreUnavailable] * 3
    work = Counted()
    work.may_end.set()
    assert await reads.read("a", work) == 1


async def test_a_list_sees_what_was_acknowledged_before_it_was_asked_for(web: Web, server: Server) -> None:
    for number in range(5):
        begun = [asyncio.ensure_future(web.get("/api/v1/runs")) for _ in range(3)]
        await web.post("/api/v1/runs", {"name": "order", "input": [1], "id": f"o{number}"})
        listed = (await web.get("/api/v1/runs")).json["runs"]
        assert listed[0]["id"] == f"o{number}"
        await asyncio.gather(*begun)


async def test_namespaces_pages_and_redaction_do_not_share(client: batuta.Batuta, server: Server, web: Web) -> None:
    await client.start("order", {"cpf": "123.456.789-09"}, id="o1", tags={"cpf": "123.456.789-09"})
    await client.namespace.set_redaction(True)
    hidden, shown, small = await asyncio.gather(
        web.get("/api/v1/runs"),
        web.get("/api/v1/runs", reveal="true", reason="asked"),
        web.get("/api/v1/runs", limit=1),
    )
    assert [b"123.456" in one.body for one in (hidden, shown, small)] == [False, True, False]


def test_only_reads_that_do_not_depend_on_the_caller_are_shared() -> None:
    shared = {route.path for route in TABLE if route.shared}
    assert {route.method for route in TABLE if route.shared} == {"GET"}
    assert "/api/v1/session" not in shared
    assert {"/api/v1/runs", "/api/v1/overview"} <= shared
