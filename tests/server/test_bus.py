"""The bus over HTTP."""

import asyncio
from typing import Any

import batuta
from batuta import Retry, job
from batuta.bus import Message, subscribe
from tests.server.web import Web

BUS = "/api/v1/bus"


def is_done(page: Any) -> bool:
    [line] = page["subscriptions"]
    return len(page["failed"]) == 1 and not line["waiting"] + line["running"]


async def test_the_bus_is_looked_at_and_fed_over_http(web: Web, client: batuta.Batuta) -> None:
    seen: list[str] = []

    @job(retry=Retry(attempts=1))
    async def book(message: Message[int]) -> None:
        seen.append(message.id)

    async with client.worker(subscriptions=[subscribe("orders", book)]):
        for id, payload in (("good", 1), ("bad", "x")):
            made = await web.post(f"{BUS}/messages", {"topic": "orders", "payload": payload, "id": id, "key": "k"})
            assert (made.status, made.json) == (201, {"id": id, "topic": "orders"})
        async with asyncio.timeout(30):
            while not is_done((await web.ask("GET", BUS)).json):
                await asyncio.sleep(0.01)
    page = (await web.ask("GET", f"{BUS}?topic=orders")).json
    [line] = page["subscriptions"]
    assert (line["name"], line["job"], line["dead_letters"], seen) == ("book", "bus:book", 1, ["good"])
    assert [one["id"] for one in page["messages"]] == ["bad", "good"]
    assert [(one["id"], one["reason"]) for one in page["failed"]] == [("bus:book:bad", "undelivered")]
    listed = (await web.ask("GET", f"{BUS}/messages?topic=orders&limit=1")).json
    assert [one["id"] for one in listed["messages"]] == ["bad"]
    assert (await web.post(f"{BUS}/prune", {"keep": "0s"})).json == {"messages": 2}
    deleted = await web.ask("DELETE", f"{BUS}/subscriptions/book?reason=over")
    assert deleted.json == {"name": "book", "deleted": True}
    rows = (await web.ask("GET", "/api/v1/audit")).json["rows"]
    assert [(row["verb"], row["target"], row["after"]) for row in reversed(rows)] == [
        ("prune", "bus", None),
        ("prune", "bus", {"deleted": 2}),
        ("drop subscription", "book", None),
    ]


async def test_what_cannot_be_published_is_refused(web: Web) -> None:
    for body in ({"topic": "", "payload": 1}, {"topic": "t"}, {"topic": "t", "payload": 1, "key": "k" * 300}):
        assert (await web.post(f"{BUS}/messages", body)).status in (400, 422)
