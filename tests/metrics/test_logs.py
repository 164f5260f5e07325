"""JSON logs: each line says which run, attempt and trace it belongs to."""

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from batuta import LogContext, Retry, RunFailed, activity, logger, run_child, workflow
from batuta.authoring.log_context import request_trace
from batuta.cli.common.logs import JsonFormatter, TextFormatter, log_to_stderr
from batuta.errors import InvalidInput, StoreUnavailable
from batuta.redaction import RedactingFilter
from batuta.server import Server
from tests.engine.kit import world
from tests.server.web import Web

TRACE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"
mine = logging.getLogger("shop")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(LogContext())
    handler.setFormatter(JsonFormatter())
    logging.root.addHandler(handler)
    try:
        yield stream
    finally:
        logging.root.removeHandler(handler)


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


@activity(retry=Retry(attempts=1))
async def charges(fails: bool) -> None:
    mine.warning("charging %s", "ann", extra={"amount": 3})
    if fails:
        raise ValueError("declined")


@workflow
async def inner() -> None:
    logger.warning("inner")


@workflow
async def order(fails: bool) -> None:
    logger.warning("begins")
    await run_child(inner)
    await charges(fails)


async def test_a_line_says_which_run_attempt_and_trace_it_belongs_to(lines: io.StringIO) -> None:
    async with world(order, inner, charges) as env:
        handle = await env.client.start(order, False, headers={"traceparent": TRACE})
        await handle.result()
        described = await handle.describe()
    found = {line["message"]: line for line in read(lines)}
    charging = found["charging ann"]
    assert (charging["run"], charging["activity"], charging["attempt"]) == (handle.id, "charges", "1")
    assert (charging["run_id"], charging["level"], charging["logger"]) == (str(handle.run_id), "warning", "shop")
    assert charging["amount"] == 3
    assert found["begins"]["workflow"] == "order"
    assert {line["trace_id"] for line in found.values() if "run" in line} == {TRACE.split("-")[1]}
    assert described.trace_id == TRACE.split("-")[1]


async def test_a_run_without_a_trace_has_one_made_for_it_its_children_and_its_dead_letter(lines: io.StringIO) -> None:
    async with world(order, inner, charges) as env:
        handle = await env.start(order, True)
        with pytest.raises(RunFailed):
            await handle.result()
        trace_id = (await handle.describe()).trace_id
        letter = await env.client.dead_letters.get(handle.id)
        unbegun = await env.client.start(order, False, queue="unserved")
        assert (await unbegun.describe()).trace_id == unbegun.run_id.hex
    assert trace_id == handle.run_id.hex == letter.trace
    found = read(lines)
    assert {line["trace_id"] for line in found if "run" in line} == {trace_id}
    assert {"begins", "inner", "charging ann"} <= {line["message"] for line in found}


def test_a_line_about_nothing_has_the_trace_id_of_the_process(lines: io.StringIO) -> None:
    mine.error("one", extra={"odd": {1j: 2}})
    mine.error("two", exc_info=StoreUnavailable("away"))
    one, two = read(lines)
    assert one["trace_id"].strip("'") == two["trace_id"]
    assert len(two["trace_id"]) == 32
    assert "StoreUnavailable: away" in two["error"]


def test_a_line_of_uvicorn_says_its_message_once(lines: io.StringIO) -> None:
    mine.warning("Started", extra={"color_message": "\x1b[36mStarted"})
    assert "color_message" not in read(lines)[0]


async def test_lines_of_a_request_have_its_trace_id(lines: io.StringIO) -> None:
    async with world(order) as env:
        server = Server(env.client)

        async def fails(*_: object) -> None:
            raise ZeroDivisionError("boom")

        object.__setattr__(env.client.namespace, "check", fails)
        answer = await Web(server.serve).ask("GET", "/readyz", headers={"traceparent": TRACE})
        await server.close()
    assert (answer.status, answer.json["trace_id"]) == (500, TRACE.split("-")[1])
    [line] = [line for line in read(lines) if "failed, trace id" in line["message"]]
    assert line["trace_id"] == TRACE.split("-")[1]
    assert request_trace.get() == TRACE.split("-")[1]


def test_redaction_applies_to_json_lines(lines: io.StringIO) -> None:
    [handler] = [one for one in logging.root.handlers if getattr(one, "stream", None) is lines]
    handler.addFilter(RedactingFilter())
    mine.error("sent to ann@example.com", extra={"password": "hunter2"})
    assert "ann@example.com" not in lines.getvalue()
    assert "hunter2" not in lines.getvalue()
    assert len(read(lines)[0]["trace_id"]) == 32


def test_an_unknown_format_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_LOG_FORMAT", "xml")
    with pytest.raises(InvalidInput, match="unknown log format BATUTA_LOG_FORMAT='xml': use one of text, json"):
        log_to_stderr()


async def test_lines_for_people_end_with_the_trace_id_of_their_run_or_request() -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.addFilter(LogContext())
    handler.setFormatter(TextFormatter())
    mine.addHandler(handler)
    try:
        async with world(order, inner, charges) as env:
            with pytest.raises(RunFailed):
                await (await env.client.start(order, True, headers={"traceparent": TRACE})).result()
        token = request_trace.set("ab" * 16)
        mine.warning("asked")
        mine.warning("failed, trace id %s", "ab" * 16)
        request_trace.reset(token)
        mine.warning("about nothing")
    finally:
        mine.removeHandler(handler)
    charging, asked, failed, other = stream.getvalue().splitlines()
    assert charging.endswith("WARNING shop: charging ann [trace 0af7651916cd43dd8448eb211c80319c]")
    assert asked.endswith(f"asked [trace {'ab' * 16}]")
    assert failed.count("ab" * 16) == 1
    assert other.endswith("about nothing")
