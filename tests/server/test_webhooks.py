"""Webhooks over HTTP."""

import asyncio
from typing import Any

import batuta
from batuta.webhooks import AddressPolicy, SafeHttpClient
from tests.server.web import Web
from tests.webhooks.receiver import receiving

HOOKS = "/api/v1/webhooks"


async def ask(web: Web, method: str, path: str, body: Any = None, status: int = 200) -> Any:
    answer = await web.ask(method, path, body)
    assert answer.status == status, answer
    return answer.json


async def test_endpoints_live_over_http(web: Web) -> None:
    made = await ask(web, "POST", HOOKS, {"url": "https://example.com/?key=hidden", "types": ["a.*"]}, 201)
    one = f"{HOOKS}/{made['id']}"
    assert made["secret"].startswith("whsec_")
    changed = await ask(web, "PATCH", one, {"description": "shop", "disable_after": 60})
    assert (changed["description"], changed["disable_after"], "secret" in changed) == ("shop", 60, False)
    rotated = await ask(web, "POST", f"{one}/rotate", {"overlap": 0})
    assert rotated["secret"] != made["secret"]
    assert (await ask(web, "POST", f"{one}/disable", {"reason": "no more"}))["reason"] == "no more"
    assert (await ask(web, "POST", f"{one}/enable", {}))["enabled"] is True
    shown = await ask(web, "GET", one)
    page = await ask(web, "GET", HOOKS)
    assert "hidden" not in repr([shown, page])
    assert [row["id"] for row in page["endpoints"]] == [made["id"]]
    assert (await ask(web, "DELETE", f"{one}?reason=moved"))["deleted"] is True
    assert (await web.ask("GET", one)).json["code"] == "unknown_endpoint"


async def test_events_are_sent_and_sent_again_over_http(web: Web, client: batuta.Batuta) -> None:
    policy = AddressPolicy(["127.0.0.1"])
    async with receiving() as receiver, SafeHttpClient(policy) as http, client.worker(webhooks=http):
        made = await ask(web, "POST", HOOKS, {"url": receiver.url}, 201)
        body = {"type": "order.paid", "data": {"id": 1}, "id": "evt-1"}
        [sent] = (await ask(web, "POST", f"{HOOKS}/send", body, 201))["deliveries"]
        await (await client.get_run(sent["run_id"])).result()
        again = await ask(web, "POST", f"{HOOKS}/deliveries/{sent['run_id']}/resend", {}, 201)
        await (await client.get_run(again["run_id"])).result()
        tested = await ask(web, "POST", f"{HOOKS}/{made['id']}/test", None, 201)
        await (await client.get_run(tested["run_id"])).result()
        assert [one.id for one in receiver.received][:2] == ["evt-1", "evt-1"]
        page = await ask(web, "GET", f"{HOOKS}?endpoint={made['id']}&type=order.paid&state=completed")
        assert [one["run_id"] for one in page["deliveries"]] == [again["run_id"], sent["run_id"]]
        async with asyncio.timeout(20):
            while not (await ask(web, "GET", HOOKS))["endpoints"][0]["breaker"]:
                await asyncio.sleep(0.01)
        assert (await ask(web, "GET", HOOKS))["endpoints"][0]["limit"] == "10 at once"
        listed = await ask(web, "GET", f"{HOOKS}/deliveries?limit=1")
        assert len(listed["runs"]) == 1
        attempts = await ask(web, "GET", f"/api/v1/jobs/{sent['run_id']}/attempts")
        assert len(attempts["attempts"]) == 1
