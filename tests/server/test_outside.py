"""Activities that are completed over HTTP, by their tokens."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import batuta
from batuta import CompleteLater, activity, activity_info, workflow
from batuta.server import Server
from tests.server.web import Web

given: asyncio.Queue[str] = asyncio.Queue()


@activity
async def ask() -> str:
    given.put_nowait(activity_info().token)
    raise CompleteLater


@workflow
async def asks() -> str:
    return await ask()


@pytest.fixture
async def client(sqlite_url: str) -> AsyncIterator[batuta.Batuta]:
    async with batuta.connect(sqlite_url) as opened, opened.worker(workflows=[asks], activities=[ask]):
        yield opened


async def token_of(web: Web, id: str) -> str:
    assert (await web.post("/api/v1/runs", {"name": "asks", "id": id})).status == 201
    return await asyncio.wait_for(given.get(), 20)


async def test_an_activity_is_kept_alive_completed_and_failed_by_its_token(web: Web) -> None:
    token = await token_of(web, "a")
    kept = await web.post("/api/v1/activities/heartbeat", {"token": token, "details": 3})
    assert (kept.status, kept.json) == (200, {"sent": "heartbeat"})
    done = await web.post("/api/v1/activities/complete", {"token": token, "value": "yes"})
    assert (done.status, done.json) == (200, {"sent": "complete"})
    assert (await web.get("/api/v1/runs/a", wait=20)).json["result"] == "yes"
    other = await token_of(web, "b")
    failed = await web.post("/api/v1/activities/fail", {"token": other, "message": "no", "retry": False})
    assert (failed.status, failed.json) == (200, {"sent": "fail"})
    assert "no" in (await web.get("/api/v1/runs/b", wait=20)).json["error"]


async def test_a_token_is_not_kept_with_the_answer_of_a_request_that_has_an_idempotency_key(
    web: Web, tmp_path: Path
) -> None:
    token = await token_of(web, "a")
    for _ in range(2):
        sent = await web.post("/api/v1/activities/heartbeat", {"token": token}, idempotency_key="k")
        assert (sent.status, token.encode() in sent.body) == (200, False)
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("batuta.db*") if file.is_file())
    assert b'"heartbeat"' in stored
    assert token.encode() not in stored


async def test_what_is_no_token_is_a_problem_that_does_not_quote_it(web: Web, server: Server) -> None:
    token = await token_of(web, "a")
    for verb in ("complete", "fail", "heartbeat"):
        for wrong in ("hush", token[:-1] + ("A" if token[-1] != "A" else "B"), token + "x"):
            refused = await web.post(f"/api/v1/activities/{verb}", {"token": wrong})
            assert (refused.status, wrong.encode() in refused.body) == (400, False), refused
