"""`batuta runs pause|resume|cancel|terminate|retry|delete` and `batuta audit`, for one run and for many."""

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Work, wait_for

OK, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3


@pytest.fixture(autouse=True)
def _actor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATUTA_ACTOR", "ada")


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code in (OK, FAILED), result.stderr
    return json.loads(result.stdout)


def start(cli: Cli, *ids: str, workflow: str = "total") -> None:
    for id in ids:
        document(cli, "runs", "start", workflow, "--input", "[[1]]", "--id", id)


def state(cli: Cli, id: str) -> str:
    found: str = document(cli, "runs", "show", id)["state"]
    return found


def refused(cli: Cli, code: int, error: str, *words: str) -> None:
    result = cli(*words, "--json")
    assert (result.exit_code, result.stdout) == (code, "")
    assert json.loads(result.stderr)["error"]["type"] == error


def test_one_run_is_paused_and_resumed(cli: Cli) -> None:
    start(cli, "t-1")
    assert document(cli, "runs", "pause", "t-1", "--reason", "look")["news"] is True
    shown = document(cli, "runs", "show", "t-1")
    assert (shown["state"], shown["reason"]) == ("paused", "look")
    assert cli("runs", "pause", "t-1").stdout == "run t-1 is already paused\n"
    assert cli("runs", "resume", "t-1").stdout == "run t-1 goes on\n"
    assert cli("runs", "resume", "t-1").stdout == "run t-1 is not paused\n"
    assert state(cli, "t-1") == "pending"


def test_a_paused_run_does_nothing_until_it_is_resumed(cli: Cli, work: Work) -> None:
    start(cli, "t-1", "t-2")
    cli("runs", "pause", "t-1")
    work()
    wait_for(lambda: state(cli, "t-2") == "completed", "the other run to end")
    assert state(cli, "t-1") == "paused"
    cli("runs", "resume", "t-1")
    wait_for(lambda: state(cli, "t-1") == "completed", "the run to end")


def test_many_are_counted_first_and_need_a_yes(cli: Cli) -> None:
    start(cli, "a-1", "a-2", "b-1")
    result = cli("runs", "pause", "--id-prefix", "a-")
    assert result.exit_code == USAGE
    assert "2 runs match: add --yes to pause them" in result.stderr
    refused(cli, USAGE, "NotConfirmed", "runs", "pause", "--id-prefix", "a-")
    assert state(cli, "a-1") == "pending"
    assert document(cli, "runs", "pause", "--id-prefix", "a-", "--yes") == {
        "verb": "pause",
        "matched": 2,
        "done": 2,
        "refused": {},
    }
    assert [state(cli, id) for id in ("a-1", "a-2", "b-1")] == ["paused", "paused", "pending"]
    assert cli("runs", "resume", "--state", "paused", "--yes").stdout == "resume: 2 of 2 runs\n"


@pytest.mark.parametrize("verb", ["pause", "resume", "cancel", "terminate", "retry", "delete"])
def test_a_filter_that_matches_nothing_or_everything_is_an_error(cli: Cli, verb: str) -> None:
    start(cli, "t-1")
    refused(cli, NOT_FOUND, "NothingMatches", "runs", verb, "--id-prefix", "nobody", "--yes")
    refused(cli, USAGE, "MatchesEverything", "runs", verb, "--yes")
    refused(cli, USAGE, "InvalidInput", "runs", verb, "t-1", "--queue", "default", "--yes")
    refused(cli, NOT_FOUND, "UnknownRun", "runs", verb, "nobody", *(["--yes"] if verb == "delete" else []))
    assert state(cli, "t-1") == "pending"
    assert document(cli, "audit", "list")["rows"] == []


@pytest.mark.parametrize("option", ["--name", "--queue", "--id-prefix", "--key", "--since"])
def test_an_empty_filter_is_refused_as_it_would_match_more(cli: Cli, option: str) -> None:
    start(cli, "t-1")
    refused(cli, USAGE, "InvalidInput", "runs", "terminate", option, "", "--state", "pending", "--yes")
    refused(cli, USAGE, "InvalidInput", "runs", "terminate", "t-1", option, "")
    assert state(cli, "t-1") == "pending"


def test_an_act_on_all_runs_needs_the_option_all(cli: Cli) -> None:
    start(cli, "t-1", "t-2")
    refused(cli, USAGE, "NotConfirmed", "runs", "terminate", "--all")
    assert document(cli, "runs", "terminate", "--all", "--yes", "--reason", "over")["done"] == 2
    assert state(cli, "t-1") == "terminated"


def test_a_state_that_the_verb_is_not_for_is_refused(cli: Cli) -> None:
    start(cli, "t-1")
    refused(cli, USAGE, "InvalidInput", "runs", "delete", "--state", "pending", "--yes")


def test_many_are_cancelled_and_deleted(cli: Cli) -> None:
    start(cli, "t-1", "t-2")
    assert document(cli, "runs", "cancel", "--name", "total", "--yes") == {
        "verb": "cancel",
        "matched": 2,
        "done": 2,
        "refused": {},
    }
    refused(cli, NOT_FOUND, "NothingMatches", "runs", "cancel", "--name", "total", "--yes")
    start(cli, "t-3")
    assert document(cli, "runs", "delete", "--name", "total", "--yes")["done"] == 2
    assert cli("runs", "show", "t-1").exit_code == NOT_FOUND
    assert state(cli, "t-3") == "pending"


def test_one_run_is_deleted_when_it_is_closed_and_that_is_confirmed(cli: Cli) -> None:
    start(cli, "t-1")
    refused(cli, USAGE, "InvalidInput", "runs", "delete", "t-1")
    refused(cli, FAILED, "RunOpen", "runs", "delete", "t-1", "--yes")
    cli("runs", "terminate", "t-1")
    assert cli("runs", "delete", "t-1", "--yes").stdout == "deleted run t-1\n"
    assert cli("runs", "show", "t-1").exit_code == NOT_FOUND


def test_what_was_done_is_in_the_audit_log(cli: Cli) -> None:
    start(cli, "t-1", "t-2")
    cli("runs", "pause", "t-1", "--reason", "why not")
    cli("runs", "terminate", "--id-prefix", "t-", "--yes")
    cli("queues", "pause", "mail", "--reason", "down")
    rows = document(cli, "audit", "list")["rows"]
    assert [(row["number"], row["actor"], row["verb"], row["target"]) for row in rows] == [
        (4, "ada", "pause queue", "mail"),
        (3, "ada", "terminate", "t-1"),
        (2, "ada", "terminate", "t-2"),
        (1, "ada", "pause", "t-1"),
    ]
    assert (rows[0]["before"], rows[0]["after"]) == (
        {"paused": False, "reason": ""},
        {"paused": True, "reason": "down"},
    )
    assert (rows[1]["before"], rows[1]["after"]) == ({"state": "paused"}, {"state": "terminated"})
    assert rows[1]["detail"]["filter"]["id_prefix"] == "t-"
    assert (rows[3]["reason"], rows[3]["before"]) == ("why not", {"state": "pending"})
    assert [row["number"] for row in document(cli, "audit", "list", "--target", "t-1")["rows"]] == [3, 1]
    page = document(cli, "audit", "list", "--limit", "3")
    assert page["cursor"] == "2"
    assert [row["number"] for row in document(cli, "audit", "list", "--cursor", "2")["rows"]] == [1]
    assert "why not" in cli("audit", "list").stdout


def test_a_log_that_was_changed_by_hand_is_found(cli: Cli, sqlite_url: str) -> None:
    start(cli, "t-1")
    cli("runs", "pause", "t-1")
    cli("runs", "resume", "t-1")
    report = document(cli, "audit", "verify")
    assert (report["rows"], report["problem"]) == (2, "")
    assert cli("audit", "verify", "--expect", report["head"]).exit_code == OK
    file = sqlite3.connect(Path(sqlite_url.removeprefix("sqlite:///")))
    with file:
        file.execute("DROP TRIGGER audit_stays")
        file.execute("UPDATE audit SET actor = 'bob' WHERE number = 1")
    file.close()
    result = cli("audit", "verify")
    assert result.exit_code == FAILED
    assert "row 1 differs from what was written" in result.stdout


def test_an_invalid_end_of_the_log_is_refused(cli: Cli) -> None:
    start(cli, "t-1")
    refused(cli, USAGE, "InvalidInput", "audit", "verify", "--expect", "yesterday")
    refused(cli, USAGE, "InvalidInput", "audit", "list", "--cursor", "x")
