"""`batuta runs` against SQLite, with a worker process beside it."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOP, Cli, Spawn, Work, wait_for

OK, FAILED = 0, 1


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code in (OK, FAILED), result.stderr
    return json.loads(result.stdout)


def test_a_started_run_waits_for_a_worker(cli: Cli) -> None:
    started = document(cli, "runs", "start", "total", "--input", "[[1, 2]]", "--id", "t-1", "--tag", "shop=1")
    assert (started["id"], started["workflow"], started["state"]) == ("t-1", "total", "pending")
    shown = document(cli, "runs", "show", "t-1")
    assert shown["run_id"] == started["run_id"]
    assert shown["tags"] == {"shop": "1"}
    assert document(cli, "runs", "journal", "t-1") == {"id": "t-1", "entries": []}


def test_a_start_that_no_worker_can_take_says_so_at_once(cli: Cli, work: Work) -> None:
    work()
    started = cli("runs", "start", "totall", "--input", "[[1]]", "--id", "t-1")
    assert started.stdout == "run t-1 is pending\n"
    assert "no live worker of this queue has workflow 'totall' (they have:" in started.stderr
    assert "no live worker" in document(cli, "runs", "start", "totall", "--id", "t-1")["reason"]
    assert "has job 'weight'" in cli("jobs", "enqueue", "weight").stderr


def test_a_run_that_completes_is_waited_for(cli: Cli, work: Work) -> None:
    work()
    ended = document(cli, "runs", "start", "total", "--input", "[[1, 2, 3]]", "--id", "t-1", "--wait")
    assert (ended["state"], ended["result"]) == ("completed", 6)
    entries = document(cli, "runs", "journal", "t-1")["entries"]
    assert [entry["kind"] for entry in entries] == ["started"] + ["activity_done"] * 3
    assert entries[1]["body"]["commands"] == [{"seq": 2, "kind": "activity", "name": "add", "value": [1, 2]}]
    assert document(cli, "runs", "show", "t-1")["result"] == 6


def test_a_run_that_fails_exits_1_and_says_why(cli: Cli, work: Work) -> None:
    work()
    result = cli("runs", "start", "refuse", "--input", '"too late"', "--id", "r-1", "--wait")
    assert result.exit_code == FAILED
    assert result.stdout == "run r-1 is failed\n"
    assert "ValueError: too late" in result.stderr
    assert document(cli, "runs", "show", "r-1")["error"].endswith("ValueError: too late")


def test_every_command_shows_where_a_workflow_raised(cli: Cli, work: Work) -> None:
    work()
    waited = cli("runs", "start", "refuse", "--input", '"too late"', "--id", "r-1", "--wait")
    line = "raise ValueError(reason)"
    place = re.compile(r"ValueError: too late \(shop\.py:\d+ in refuse\)")
    assert line in waited.stderr
    for words in (["runs", "show", "r-1"], ["runs", "journal", "r-1"], ["runs", "timeline", "r-1"]):
        shown = cli(*words).stdout
        assert place.search(shown), words
        assert line in shown, words
    assert place.search(cli("runs", "list").stdout)
    assert line in document(cli, "runs", "show", "r-1")["traceback"]
    letter = cli("dead-letters", "show", "r-1").stdout
    assert "workflow_error" in letter
    assert line in letter
    assert place.search("ValueError: " + document(cli, "dead-letters", "show", "r-1")["message"])
    assert line in document(cli, "dead-letters", "show", "r-1")["traceback"]
    assert "(shop.py:" in cli("dead-letters", "list").stdout


def test_the_traceback_of_a_run_begins_in_the_activity_that_failed(cli: Cli, work: Work) -> None:
    work()
    cli("runs", "start", "declined", "--input", '"too late"', "--id", "d-1", "--wait")
    told = document(cli, "runs", "show", "d-1")["traceback"]
    raised, between, reached = told.partition("The workflow got this error from activity decline:")
    assert between
    assert "raise ValueError(reason)\nValueError: too late" in raised
    assert "await decline(reason)" in reached


def test_waiting_for_a_run_that_is_parked_ends_with_the_reason(cli: Cli, work: Work) -> None:
    work()
    result = cli("runs", "start", "stuck", "--wait", "--json")
    assert result.exit_code == FAILED
    ended = json.loads(result.stdout)
    assert ended["state"] == "needs_code"
    assert "not lost" in ended["error"]


def test_waiting_can_have_an_end(cli: Cli) -> None:
    result = cli("runs", "start", "total", "--wait-timeout", "0.05", "--json")
    assert result.exit_code == FAILED
    ended = json.loads(result.stdout)
    assert ended["state"] == "pending"
    assert "no live worker serves queue" in ended["error"]


def test_input_comes_from_a_file_or_from_stdin(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "in.json").write_text('{"a": 1}')
    cli("runs", "start", "x", "--id", "from-file", "--input", f"@{tmp_path / 'in.json'}")
    result = cli("runs", "start", "x", "--id", "from-stdin", "--input", "@-", stdin="[1, 2]")
    assert result.exit_code == OK
    assert [run["id"] for run in document(cli, "runs", "list")["runs"]] == ["from-stdin", "from-file"]


def test_the_same_id_gives_the_same_run_unless_told_otherwise(cli: Cli) -> None:
    first = document(cli, "runs", "start", "total", "--id", "t-1")
    again = document(cli, "runs", "start", "total", "--id", "t-1")
    assert again["run_id"] == first["run_id"]
    assert (first["is_new"], again["is_new"]) == (True, False)
    assert "it was there before" in cli("runs", "start", "total", "--id", "t-1").stdout
    other = cli("runs", "start", "total", "--id", "t-1", "--input", "[1]", "--if-exists", "same")
    assert other.exit_code == FAILED
    assert "other arguments" in other.stderr
    wrong = cli("runs", "start", "refund", "--id", "t-1")
    assert wrong.exit_code == FAILED
    assert "is of workflow 'total', not of workflow 'refund'" in wrong.stderr
    refused = cli("runs", "start", "total", "--id", "t-1", "--if-exists", "reject")
    assert refused.exit_code == FAILED
    assert "'t-1' exists" in refused.stderr


def test_runs_are_listed_in_pages_and_by_filters(cli: Cli) -> None:
    for number in range(5):
        cli("runs", "start", "even" if number % 2 == 0 else "odd", "--id", f"n-{number}", "--tag", f"n={number}")
    page = document(cli, "runs", "list", "--limit", "2")
    assert [run["id"] for run in page["runs"]] == ["n-4", "n-3"]
    following = document(cli, "runs", "list", "--limit", "2", "--cursor", page["cursor"])
    assert [run["id"] for run in following["runs"]] == ["n-2", "n-1"]
    assert [run["id"] for run in document(cli, "runs", "list", "--name", "odd")["runs"]] == ["n-3", "n-1"]
    assert [run["id"] for run in document(cli, "runs", "list", "--tag", "n=2")["runs"]] == ["n-2"]
    assert document(cli, "runs", "list", "--state", "failed", "--state", "completed")["runs"] == []
    assert document(cli, "runs", "list", "--until", "1999-01-01")["runs"] == []
    table = cli("runs", "list", "--limit", "2")
    assert "n-4" in table.stdout
    assert "--cursor" in table.stderr


def test_namespaces_do_not_see_each_other(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    cli("runs", "start", "x", "--id", "here")
    cli("runs", "start", "x", "--id", "there", "--namespace", "other")
    assert [run["id"] for run in document(cli, "runs", "list")["runs"]] == ["here"]
    monkeypatch.setenv("BATUTA_NAMESPACE", "other")
    assert [run["id"] for run in document(cli, "runs", "list")["runs"]] == ["there"]


def test_a_run_is_cancelled_by_its_own_code(cli: Cli, work: Work) -> None:
    work()
    cli("runs", "start", "nap", "--input", "3600", "--id", "n-1")
    wait_for(lambda: document(cli, "runs", "show", "n-1")["entries"] == 1, "the run to begin")
    assert cli("runs", "cancel", "n-1", "--reason", "enough").stdout == "asked run n-1 to end\n"
    wait_for(lambda: document(cli, "runs", "show", "n-1")["state"] == "cancelled", "the run to end")
    assert document(cli, "runs", "journal", "n-1")["entries"][-1]["body"]["reason"] == "enough"
    again = cli("runs", "cancel", "n-1")
    assert again.exit_code == FAILED
    assert "is cancelled" in again.stderr


def test_a_run_that_has_not_begun_is_cancelled_without_a_worker(cli: Cli) -> None:
    cli("runs", "start", "nap", "--input", "3600", "--id", "n-1")
    assert document(cli, "runs", "cancel", "n-1")["news"] is True
    assert document(cli, "runs", "show", "n-1")["state"] == "cancelled"
    assert "is cancelled" in cli("runs", "cancel", "n-1").stderr


def test_a_second_cancel_says_that_it_changes_nothing(cli: Cli, spawn: Spawn) -> None:
    worker = spawn("worker", "--app", SHOP)
    cli("runs", "start", "nap", "--input", "3600", "--id", "n-1")
    wait_for(lambda: document(cli, "runs", "show", "n-1")["state"] == "waiting", "the run to sleep")
    worker.kill()
    worker.wait(30)
    assert document(cli, "runs", "cancel", "n-1")["news"] is True
    assert cli("runs", "cancel", "n-1").stdout.startswith("run n-1 was already cancelled")
    assert document(cli, "runs", "cancel", "n-1")["news"] is False
    assert cli("runs", "cancel", "n-1", "--again").stdout == "asked run n-1 to end\n"


def test_a_parked_run_is_tried_again(cli: Cli, spawn: Spawn) -> None:
    worker = spawn("worker", "--app", SHOP)
    cli("runs", "start", "stuck", "--id", "s-1", "--wait")
    worker.kill()
    worker.wait(30)
    assert cli("runs", "retry", "s-1").stdout == "run s-1 will be tried again\n"
    shown = document(cli, "runs", "show", "s-1")
    assert shown["state"] == "waiting"
    again = cli("runs", "retry", "s-1")
    assert again.exit_code == FAILED
    assert "only a parked run" in again.stderr
    assert cli("runs", "retry", "nobody").exit_code == 3


def test_a_run_is_terminated_without_a_worker(cli: Cli) -> None:
    cli("runs", "start", "total", "--id", "t-1")
    assert document(cli, "runs", "terminate", "t-1", "--reason", "wrong")["state"] == "terminated"
    shown = document(cli, "runs", "show", "t-1")
    assert (shown["state"], shown["reason"]) == ("terminated", "wrong")


def test_tables_are_readable_without_a_terminal(cli: Cli, work: Work) -> None:
    work()
    cli("runs", "start", "total", "--input", "[[7]]", "--id", "t-1", "--wait")
    shown = cli("runs", "show", "t-1").stdout
    assert "completed" in shown
    journal = cli("runs", "journal", "t-1").stdout
    assert "activity add" in journal
    assert "\x1b" not in shown + journal


def test_migrations_are_planned_applied_and_then_done(cli: Cli) -> None:
    planned = document(cli, "migrate", "--plan")
    assert planned["plan"]
    assert document(cli, "migrate")["migrations"] == planned["migrations"] != []
    assert document(cli, "migrate")["migrations"] == []
    assert cli("migrate", "--plan").stdout == "the database is up to date\n"
