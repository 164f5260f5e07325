"""`batuta quotas` against SQLite."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Cli

OK, FAILED, USAGE = 0, 1, 2


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)["quotas"]


def test_quotas_are_set_listed_and_cleared(cli: Cli) -> None:
    cli("migrate")
    assert document(cli, "quotas", "list") == []
    assert "there are no quotas" in cli("quotas", "list").stderr
    document(cli, "quotas", "set", "open_runs", "1000")
    document(cli, "quotas", "set", "payload_bytes", "none")
    assert document(cli, "quotas", "set", "starts_per_second", "2.5", "--burst", "40") == [
        {"name": "open_runs", "limit": 1000, "burst": None, "used": 0, "own": True},
        {"name": "payload_bytes", "limit": None, "burst": None, "used": None, "own": True},
        {"name": "starts_per_second", "limit": 2.5, "burst": 40, "used": 0, "own": True},
    ]
    shown = cli("quotas", "list").stdout
    assert "1,000" in shown
    assert "2.5, 40 at once" in shown
    assert len(document(cli, "quotas", "delete", "open_runs")) == 2
    assert "there was no quota open_runs" in cli("quotas", "delete", "open_runs").stderr


def test_a_start_over_a_quota_is_refused_by_name(cli: Cli) -> None:
    cli("migrate")
    cli("quotas", "set", "open_runs", "1", "--namespace", "*")
    assert cli("runs", "start", "order", "-i", "1").exit_code == OK
    refused = cli("jobs", "enqueue", "note", "-i", "1", "--json")
    assert refused.exit_code == FAILED
    assert json.loads(refused.stderr)["error"]["type"] == "QuotaExceeded"
    assert [quota["own"] for quota in document(cli, "quotas", "list")] == [False]
    cli("quotas", "set", "open_runs", "none")
    assert cli("jobs", "enqueue", "note", "-i", "1").exit_code == OK
    cli("quotas", "set", "open_runs", "1")
    assert "more than 1" in cli("quotas", "list").stdout


def test_a_rate_holds_for_commands_that_start_one_thing_each(cli: Cli) -> None:
    cli("migrate")
    cli("quotas", "set", "starts_per_second", "0.001", "--burst", "2")
    codes = [cli("jobs", "enqueue", "note", "-i", str(number)).exit_code for number in range(3)]
    assert codes == [OK, OK, FAILED]


def test_changes_are_in_the_audit_log(cli: Cli) -> None:
    cli("migrate")
    cli("quotas", "set", "open_runs", "5")
    cli("quotas", "delete", "open_runs")
    rows = json.loads(cli("audit", "list", "--json").stdout)["rows"]
    assert [(row["verb"], row["before"], row["after"]) for row in rows] == [
        ("clear quota", {"limit": 5}, None),
        ("set quota", None, {"limit": 5}),
    ]


@pytest.mark.parametrize(
    "words",
    [
        ("set", "open_runs", "0"),
        ("set", "open_runs", "1.5"),
        ("set", "open_runs", "many"),
        ("set", "open_runs", "nan"),
        ("set", "open_runs", "5", "--burst", "5"),
        ("set", "runs", "5"),
        ("set", "starts_per_second", "inf"),
        ("set", "starts_per_second", "5", "--burst", "0"),
        ("delete", "runs"),
    ],
)
def test_an_invalid_request_changes_nothing(cli: Cli, words: tuple[str, ...]) -> None:
    cli("migrate")
    assert cli("quotas", *words).exit_code == USAGE
    assert document(cli, "quotas", "list") == []
