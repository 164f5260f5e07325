"""`batuta partners` against SQLite."""

import asyncio
import json
from typing import Any

import pytest

from batuta import connect
from tests.cli.conftest import Cli
from tests.partners import declare

OK, FAILED, USAGE = 0, 1, 2


@pytest.fixture
def declared(cli: Cli, sqlite_url: str) -> Cli:
    """The commands, after a program has used a breaker and two limits."""
    cli("migrate")

    async def use() -> None:
        async with connect(sqlite_url) as client:
            await declare(client)

    asyncio.run(use())
    return cli


def document(cli: Cli, *words: str) -> Any:
    result = cli("partners", *words, "--json")
    assert result.exit_code == OK, result.stderr
    found = json.loads(result.stdout)
    return {one["name"]: one for one in found["breakers"] + found["limits"]}


def audited(cli: Cli) -> list[tuple[str, str, str]]:
    rows = json.loads(cli("audit", "list", "--json").stdout)["rows"]
    return [(row["verb"], row["target"], row["reason"]) for row in reversed(rows)]


def test_breakers_are_forced_and_forgotten_and_the_audit_log_says_why(declared: Cli) -> None:
    assert {name: one.get("state") for name, one in document(declared, "list").items()} == {
        "bank": "closed",
        "balance": None,
        "orders": None,
    }
    bank = document(declared, "open", "bank", "--reason", "maintenance")["bank"]
    assert (bank["state"], bank["forced"], bank["reason"]) == ("open", "open", "maintenance")
    shown = declared("partners", "list").stdout
    assert "open (forced open)" in shown
    assert "maintenance" in shown
    bank = document(declared, "off", "bank", "--reason", "never mind")["bank"]
    assert (bank["state"], bank["forced"]) == ("closed", "off")
    assert document(declared, "close", "bank", "--reason", "as before")["bank"]["forced"] == ""
    assert "bank" not in document(declared, "delete", "breaker", "bank", "--reason", "moved")
    assert audited(declared) == [
        ("force breaker", "bank", "maintenance"),
        ("force breaker", "bank", "never mind"),
        ("force breaker", "bank", "as before"),
        ("forget partner", "bank", "moved"),
    ]


def test_limits_are_changed_held_and_reset(declared: Cli) -> None:
    words = ("limit", "orders", "--rate", "2/s", "--rate", "50/min", "--concurrency", "3", "--reason", "slower")
    orders = document(declared, *words)["orders"]
    assert (orders["rates"], orders["concurrency"]) == (["2/s", "50/min"], 3)
    assert (orders["changed"], orders["declared"], orders["reason"]) == (True, "5/min", "slower")
    assert "(changed; code: 5/min)" in " ".join(declared("partners", "list").stdout.split())
    assert document(declared, "hold", "orders", "10min")["orders"]["keys"][0]["held_until"] is not None
    assert document(declared, "release", "orders")["orders"]["keys"][0]["held_until"] is None
    orders = document(declared, "reset", "orders", "--reason", "enough")["orders"]
    assert (orders["rates"], orders["changed"]) == (["5/min"], False)
    assert document(declared, "sync", "balance", "-4")["balance"]["keys"][0]["balance"] == -4
    for name in ("orders", "balance"):
        document(declared, "delete", "limit", name)
    assert list(document(declared, "list")) == ["bank"]
    assert audited(declared)[:4] == [
        ("change limit", "orders", "slower"),
        ("change limit", "orders", ""),
        ("change limit", "orders", ""),
        ("change limit", "orders", "enough"),
    ]


def test_a_namespace_without_partners_says_so(cli: Cli) -> None:
    cli("migrate")
    assert document(cli, "list") == {}
    assert "there are no breakers and limits" in cli("partners", "list").stderr


@pytest.mark.parametrize(
    "words",
    [
        ("open", "nope"),
        ("close", "nope"),
        ("off", "nope"),
        ("reset", "nope"),
        ("hold", "nope", "5"),
        ("release", "nope"),
        ("sync", "nope", "5"),
        ("delete", "limit", "bank"),
        ("delete", "breaker", "orders"),
    ],
)
def test_an_unknown_name_is_named(declared: Cli, words: tuple[str, ...]) -> None:
    refused = declared("partners", *words, "--json")
    assert refused.exit_code == FAILED
    error = json.loads(refused.stderr)["error"]
    assert error["type"] == "UnknownPartner"
    assert repr(words[-1] if words[0] == "delete" else "nope") in error["message"]


@pytest.mark.parametrize(
    "words",
    [
        ("limit", "orders"),
        ("limit", "orders", "--rate", "many"),
        ("limit", "orders", "--rate", "1/s", "--rate", "1/h"),
        ("limit", "orders", "--concurrency", "0"),
        ("limit", "", "--rate", "1/s"),
        ("hold", "orders", "0"),
        ("hold", "orders", "nan"),
        ("hold", "orders", "5", "--key", ""),
        ("sync", "balance", "inf"),
        ("sync", "orders", "5"),
        ("sync", "balance", "5", "--kye", "a"),
        ("delete", "gate", "bank"),
        ("open", "bank", "--reason", "x" * 100_000),
    ],
)
def test_an_invalid_request_changes_nothing(declared: Cli, words: tuple[str, ...]) -> None:
    before = document(declared, "list")
    assert declared("partners", *words).exit_code == USAGE
    assert document(declared, "list") == before
