"""ai_task against a small endpoint that is good, wrong, slow, rate-limited or away."""

import asyncio
import json
from typing import Any

import pytest

from batuta.flows.ai import AiEndpoint
from batuta.flows.secrets import Secrets
from batuta.flows.workflow import Flows
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.kit import DONE, Doc, outputs, ran, step
from tests.flows.server import Answer, Request, Server, serving

SCHEMA = {"type": "object", "required": ["kind"], "properties": {"kind": {"enum": ["a", "b"]}}}
PAYLOAD = {"text": "hello"}


def said(text: Any, tokens: int = 10) -> Answer:
    content = text if isinstance(text, str) else json.dumps(text)
    usage = {"prompt_tokens": 5, "completion_tokens": tokens}
    return Answer(200, {"choices": [{"message": {"content": content}}], "usage": usage})


def ask(**config: Any) -> Doc:
    given = {"prompt": "Classify {{ event.payload.text }}", "fallback": "use_default_template"} | config
    return [step("ai", "ai_task", **given), DONE]


async def asked(server: Server, **config: Any) -> Any:
    flows = Flows(
        policy=AddressPolicy(allow=["127.0.0.1"]),
        ai=AiEndpoint(url=server.url, model="tiny", api_key="key-of-the-worker"),
    )
    return outputs(await ran(ask(**config), PAYLOAD, flows))["ai"]


async def test_without_an_endpoint_the_input_passes_through() -> None:
    # covers E-09
    found = await ran(ask(), PAYLOAD)
    assert outputs(found)["ai"] == {"fallbackUsed": True, "fallback": "use_default_template", "data": PAYLOAD}


async def test_the_answer_is_checked_and_usage_is_recorded() -> None:
    async with serving() as server:
        server.answers = [said({"kind": "a"})]
        found = await asked(server, schema=SCHEMA, temperature=0.5)
    assert found["data"] == {"kind": "a"}
    assert found["fallbackUsed"] is False
    assert found["usage"] == {"calls": 1, "promptTokens": 5, "completionTokens": 10}
    sent = server.received[0]
    assert sent.path == "/chat/completions"
    assert sent.headers["authorization"] == "Bearer key-of-the-worker"
    assert (sent.json()["model"], sent.json()["temperature"]) == ("tiny", 0.5)
    assert "Classify hello" in sent.json()["messages"][1]["content"]


async def test_an_answer_in_a_fence_is_read() -> None:
    async with serving() as server:
        server.answers = [said('```json\n{"kind": "b"}\n```')]
        assert (await asked(server, schema=SCHEMA))["data"] == {"kind": "b"}


@pytest.mark.parametrize("first", ["no json", {"kind": "z"}, []])
async def test_a_wrong_answer_is_repaired_once(first: Any) -> None:
    async with serving() as server:
        server.answers = [said(first), said({"kind": "b"})]
        found = await asked(server, schema=SCHEMA)
    assert found["data"] == {"kind": "b"}
    assert found["usage"]["calls"] == 2
    assert "does not fit" in server.received[1].json()["messages"][-1]["content"]


async def test_an_answer_that_stays_wrong_is_replaced_by_the_fallback() -> None:
    async with serving() as server:
        server.answers = [said("no"), said("no"), said({"kind": "a"})]
        found = await asked(server, schema=SCHEMA)
    assert (found["fallbackUsed"], found["data"], len(server.received)) == (True, PAYLOAD, 2)
    assert "also after a repair" in found["reason"]


async def test_a_rate_limited_endpoint_is_asked_again() -> None:
    async with serving() as server:
        server.answers = [Answer(429, "later"), Answer(500, "oops"), said({"kind": "a"})]
        assert (await asked(server, schema=SCHEMA))["data"] == {"kind": "a"}


async def test_there_is_no_waiting_beyond_the_budget() -> None:
    async with serving() as server:
        server.answers = [Answer(429, "later", {"Retry-After": "3600"})]
        found = await asked(server, schema=SCHEMA)
    assert "no time left" in found["reason"]


async def test_a_slow_endpoint_is_given_up_in_time() -> None:
    async def never(_request: Request) -> Answer:
        await asyncio.sleep(3600)
        return Answer()

    async with serving(never) as server:
        found = await asked(server, budget=0.2)
    assert found["fallbackUsed"] is True
    assert "0.2 s" in found["reason"]


@pytest.mark.parametrize(
    "answer",
    [
        Answer(401, "who?"),
        Answer(200, "no json"),
        Answer(200, {"choices": []}),
        Answer(200, [1]),
        Answer(200, {"choices": 3}),
    ],
)
async def test_an_endpoint_that_makes_no_sense_is_not_relied_on(answer: Answer) -> None:
    async with serving() as server:
        server.answers = [answer]
        found = await asked(server)
    assert (found["fallbackUsed"], found["data"]) == (True, PAYLOAD)


async def test_tokens_are_limited_over_both_rounds() -> None:
    async with serving() as server:
        server.answers = [said("no", tokens=50), said({"kind": "a"})]
        found = await asked(server, schema=SCHEMA, maxTokens=50)
    assert len(server.received) == 1
    assert server.received[0].json()["max_tokens"] == 50
    assert "all 50 tokens are used" in found["reason"]


async def test_a_schema_that_asks_too_much_of_an_answer_is_given_up() -> None:
    parts = {f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(30)} | {"a30": {"type": "object"}}
    async with serving() as server:
        server.answers = [said({"kind": "a"})]
        found = await asked(server, schema={"$ref": "#/$defs/a0", "$defs": parts})
    assert (found["fallbackUsed"], "to check the answer" in found["reason"]) == (True, True)


async def test_an_endpoint_that_is_away_is_replaced_by_the_fallback() -> None:
    flows = Flows(policy=AddressPolicy(allow=["127.0.0.1"]))
    found = outputs(await ran(ask(url="http://127.0.0.1:9/v1"), PAYLOAD, flows))["ai"]
    assert found["fallbackUsed"] is True


async def test_the_key_of_the_worker_goes_only_to_its_own_endpoint() -> None:
    async with serving() as server, serving() as stranger:
        stranger.answers = [said("x")]
        secrets = Secrets(environment={"BATUTA_SECRET_AI": "key-of-the-flow"})
        own = AiEndpoint(url=server.url, api_key="key-of-the-worker")
        flows = Flows(policy=AddressPolicy(allow=["127.0.0.1"]), ai=own, secrets=secrets)
        await ran(ask(url=stranger.url), PAYLOAD, flows)
        await ran(ask(url=stranger.url, apiKey="secret://env/AI"), PAYLOAD, flows)
    assert "authorization" not in stranger.received[0].headers
    assert stranger.received[1].headers["authorization"] == "Bearer key-of-the-flow"
