"""`batuta webhooks` against SQLite."""

import json
from typing import Any

from tests.cli.conftest import Cli

OK, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3
TARGET = "https://example.com/hooks?token=hidden"


def document(cli: Cli, *words: str) -> Any:
    result = cli("webhooks", *words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


def test_an_endpoint_is_made_shown_changed_and_deleted(cli: Cli) -> None:
    made = document(cli, "create", TARGET, "--type", "order.*", "--description", "the shop", "--disable-after", "5d")
    assert made["secret"].startswith("whsec_")
    id = made["id"]
    for words in (["list"], ["show", id], ["deliveries"]):
        said = cli("webhooks", *words)
        assert (said.exit_code, made["secret"] in said.stdout, "hidden" in said.stdout) == (OK, False, False)
    shown = document(cli, "show", id)
    assert (shown["url"], shown["types"], shown["disable_after"]) == (
        "https://example.com/hooks?...",
        ["order.*"],
        432_000,
    )
    changed = document(cli, "update", id, "--type", "*", "--address", "https://example.org/", "--disable-after", "0")
    assert (changed["url"], changed["types"], changed["disable_after"]) == ("https://example.org/", ["*"], None)
    assert document(cli, "disable", id, "--reason", "they asked")["reason"] == "they asked"
    assert "disabled (they asked)" in cli("webhooks", "list").stdout
    assert document(cli, "enable", id)["enabled"] is True
    other = cli("webhooks", "rotate", id, "--overlap", "1h").stdout.strip()
    assert other.startswith("whsec_")
    assert other != made["secret"]
    assert len(document(cli, "show", id)["secrets"]) == 2
    assert document(cli, "delete", id, "--reason", "moved") == {"id": id, "deleted": True}
    verbs = [row["verb"] for row in json.loads(cli("audit", "list", "--json").stdout)["rows"]]
    assert verbs == [
        "delete webhook",
        "rotate webhook secret",
        "change webhook",
        "change webhook",
        "change webhook",
        "create webhook",
    ]


def test_an_event_is_sent_once_for_each_id(cli: Cli) -> None:
    id = document(cli, "create", "https://example.com/")["id"]
    sent = document(cli, "send", "order.paid", "--data", '{"id": 7}', "--id", "evt-7")["deliveries"]
    assert [(one["id"], one["is_new"]) for one in sent] == [(f"webhook:{id}:evt-7", True)]
    assert "was sent before" in cli("webhooks", "send", "order.paid", "--id", "evt-7").stdout
    assert document(cli, "test", id)["deliveries"][0]["is_new"] is True
    listed = document(cli, "deliveries", "--endpoint", id, "--type", "order.paid")["deliveries"]
    assert [one["tags"]["type"] for one in listed] == ["order.paid"]
    assert document(cli, "deliveries", "--state", "completed")["deliveries"] == []
    again = cli("webhooks", "resend", f"webhook:{id}:evt-7")
    assert again.exit_code == USAGE
    assert "under way" in again.stderr


def test_what_is_not_there_or_wrong_is_said(cli: Cli) -> None:
    cli("migrate")
    for words in (["show", "ep_x"], ["delete", "ep_x"], ["rotate", "ep_x"], ["test", "ep_x"], ["resend", "none"]):
        assert cli("webhooks", *words).exit_code == NOT_FOUND
    for words in (
        ["create", "ftp://x/"],
        ["create", "https://example.com/", "--type", "a b"],
        ["send", "a b"],
        ["send", "a", "--data", "{"],
        ["update", "ep_x"],
    ):
        assert cli("webhooks", *words).exit_code == USAGE
    assert "no endpoints" in cli("webhooks", "list").stderr
    assert "no enabled endpoint" in cli("webhooks", "send", "a").stderr
