"""Operations on many runs: their progress is in the store, and outlives the server that carries them out."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import batuta
from batuta.authoring.client.bulk_operations import Selection
from batuta.codecs.aes import Encryption
from batuta.codecs.keys import Keys
from batuta.server import Server, operations
from tests.server.test_runs import until
from tests.server.web import Web


async def runs_of(client: batuta.Batuta, id: str) -> int:
    """How many runs have had the id."""
    return len((await client.list(id_prefix=id)).runs)


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


async def test_another_server_goes_on_with_an_operation_whose_server_ended(
    web: Web, server: Server, client: batuta.Batuta, stuck: asyncio.Event
) -> None:
    where = await begin(web, client)
    await server.close()
    other = Server(client)
    stuck.set()
    done = await until(lambda: Web(other.serve).get(where), lambda found: found["state"] == "done")
    assert (done["matched"], done["done"], done["resumed"], done["problem"]) == (3, 3, 1, None)
    assert await client.count(states=("terminated",)) == 3
    rows = (await client.audit(verb="terminate")).rows
    assert {(row.actor, row.reason) for row in rows} == {("loopback", "x")}
    await other.close()


async def test_what_was_done_before_is_counted_and_not_done_again(
    web: Web, server: Server, client: batuta.Batuta, stuck: asyncio.Event
) -> None:
    where = await begin(web, client)
    await (await client.get("o0")).terminate("by hand")
    await until(lambda: web.get(where), lambda found: found["done"] == 1)
    await client.start("order", 9, id="later")  # it began after the operation
    await server.close()
    other = Server(client)
    stuck.set()
    done = await until(lambda: Web(other.serve).get(where), lambda found: found["state"] == "done")
    assert (done["matched"], done["done"]) == (3, 3)
    assert (await (await client.get("later")).describe()).state == "pending"
    await other.close()


async def test_an_operation_of_a_live_server_is_left_to_it(
    web: Web, client: batuta.Batuta, stuck: asyncio.Event
) -> None:
    where, other = await begin(web, client), Server(client)
    for _ in range(3):
        assert (await Web(other.serve).get(where)).json["state"] == "running"
        await other.operations._look()
    stuck.set()
    done = await until(lambda: web.get(where), lambda found: found["state"] == "done")
    assert done["resumed"] == 0
    await other.close()


async def test_an_operation_whose_server_was_killed_says_so_until_another_goes_on(
    web: Web, client: batuta.Batuta, stuck: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "WRITTEN", 3600.0)  # it writes no more
    monkeypatch.setattr(operations, "SILENT", 0.1)  # and its lock runs out
    where, other = await begin(web, client), Server(client)
    monkeypatch.setattr(other.operations, "look", lambda: None)
    told = await until(lambda: Web(other.serve).get(where), lambda found: found["state"] == "interrupted")
    assert (told["problem"]["code"], told["done"]) == ("interrupted", 0)
    assert "another server continues it" in told["problem"]["detail"]
    stuck.set()
    await other.operations._look()
    done = await until(lambda: Web(other.serve).get(where), lambda found: found["state"] == "done")
    assert done["resumed"] == 1
    await other.close()


async def test_an_operation_that_ends_every_server_is_given_up(
    web: Web, server: Server, client: batuta.Batuta, stuck: asyncio.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(operations, "MOST_RESUMED", 2)
    where = await begin(web, client)
    await server.close()
    told: Any = None
    for _ in range(3):
        other = Server(client)
        await other.operations._look()
        told = (await Web(other.serve).get(where)).json
        await other.close()
    assert (told["state"], told["problem"]["code"]) == ("failed", "interrupted")
    assert await client.count(states=("terminated",)) == 0


async def test_resets_are_not_repeated_for_runs_that_were_reset_before_the_server_ended(
    web: Web, server: Server, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        await client.start("order", number, id=f"o{number}")
    go, real = asyncio.Event(), Selection.reset

    async def after_one(selection: Any, *args: Any, **options: Any) -> Any:
        if not go.is_set():
            await (await client.get("o0")).reset(-1)
            await go.wait()
        return await real(selection, *args, **options)

    monkeypatch.setattr(Selection, "reset", after_one)
    begun = await web.post("/api/v1/runs/bulk", TERMINATE | {"verb": "reset", "to": -1})
    while await runs_of(client, "o0") < 2:
        await asyncio.sleep(0.01)
    await server.close()
    go.set()
    other = Server(client)
    where = str(begun.headers["location"])
    await until(lambda: Web(other.serve).get(where), lambda found: found["state"] == "done")
    assert [await runs_of(client, f"o{number}") for number in range(2)] == [2, 2]
    await other.close()


async def test_a_run_that_was_paused_after_its_resume_stays_so_when_another_server_goes_on(
    web: Web, server: Server, client: batuta.Batuta, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        await client.start("order", number, id=f"o{number}")
    await client.select(id_prefix="o").pause()
    go, real = asyncio.Event(), Selection.apply

    async def half(selection: Any, verb: str, reason: str) -> Any:
        if not go.is_set():
            await real(client.select(id_prefix="o0").on(selection._course), verb, reason)
            await (await client.get("o0")).pause("again")
            await go.wait()
        return await real(selection, verb, reason)

    monkeypatch.setattr(Selection, "apply", half)
    begun = await web.post("/api/v1/runs/bulk", TERMINATE | {"verb": "resume"})
    while len((await client.audit(verb="pause")).rows) < 3:
        await asyncio.sleep(0.01)
    await server.close()
    go.set()
    other = Server(client)
    where = str(begun.headers["location"])
    done = await until(lambda: Web(other.serve).get(where), lambda found: found["state"] == "done")
    assert (done["matched"], done["done"], done["resumed"]) == (2, 2, 1)
    assert [(await (await client.get(f"o{number}")).describe()).state for number in range(2)] == ["paused", "pending"]
    assert {row.detail["operation"] for row in (await client.audit(verb="resume")).rows} == {done["id"]}
    await other.close()


async def test_a_reason_that_is_too_long_begins_no_operation(web: Web) -> None:
    await web.post("/api/v1/runs", {"name": "order", "id": "a"})
    body = {"verb": "terminate", "everything": True, "reason": "x" * 20_000}
    assert (await web.post("/api/v1/runs/bulk", body)).status in (400, 413)
    assert (await web.get("/api/v1/operations")).json == {"operations": []}


async def test_what_an_operation_was_asked_for_is_encrypted_with_the_payloads(tmp_path: Path) -> None:
    url, codec = f"sqlite:///{tmp_path}/a.db", Encryption(Keys.new("k1"))
    async with batuta.connect(url, codec=codec) as client:
        server = Server(client)
        web = Web(server.serve)
        web = web.with_headers(x_csrf_token=(await web.get("/api/v1/session")).json["csrf_token"])
        await client.start("order", 1, id="o1")
        asked = TERMINATE | {"verb": "fork", "id": "{id}-x", "at": 0, "args": ["hush-hush"], "wait": 10}
        done = (await web.post("/api/v1/runs/bulk", asked)).json
        assert (await web.get(f"/api/v1/operations/{done['id']}")).json["id"] == done["id"]
        assert len((await web.get("/api/v1/operations")).json["operations"]) == 1
        await server.close()
    for file in tmp_path.iterdir():
        assert b"hush-hush" not in file.read_bytes()
