"""`batuta jobs` against SQLite, with a worker process beside it."""

# covers B-11
import json
from typing import Any

import pytest

from tests.cli.conftest import Cli, Work, wait_for

OK, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code in (OK, FAILED), result.stderr
    return json.loads(result.stdout)


def ids(cli: Cli, *words: str) -> list[str]:
    return [run["id"] for run in document(cli, "jobs", "list", *words)["runs"]]


def test_an_enqueued_job_waits_for_a_worker(cli: Cli) -> None:
    enqueued = document(cli, "jobs", "enqueue", "weigh", "--input", "7", "--id", "w-1", "--tag", "shop=1")
    assert (enqueued["id"], enqueued["job"], enqueued["state"]) == ("w-1", "weigh", "pending")
    shown = document(cli, "jobs", "show", "w-1")
    assert (shown["kind"], shown["tags"], shown["attempts"]) == ("job", {"shop": "1"}, [])
    assert "no live worker" in shown["reason"] or "no worker" in shown["reason"]
    assert cli("jobs", "enqueue", "weigh", "--id", "w-1").stdout == "job w-1 is pending (it was there before)\n"


def test_a_job_is_executed_and_waited_for(cli: Cli, work: Work) -> None:
    work()
    done = document(cli, "jobs", "enqueue", "weigh", "--input", "21", "--id", "w-1", "--wait")
    assert (done["state"], done["result"]) == ("completed", 42)
    assert document(cli, "jobs", "show", "w-1")["progress"] == "21 g"
    shown = cli("jobs", "show", "w-1").stdout
    assert "weigh" in shown
    assert "21 g" in shown


def test_failed_attempts_are_shown_with_their_errors(cli: Cli, work: Work) -> None:
    work()
    failed = cli("jobs", "enqueue", "weigh", "--input", "-1", "--id", "w-1", "--wait")
    assert failed.exit_code == FAILED
    assert "less than nothing" in failed.stderr
    found = document(cli, "jobs", "attempts", "w-1")
    assert [one["number"] for one in found["attempts"]] == [1, 2]
    assert all("less than nothing" in one["error"] and one["ended_at"] for one in found["attempts"])
    assert cli("jobs", "attempts", "w-1").stdout.count("less than nothing") == 2
    assert "less than nothing" in document(cli, "jobs", "show", "w-1")["error"]


def test_limits_of_one_job_are_given_with_it(cli: Cli, work: Work) -> None:
    work()
    for option in ("--timeout", "--total-timeout", "--heartbeat"):
        refused = cli("jobs", "enqueue", "weigh", "--input", "1", option, "0")
        assert (refused.exit_code, f"{option} 0" in refused.stderr) == (USAGE, True)
    limits = ("--timeout", "30", "--total-timeout", "60", "--heartbeat", "20")
    assert document(cli, "jobs", "enqueue", "weigh", "--input", "21", *limits, "--wait")["result"] == 42


def test_jobs_are_listed_apart_from_workflows(cli: Cli) -> None:
    cli("runs", "start", "total", "--id", "r-1")
    for number, queue in enumerate(("a", "b", "b")):
        cli("jobs", "enqueue", "weigh", "--id", f"w-{number}", "--queue", queue, "--key", f"k{number}")
    assert ids(cli) == ["w-2", "w-1", "w-0"]
    assert ids(cli, "--queue", "b") == ["w-2", "w-1"]
    assert ids(cli, "--key", "k0") == ["w-0"]
    assert ids(cli, "--name", "other") == []
    assert ids(cli, "--state", "completed") == []
    first = document(cli, "jobs", "list", "--limit", "2")
    assert ids(cli, "--limit", "2", "--cursor", first["cursor"]) == ["w-0"]
    table = cli("jobs", "list", "--limit", "1")
    assert "w-2" in table.stdout
    assert "--cursor" in table.stderr
    assert [run["id"] for run in document(cli, "runs", "list")["runs"]] == ["r-1"]


def test_unique_and_debounced_jobs_are_the_same_job(cli: Cli) -> None:
    first = document(cli, "jobs", "enqueue", "weigh", "--unique", "k", "--delay", "60")
    again = document(cli, "jobs", "enqueue", "weigh", "--unique", "k")
    assert (first["id"], again["run_id"]) == ("weigh:k", first["run_id"])
    assert (first["is_new"], again["is_new"]) == (True, False)
    cli("jobs", "enqueue", "weigh", "--id", "w", "--input", "1", "--delay", "60")
    assert cli("jobs", "enqueue", "weigh", "--id", "w", "--input", "2", "--if-exists", "same").exit_code == FAILED
    options = ("--unique", "d", "--debounce", "60", "--debounce-limit", "90")
    assert len({document(cli, "jobs", "enqueue", "weigh", *options)["run_id"] for _ in range(2)}) == 1


def test_a_job_that_was_not_begun_is_cancelled(cli: Cli, work: Work) -> None:
    cli("jobs", "enqueue", "weigh", "--input", "1", "--id", "w-1", "--at", "2999-01-01")
    assert cli("jobs", "cancel", "w-1", "--reason", "enough").stdout == "asked job w-1 to end\n"
    work()
    wait_for(lambda: document(cli, "jobs", "show", "w-1")["state"] == "cancelled", "the job to end")
    assert document(cli, "jobs", "attempts", "w-1")["attempts"] == []
    assert cli("jobs", "cancel", "w-1").exit_code == FAILED


def test_only_a_parked_job_is_tried_again(cli: Cli) -> None:
    cli("jobs", "enqueue", "weigh", "--id", "w-1")
    result = cli("jobs", "retry", "w-1")
    assert result.exit_code == FAILED
    assert "only a parked run" in result.stderr


@pytest.mark.parametrize("command", ["show", "attempts", "cancel", "retry"])
def test_a_command_about_jobs_says_when_a_run_is_no_job(cli: Cli, command: str) -> None:
    cli("runs", "start", "total", "--id", "r-1")
    assert cli("jobs", command, "nobody").exit_code == NOT_FOUND
    result = cli("jobs", command, "r-1")
    assert result.exit_code == USAGE
    assert "batuta runs" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--input", "{bad"], "line 1, column 2"),
        (["--delay", "-1"], "'--delay': '-1' is too short"),
        (["--delay", "1", "--at", "2999-01-01"], "cannot be given together"),
        (["--at", "tomorrow"], "is not a time"),
        (["--unique-for", "1"], "needs --unique: "),
        (["--debounce", "1"], "needs --unique: "),
        (["--unique", "k", "--debounce", "5", "--debounce-limit", "1"], "must not be less"),
        (["--expires", "0"], "--expires 0.0"),
        (["--key", "\n"], "key '\\n'"),
        (["--queue", ""], "queue ''"),
    ],
    ids=lambda value: " ".join(value)[:40].encode("unicode_escape").decode() if isinstance(value, list) else "",
)
def test_wrong_options_are_a_usage_error_that_says_which(cli: Cli, words: list[str], said: str) -> None:
    result = cli("jobs", "enqueue", "weigh", *words)
    assert result.exit_code == USAGE
    assert said in result.stderr
    cli("migrate")
    assert ids(cli) == []
