"""Breakers and limits over HTTP."""

from typing import Any

import pytest

import batuta
from tests.partners import declare
from tests.server.web import Web

PARTNERS = "/api/v1/partners"
BANK, ORDERS = f"{PARTNERS}/breakers/bank", f"{PARTNERS}/limits/orders"


@pytest.fixture(autouse=True)
async def declared(client: batuta.Batuta) -> None:
    await declare(client)


async def ask(web: Web, method: str, path: str, body: Any = None) -> Any:
    answer = await web.ask(method, path, body)
    assert answer.status == 200, answer
    return answer.json


async def test_breakers_are_listed_forced_and_forgotten(web: Web) -> None:
    listed = await ask(web, "GET", PARTNERS)
    assert [(one["name"], one["state"]) for one in listed["breakers"]] == [("bank", "closed")]
    assert [(one["name"], one["rates"], one["capacity"]) for one in listed["limits"]] == [
        ("balance", [], 10),
        ("orders", ["5/min"], None),
    ]
    for state, shown in (("open", ("open", "open")), ("off", ("closed", "off")), ("closed", ("closed", ""))):
        forced = await ask(web, "PUT", BANK, {"state": state, "reason": f"to {state}"})
        assert (forced["state"], forced["forced"]) == shown
    assert (await ask(web, "DELETE", f"{BANK}?reason=moved"))["breakers"] == []
    rows = (await ask(web, "GET", "/api/v1/audit"))["rows"]
    assert [(row["verb"], row["target"], row["actor"], row["reason"]) for row in reversed(rows)] == [
        ("force breaker", "bank", "loopback", "to open"),
        ("force breaker", "bank", "loopback", "to off"),
        ("force breaker", "bank", "loopback", "to closed"),
        ("forget partner", "bank", "loopback", "moved"),
    ]


async def test_limits_are_changed_held_told_and_forgotten(web: Web) -> None:
    changed = await ask(web, "PUT", ORDERS, {"rates": ["2/s"], "concurrency": 3, "reason": "slower"})
    assert (changed["rates"], changed["concurrency"], changed["declared"]) == (["2/s"], 3, "5/min")
    assert (await ask(web, "POST", f"{ORDERS}/hold", {"seconds": 600}))["keys"][0]["held_until"] is not None
    assert (await ask(web, "POST", f"{ORDERS}/release", {}))["keys"][0]["held_until"] is None
    assert (await ask(web, "POST", f"{ORDERS}/reset", {"reason": "enough"}))["changed"] is False
    assert (await ask(web, "PUT", ORDERS, {"capacity": 7, "refill": "1/s"}))["capacity"] == 7
    assert (await ask(web, "POST", f"{ORDERS}/sync", {"balance": -4}))["keys"][0]["balance"] == -4
    assert [one["name"] for one in (await ask(web, "DELETE", ORDERS))["limits"]] == ["balance"]
    rows = (await ask(web, "GET", "/api/v1/audit"))["rows"]
    assert [row["after"] for row in reversed(rows)][1:3] == [
        {"key": "*", "held_seconds": 600},
        {"key": "*", "held_seconds": 0},
    ]
    assert [(row["verb"], row["target"], row["reason"]) for row in reversed(rows)] == [
        ("change limit", "orders", "slower"),
        ("change limit", "orders", ""),
        ("change limit", "orders", ""),
        ("change limit", "orders", "enough"),
        ("change limit", "orders", ""),
        ("forget partner", "orders", ""),
    ]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "breakers/nope", {"state": "open"}),
        ("DELETE", "breakers/nope", None),
        ("DELETE", "limits/nope", None),
        ("POST", "limits/nope/reset", {}),
        ("POST", "limits/nope/hold", {"seconds": 5}),
        ("POST", "limits/nope/release", {}),
        ("POST", "limits/nope/sync", {"balance": 5}),
    ],
)
async def test_an_unknown_name_is_a_problem_that_names_it(web: Web, method: str, path: str, body: Any) -> None:
    answer = await web.ask(method, f"{PARTNERS}/{path}", body)
    assert (answer.status, answer.json["code"]) == (404, "unknown_partner")
    assert "'nope'" in answer.json["detail"]


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "breakers/bank", {"state": "ajar"}),
        ("PUT", "breakers/bank", {"state": "open", "why": "x"}),
        ("PUT", "limits/orders", {}),
        ("PUT", "limits/orders", {"rates": ["many"]}),
        ("PUT", "limits/orders", {"concurrency": 0}),
        ("PUT", "limits/orders", {"capacity": 5}),
        ("PUT", "limits/orders", {"capacity": 5, "refill": "often"}),
        ("PUT", "limits/orders", {"rates": ["2/s"], "refill": "1/s"}),
        ("POST", "limits/orders/hold", {"seconds": 0}),
        ("POST", "limits/orders/sync", {"balance": 5}),
        ("POST", "limits/balance/sync", {"balance": "much"}),
    ],
)
async def test_an_invalid_request_changes_nothing(web: Web, method: str, path: str, body: Any) -> None:
    before = await ask(web, "GET", PARTNERS)
    answer = await web.ask(method, f"{PARTNERS}/{path}", body)
    assert (answer.status, answer.json["code"]) == (400, "invalid_input")
    assert await ask(web, "GET", PARTNERS) == before
