"""The stream of events: what changed, also while nobody listened."""

from collections.abc import AsyncIterator

import pytest
from msgspec import json

import batuta
from batuta.errors import StoreUnavailable
from batuta.server import Server, live
from tests.server.web import Stream, Web


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK", 0.01)


async def topics(stream: Stream) -> list[str]:
    found: list[str] = json.decode((await stream.named("changed"))["data"])["topics"]
    return found


async def test_a_stream_tells_which_topics_changed(web: Web, client: batuta.Batuta) -> None:
    async with web.stream("/api/v1/events?topic=runs&topic=queues") as stream:
        hello = await stream.named("hello")
        assert json.decode(hello["data"])["topics"] == ["runs", "queues"]
        assert stream.response.headers["content-type"].startswith("text/event-stream")
        await client.start("order", 1, id="a")
        assert "runs" in await topics(stream)
        await client.schedules.create(batuta.Schedule("s", batuta.every(60), "order"))
        await client.pause_queue("mail")
        assert await topics(stream) == ["queues"]


async def test_a_watched_run_is_told_with_its_state(web: Web, client: batuta.Batuta) -> None:
    handle = await client.start("order", 1, id="a")
    async with web.stream("/api/v1/events?topic=run&run=a") as stream:
        await stream.named("hello")
        await handle.terminate("enough")
        told = json.decode((await stream.named("run"))["data"])
        assert (told["id"], told["state"]) == ("a", "terminated")
        await handle.delete("old")
        assert json.decode((await stream.named("gone"))["data"]) == {"run_id": str(handle.run_id)}


async def test_a_stream_that_begins_again_is_told_what_changed_meanwhile_also_by_another_server(
    web: Web, client: batuta.Batuta
) -> None:
    async with web.stream("/api/v1/events?topic=runs&topic=queues") as stream:
        await stream.named("hello")
        await client.start("order", 1, id="a")
        last = await stream.named("changed")
    await client.pause_queue("mail")
    restarted = Web(Server(client).serve, web.headers)
    async with restarted.stream("/api/v1/events?topic=runs&topic=queues", last_event_id=last["id"]) as stream:
        assert await topics(stream) == ["queues"]


async def test_a_stream_that_was_cut_before_any_change_is_told_what_came_after_its_first_word(
    web: Web, client: batuta.Batuta
) -> None:
    async with web.stream("/api/v1/events?topic=runs&topic=queues") as stream:
        hello = await stream.named("hello")
    await client.pause_queue("mail")
    async with web.stream("/api/v1/events?topic=runs&topic=queues", last_event_id=hello["id"]) as stream:
        assert (await stream.named("hello"))["id"] == hello["id"]  # nothing of what follows is told yet
        assert await topics(stream) == ["queues"]


async def test_a_token_that_is_not_ours_only_tells_more(web: Web) -> None:
    async with web.stream("/api/v1/events?topic=runs", last_event_id="runs=0,\u00e9=;--") as stream:
        assert await topics(stream) == ["runs"]


async def test_streams_end_with_a_word_when_the_server_ends(web: Web, server: Server) -> None:
    async with web.stream("/api/v1/events") as stream:
        await stream.named("hello")
        server.drain()
        assert json.decode((await stream.named("bye"))["data"]) == {"reason": "shutdown"}
        assert await stream.event() is None
    assert (await web.get("/api/v1/events")).status == 503


@pytest.fixture
async def keyed(client: batuta.Batuta) -> AsyncIterator[tuple[Web, str]]:
    made = await client.api_keys.create("ann", "viewer")
    server = Server(client)
    yield Web(server.serve, {"authorization": f"Bearer {made.key}"}), made.id
    await server.close()


async def test_a_stream_ends_when_its_key_is_revoked(
    keyed: tuple[Web, str], client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batuta.server.access.sign_in.KNOWN_SECONDS", -1.0)
    web, id = keyed
    async with web.stream("/api/v1/events") as stream:
        await stream.named("hello")
        await client.api_keys.revoke(id)
        await client.start("order", 1)
        assert json.decode((await stream.named("bye"))["data"]) == {"reason": "signed_out"}


async def test_one_caller_does_not_take_the_streams_of_others(
    client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MOST_OF_ONE", 1)
    server = Server(client)
    ann, bob = [
        Web(server.serve, {"authorization": f"Bearer {(await client.api_keys.create(name, 'viewer')).key}"})
        for name in ("ann", "bob")
    ]
    async with ann.stream("/api/v1/events") as stream:
        await stream.named("hello")
        refused = await ann.get("/api/v1/events")
        assert (refused.status, refused.json["code"], refused.headers["retry-after"]) == (503, "too_many_streams", "5")
        async with bob.stream("/api/v1/events") as other:
            await other.named("hello")
    async with ann.stream("/api/v1/events") as stream:
        await stream.named("hello")
    monkeypatch.setattr(live, "MOST_STREAMS", 0)
    assert (await bob.get("/api/v1/events")).status == 503
    await server.close()
    assert not server.live.open


async def test_a_stream_that_begins_while_the_database_is_away_is_refused_and_leaves_its_place(
    web: Web, server: Server, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    with monkeypatch.context() as outage:
        outage.setattr(client, "list", away)
        for _ in range(3):
            refused = await web.get("/api/v1/events")
            assert (refused.status, refused.json["code"]) == (503, "store_unavailable")
            assert refused.headers["retry-after"] == "1"
    assert not server.live.open
    async with web.stream("/api/v1/events") as stream:
        await stream.named("hello")


async def test_a_stream_tells_that_the_database_is_away_and_that_it_is_back(
    web: Web, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    async with web.stream("/api/v1/events") as stream:
        await stream.named("hello")
        with monkeypatch.context() as outage:
            outage.setattr(client, "list", away)
            assert json.decode((await stream.named("store"))["data"])["reachable"] is False
        assert json.decode((await stream.named("store"))["data"])["reachable"] is True


async def test_bad_requests_for_a_stream_are_problems(web: Web) -> None:
    assert (await web.ask("HEAD", "/api/v1/events")).status == 405
    assert (await web.get("/api/v1/events", topic="colour")).json["code"] == "invalid_input"
    assert (await web.get("/api/v1/events", run=[str(n) for n in range(11)])).json["code"] == "invalid_input"
    assert (await web.get("/api/v1/events", run="none")).json["code"] == "unknown_run"
