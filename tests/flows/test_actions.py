"""Actions against a real receiver: what is sent, what comes back, and what secrets stay."""

import asyncio
import html
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from batuta import Signal, workflow
from batuta.flows.secrets import Secrets, UnknownSecret, hide
from batuta.flows.workflow import Flows, flow
from batuta.testing import Environment
from batuta.webhooks import verify_webhook
from batuta.webhooks.addresses import AddressPolicy
from tests.flows.kit import DONE, Doc, ended, failure_of, outputs, ran, start, step
from tests.flows.server import Answer, Server, serving

LOCAL = AddressPolicy(allow=["127.0.0.1"])
QUICK = {"first": 0.01}
TOKEN = "s3cr3t-t0ken-value"


def local(**more: Any) -> Flows:
    return Flows(policy=LOCAL, **more)


def act(**config: Any) -> Doc:
    return [step("act", "action", retry=QUICK, **config), DONE]


async def test_a_webhook_has_the_id_of_its_step_as_key_and_the_payload_as_body() -> None:
    # covers E-07
    async with serving() as server:
        found = await ran(act(url=server.url), {"amount": 5}, local())
    sent = server.received[0]
    assert (sent.method, sent.json()) == ("POST", {"amount": 5})
    assert sent.headers["x-idempotency-key"] == found.steps[0].id
    assert outputs(found)["act"] == {"status": 200, "body": None}


async def test_a_webhook_is_sent_three_times_with_the_same_key_and_then_the_run_fails() -> None:
    # covers E-08
    async with serving() as server:
        server.answers = [Answer(500, "down")] * 3
        found = await ran(act(url=server.url), {}, local())
    assert len({one.headers["x-idempotency-key"] for one in server.received}) == 1
    assert len(server.received) == 3
    words = f"POST {server.url}/ answered 500: down"
    assert failure_of(found.run) == f'Step "act" failed after 3 attempt(s): {words}'
    levels = [str(one.level) for one in found.logs if one.level != "info"]
    assert levels == ["warn", "warn", "error", "error"]
    assert found.logs[-4].message == f'Step "act" failed (attempt 1/3), will retry: {words}'
    assert found.steps[0].provider_ref == f"intent-{found.steps[0].id}-attempt-3"


async def test_a_failed_run_goes_on_from_its_failed_step() -> None:
    async with serving() as server, Environment(**local().parts()) as env:
        server.answers = [Answer(500, "down")] * 3
        first = step("first", "set", values={"n": 1})
        handle = await env.start(flow, start([first, *act(url=server.url)]), id="run")
        failed = await ended(handle)
        await handle.retry()
        again = await ended(await env.client.get("run"))
    assert failed.run.status == "FAILED"
    assert again.run.status == "COMPLETED"
    assert [one.step_key for one in again.steps] == ["first", "act", "done"]
    assert len({one.headers["x-idempotency-key"] for one in server.received}) == 1
    assert again.steps[1].id == failed.steps[1].id == server.received[-1].headers["x-idempotency-key"]


async def test_a_webhook_that_works_in_the_end_completes() -> None:
    async with serving() as server:
        server.answers = [Answer(503, "busy"), Answer(200, {"id": "order-9"})]
        found = await ran(act(url=server.url), {}, local())
    assert found.run.status == "COMPLETED"
    assert (found.steps[0].attempt, found.steps[0].provider_ref) == (2, "order-9")


async def test_a_receiver_that_asks_for_patience_is_called_again_then() -> None:
    async with serving() as server:
        server.answers = [Answer(429, "slow down", {"Retry-After": "0"})]
        found = await ran([step("act", "action", retry={"first": 3600}, url=server.url), DONE], {}, local())
    assert (found.run.status, len(server.received)) == ("COMPLETED", 2)


async def test_an_http_request_maps_its_answer() -> None:
    async with serving() as server:
        server.answers = [Answer(201, {"order": {"id": 7}, "noise": "x"}, {"X-Rate": "5"})]
        names = {"order": "body.order.id", "left": "headers.x-rate", "code": "status", "none": "body.nothing"}
        steps = act(actionType="http_request", method="put", url=server.url + "/{{ event.payload.n }}", response=names)
        found = await ran(steps, {"n": 3}, local())
    assert (server.received[0].method, server.received[0].path) == ("PUT", "/3")
    assert outputs(found)["act"] == {"order": 7, "left": "5", "code": 201, "none": None}


async def test_statuses_that_are_expected_are_a_success() -> None:
    async with serving() as server:
        server.answers = [Answer(404, "not there")]
        found = await ran(act(url=server.url, expect=[404]), {}, local())
    assert outputs(found)["act"]["status"] == 404


async def test_a_private_address_is_refused_at_once_unless_it_is_allowed() -> None:
    async with serving() as server:
        found = await ran(act(url=server.url), {}, Flows(policy=AddressPolicy(allow=[])))
    assert not server.received
    assert "after 1 attempt(s)" in failure_of(found.run)
    assert "127.0.0.1" in failure_of(found.run)


async def test_a_webhook_can_be_signed() -> None:
    secret = "whsec_" + "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0"
    secrets = Secrets(environment={"BATUTA_SECRET_HOOK": secret})
    async with serving() as server:
        await ran(act(url=server.url, sign="secret://env/HOOK"), {"a": 1}, local(secrets=secrets))
    sent = server.received[0]
    assert verify_webhook(sent.headers, sent.body, [secret]) == sent.headers["x-idempotency-key"]


async def test_a_secret_reaches_the_receiver_and_no_other_place(tmp_path: Path) -> None:
    async def echo(request: Any) -> Answer:
        return Answer(200, {"you": request.headers["authorization"], TOKEN: 1})

    (tmp_path / "token").write_text(TOKEN + "\n")
    headers = {"Authorization": "Bearer secret://file/token"}
    async with serving(echo) as server, Environment(**local(secrets=Secrets(folder=tmp_path)).parts()) as env:
        handle = await env.start(
            flow, start(act(url=server.url + "/?k=secret://file/token", headers=headers)), id="run"
        )
        found = await ended(handle)
        journal = str([line.body for line in await handle.journal()])
    assert server.received[0].headers["authorization"] == f"Bearer {TOKEN}"
    assert server.received[0].path == f"/?k={TOKEN}"
    assert outputs(found)["act"]["body"] == {"you": "Bearer [secret]", "[secret]": 1}
    assert TOKEN not in journal + str(found)


async def test_a_secret_is_not_in_an_error_either() -> None:
    async def echo(request: Any) -> Answer:
        return Answer(400, f"bad key {request.headers['authorization']}")

    secrets = Secrets(environment={"BATUTA_SECRET_T": TOKEN})
    async with serving(echo) as server, Environment(**local(secrets=secrets).parts()) as env:
        steps = act(url=server.url + "/secret://env/T", headers={"Authorization": "secret://env/T"})
        handle = await env.start(flow, start(steps), id="run")
        found = await ended(handle)
        kept = str([line.body for line in await handle.journal()]) + str(await handle.attempts())
    assert "bad key [secret]" in failure_of(found.run)
    assert TOKEN not in kept + str(found)


async def test_an_event_cannot_have_a_secret_sent() -> None:
    secrets = Secrets(environment={"BATUTA_SECRET_T": TOKEN})
    payload = {"x": "secret://env/T", "gap": {"gaps": [[["url"], [["env", "T"]]]]}}
    async with serving() as server:
        steps = act(url=server.url, headers={"X-A": "{{ event.payload.x }}", "X-B": "secret://env/T"})
        await ran(steps, payload, local(secrets=secrets))
    assert server.received[0].headers["x-a"] == "secret://env/T"
    assert server.received[0].headers["x-b"] == TOKEN
    assert server.received[0].json() == payload


@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("secret://env/PATH", "set variable BATUTA_SECRET_PATH"),
        ("secret://file/token", "set file 'token'"),
        ("secret://vault/x", "no source 'vault'"),
    ],
)
async def test_a_secret_that_is_not_there_fails_the_step_and_says_where_it_was_looked_for(
    reference: str, words: str
) -> None:
    flows = local(secrets=Secrets(environment={"PATH": "/bin"}))
    found = await ran(act(url="http://127.0.0.1:1/", headers={"a": reference}), {}, flows)
    assert words in failure_of(found.run)
    assert "after 1 attempt(s)" in failure_of(found.run)


@pytest.mark.parametrize("name", ["../token", "..", "a/b", ""])
async def test_a_secret_in_a_file_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "token").write_text(TOKEN)
    folder = tmp_path / "inside"
    folder.mkdir()
    assert Secrets(folder=folder)._from_file(name) is None


@pytest.mark.parametrize("name", ["PATH", "BATUTA_KEYS", "KEYS", "_KEYS"])
async def test_a_variable_without_the_prefix_is_no_secret(name: str) -> None:
    secrets = Secrets(environment={"PATH": "/bin", "BATUTA_KEYS": "k:hush", "BATUTA_SECRET_T": "t", "KEYS": "hush"})
    assert await secrets.value("env", "T") == "t"
    with pytest.raises(UnknownSecret) as refused:
        await secrets.value("env", name)
    assert "hush" not in str(refused.value)


async def test_a_source_of_your_own_gives_secrets() -> None:
    async def vault(name: str) -> str | None:
        return TOKEN if name == "crm" else None

    async with serving() as server:
        steps = act(url=server.url, body={"key": "secret://vault/crm"})
        await ran(steps, {}, local(secrets=Secrets(sources={"vault": vault})))
    assert server.received[0].json() == {"key": TOKEN}


def test_short_values_are_not_searched_for() -> None:
    assert hide({"a": "one and two"}, ["on", "two "]) == {"a": "one and two"}
    assert hide(["abcd", {"abcd": 1}], ["abcd"]) == ["[secret]", {"[secret]": 1}]


SPECIAL = "s3cr3t-V/+\"%&=<x> 'ü\\"


@pytest.mark.parametrize(
    "told",
    [
        SPECIAL,
        quote(SPECIAL),
        quote(SPECIAL, safe="/+%&="),
        quote_plus(SPECIAL),
        json.dumps(SPECIAL),
        json.dumps(SPECIAL, ensure_ascii=False).replace("/", "\\/"),
        json.dumps(SPECIAL).replace("<", "\\u003c").replace(">", "\\u003E").replace("&", "\\u0026"),
        html.escape(SPECIAL),
    ],
)
def test_a_secret_is_found_however_its_signs_are_escaped(told: str) -> None:
    assert hide(f"a {told} b", [SPECIAL]).replace('"', "") == "a [secret] b"


def test_long_secrets_and_numbers_are_found() -> None:
    long = "a/b+" * 10_000
    assert hide([f"a {long} b", quote(long, safe="")], [long]) == ["a [secret] b", "[secret]"]
    assert hide({"pin": 12345678, "n": 112345678, "b": True}, ["12345678"]) == {
        "pin": "[secret]",
        "n": 112345678,
        "b": True,
    }


async def test_an_approval_tells_somebody_its_token_and_keeps_it_nowhere() -> None:
    async with serving() as server, Environment(**local().parts()) as env:
        notify = {"url": server.url}
        steps = [step("ok", "approval", title="Pay?", data={"n": 1}, notify=notify), DONE]
        handle = await env.start(flow, start(steps), id="run")
        told = await _told(server)
        assert (told["title"], told["data"], told["run"], told["step"]) == ("Pay?", {"n": 1}, "run", "ok")
        assert told["token"] not in str([line.body for line in await handle.journal()])
        await env.client.complete(told["token"], {"approved": True, "by": "ana"})
        found = await ended(handle)
    assert outputs(found)["ok"] == {"approved": True, "by": "ana", "comment": None, "data": None}


async def test_somebody_who_asks_for_patience_is_told_of_an_approval_then() -> None:
    async with serving() as server, Environment(**local().parts()) as env:
        server.answers = [Answer(429, "slow down", {"Retry-After": "600"})]
        steps = [step("ok", "approval", notify={"url": server.url}), DONE]
        handle = await env.start(flow, start(steps), id="run")
        async with asyncio.timeout(30):
            while not (tried := await handle.attempts()) or tried[0].ended_at is None or tried[0].next_at is None:
                await asyncio.sleep(0.005)
    assert (tried[0].next_at - tried[0].ended_at).total_seconds() >= 600


async def _told(server: Server) -> Any:
    async with asyncio.timeout(30):
        while not server.received:
            await asyncio.sleep(0.005)
    return server.received[0].json()


@pytest.mark.parametrize("value", [True, {"approved": "yes"}, {}, None])
async def test_a_token_that_is_completed_with_nonsense_fails_the_run(value: Any) -> None:
    async with serving() as server, Environment(**local().parts()) as env:
        steps = [step("ok", "approval", notify={"url": server.url}), DONE]
        handle = await env.start(flow, start(steps), id="run")
        told = await _told(server)
        await env.client.complete(told["token"], value)
        assert "a decision must be an object" in failure_of((await ended(handle)).run)


async def test_messages_are_published_with_the_id_of_their_step() -> None:
    sent: list[Any] = []

    async def publish(topic: str, payload: Any, /, *, key: str, id: str, type: str) -> None:
        sent.append((topic, payload, key, id, type))

    steps = act(
        actionType="publish", topic="t.{{ event.payload.n }}", body={"x": 1}, messageKey="{{ event.payload.n }}"
    )
    found = await ran(steps, {"n": 5}, Flows(publish=publish))
    assert sent == [("t.5", {"x": 1}, "5", found.steps[0].id, "flow.message")]


async def test_a_run_can_be_started_and_signalled() -> None:
    go = Signal("go", dict[str, int])

    @workflow
    async def other(n: int) -> int:
        return n + (await go.wait())["more"]

    steps = [
        step(
            "begin",
            "action",
            actionType="start_run",
            workflow="other",
            args=["{{ event.payload.n }}"],
            id="o-{{ event.payload.n }}",
        ),
        step(
            "tell", "action", actionType="signal_run", id="{{ steps.begin.output.id }}", signal="go", body={"more": 2}
        ),
        DONE,
    ]
    parts = Flows().parts()
    parts["workflows"] = [*parts["workflows"], other]
    async with Environment(**parts) as env:
        found = await ended(await env.start(flow, start(steps, {"n": 40}), id="run"))
        assert found.run.status == "COMPLETED"
        assert await (await env.client.get("o-40")).result() == 42
