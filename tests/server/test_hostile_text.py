"""Texts that would run in a browser: they leave the server as JSON that a browser takes for nothing else."""

import pytest
from msgspec import json

import batuta
from batuta import App, Retry, activity, workflow
from batuta.server import Server
from batuta.server.table import TABLE
from tests.server.hostile import hostile_texts
from tests.server.test_runs import ended
from tests.server.web import Response, Web

PAYLOADS = hostile_texts("alert(1)")


@activity(retry=Retry(attempts=1))
async def say(text: str) -> str:
    raise ValueError(text)


@workflow
async def hostile(text: str) -> str:
    batuta.publish("said", text)
    return await say(text)


APP = App(workflows=[hostile], activities=[say])


def is_inert(answer: Response, kind: str = "application/json") -> bool:
    policy = answer.headers["content-security-policy"]
    return (
        answer.headers["content-type"] in (kind, "application/problem+json")
        and answer.headers["x-content-type-options"] == "nosniff"
        and "default-src 'none'" in policy
        and "unsafe" not in policy
    )


def ids(text: str) -> str:
    return "".join(f"%{byte:02x}" for byte in text.encode())


@pytest.mark.parametrize("several", [PAYLOADS[place::6] for place in range(6)], ids=["a", "b", "c", "d", "e", "f"])
async def test_hostile_texts_in_ids_tags_inputs_errors_and_names_stay_json(
    client: batuta.Batuta, several: list[str]
) -> None:
    server = Server(client)
    web = Web(server.serve)
    web = web.with_headers(x_csrf_token=(await web.get("/api/v1/session")).json["csrf_token"])
    async with client.worker(workflows=APP.workflows, activities=APP.activities):
        for text in several:
            made = await web.post(
                "/api/v1/runs", {"name": "hostile", "input": [text], "id": text, "tags": {"x": text}, "memo": text}
            )
            assert (made.status, is_inert(made), "<" in made.headers["location"]) == (201, True, False)
            await ended(web, ids(text))
            await web.ask("PATCH", f"/api/v1/queues/{ids(text)}", {"concurrency": 1, "reason": text})
            await web.post("/api/v1/schedules", {"id": text, "name": "hostile", "every": 3600, "input": [text]})
            await web.post("/api/v1/api-keys/none/rotate", {"reason": text})
        for route in TABLE:
            if route.method != "GET" or route.streams or route.answer is None:
                continue
            for text in several if route.parameters else several[:1]:
                answer = await web.get(route.path.replace("{id}", ids(text)).replace("{name}", ids(text)))
                assert is_inert(answer), route.path
                json.decode(answer.body)
    await server.close()


@pytest.mark.parametrize("text", PAYLOADS[:12])
async def test_pages_do_not_repeat_what_the_address_says(web: Web, text: str) -> None:
    plain = await web.get("/runs/x")
    for path in (f"/runs/{ids(text)}", f"/{ids(text)}", f"/docs?x={ids(text)}", f"/docs/{ids(text)}"):
        answer = await web.get(path)
        assert "alert" not in answer.body.decode()
        assert is_inert(answer, "text/html; charset=utf-8")
    assert (await web.get(f"/runs/{ids(text)}")).body == plain.body


async def test_a_mount_with_a_hostile_path_is_escaped(server: Server) -> None:
    async def mounted(scope: dict[str, object], receive: object, send: object) -> None:
        await server.serve(scope | {"root_path": "/<script>alert(1)</script>"}, receive, send)  # type: ignore[arg-type]

    for path in ("/docs", "/"):
        assert b"<script>alert" not in (await Web(mounted).get(path)).body
