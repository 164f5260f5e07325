"""`batuta schedules` against SQLite, with a worker process beside it."""

import json
from typing import Any

import pytest

from tests.cli.conftest import Cli, Spawn, wait_for

USAGE, NOT_FOUND, FAILED = 2, 3, 1
YEARLY = ("schedules", "create", "s", "total", "--input", "[[1, 2]]", "--cron", "0 0 1 1 *", "--zone", "Asia/Tokyo")


def document(cli: Cli, *words: str) -> Any:
    result = cli("schedules", *words, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout)


def test_a_schedule_is_made_shown_listed_and_deleted(cli: Cli) -> None:
    assert "schedule s: 0 0 1 1 * (Asia/Tokyo), next at 20" in cli(*YEARLY, "--tag", "a=b", "--memo", "[1]").stdout
    shown = document(cli, "show", "s")
    assert (shown["workflow"], shown["arguments"], shown["tags"], shown["memo"]) == ("total", [[1, 2]], {"a": "b"}, [1])
    assert [each["id"] for each in document(cli, "list")["schedules"]] == ["s"]
    text = cli("schedules", "show", "s").stdout
    assert "0 0 1 1 * (Asia/Tokyo)" in text
    assert "1 h" in text
    assert "Asia/Tokyo" in cli("schedules", "list").stdout
    assert document(cli, "delete", "s") == {"id": "s", "deleted": True}
    assert document(cli, "list") == {"schedules": []}


def test_all_that_a_schedule_was_given_is_shown(cli: Cli) -> None:
    times = ("--start-at", "2090-01-01", "--end-at", "2099-01-01")
    cli(*YEARLY, *times, "--key", "acme", "--expires", "90", "--version", "v7")
    shown = document(cli, "show", "s")
    assert (shown["start_at"], shown["end_at"]) == ("2090-01-01T00:00:00Z", "2099-01-01T00:00:00Z")
    assert (shown["key"], shown["expires"], shown["version"]) == ("acme", 90, "v7")
    text = cli("schedules", "show", "s").stdout
    assert all(word in text for word in ("2090-01-01", "2099-01-01", "acme", "1 min 30 s", "v7"))


def test_a_job_has_limits_of_its_own(cli: Cli) -> None:
    limits = ("--every", "60", "--timeout", "5", "--total-timeout", "20", "--heartbeat", "2")
    assert document(cli, "create", "j", "job:weigh", *limits)["kind"] == "job"
    refused = cli("schedules", "create", "w", "total", *limits)
    assert (refused.exit_code, "heartbeat, total_timeout" in refused.stderr) == (USAGE, True)


def test_an_id_that_is_taken_is_told_and_can_be_replaced(cli: Cli) -> None:
    cli(*YEARLY)
    again = cli("schedules", "create", "s", "total", "--every", "3600")
    assert again.exit_code == FAILED
    assert "there is a schedule 's'" in again.stderr
    made = document(cli, "create", "s", "total", "--every", "3600", "--offset", "60", "--overlap", "allow", "--replace")
    assert (made["when"], made["overlap"], made["arguments"]) == ("every 1 h + 1 min", "allow", [])


def test_a_schedule_is_paused_with_a_note_and_resumed(cli: Cli) -> None:
    cli(*YEARLY)
    assert document(cli, "pause", "s", "--reason", "closed") == {"id": "s", "paused": True, "reason": "closed"}
    assert (document(cli, "show", "s")["reason"], document(cli, "show", "s")["next_at"]) == ("closed", None)
    assert "paused closed" in cli("schedules", "list").stdout
    document(cli, "resume", "s")
    assert document(cli, "show", "s")["paused"] is False


def test_next_times_are_told(cli: Cli) -> None:
    cli(*YEARLY)
    times = cli("schedules", "next", "s", "-n", "2").stdout.split()
    assert len(times) == 2
    assert all(time.endswith("-12-31T15:00:00Z") for time in times)
    assert len(document(cli, "next", "s")["next"]) == 10


def test_triggered_and_backfilled_runs_are_there(cli: Cli) -> None:
    cli(*YEARLY)
    run = document(cli, "trigger", "s")["run"]
    assert json.loads(cli("runs", "show", run, "--json").stdout)["state"] == "pending"
    begun = ["s:2020-12-31T15:00:00Z", "s:2021-12-31T15:00:00Z"]
    assert cli("schedules", "backfill", "s", "--since", "2020-06-01", "--until", "2022-06-01").stdout.split() == begun
    assert document(cli, "backfill", "s", "--since", "2020-06-01", "--until", "2022-06-01") == {"id": "s", "begun": []}


def test_a_worker_runs_the_schedules_of_its_module(cli: Cli, spawn: Spawn) -> None:
    spawn("worker", "--app", "tests.cli.timed")

    def ticked() -> bool:
        listed = cli("runs", "list", "--id-prefix", "often:", "--state", "completed", "--json")
        return listed.exit_code == 0 and len(json.loads(listed.stdout)["runs"]) >= 2

    wait_for(ticked, "two runs of the schedule")
    assert document(cli, "show", "often")["when"] == "every 1 s"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--cron", "61 * * * *"], "cron expression '61 * * * *' is invalid: bad minute"),
        (["--cron", "* * * * * *"], "five fields"),
        (["--cron", "* * * * *", "--zone", "Mars/Olympus"], "unknown time zone 'Mars/Olympus'"),
        (["--cron", "* * * * *", "--overlap", "queue"], "must be one of skip, buffer, allow, cancel"),
        (["--cron", "* * * * *", "--every", "5"], "give one of --cron, --every and --once"),
        ([], "give one of --cron, --every and --once"),
        (["--every", "0.1"], "at least 1 second"),
        (["--every", "60", "--zone", "UTC"], "--zone goes with --cron"),
        (["--cron", "* * * * *", "--offset", "5"], "--offset goes with --every"),
        (["--every", "60", "--jitter", "-5"], "'--jitter': '-5' is too short"),
        (["--cron", "* * * * *", "--zone", "localtime"], "time zone 'localtime' differs between machines"),
        (["--once", "9999-12-31T23:59:59-03:00"], "is too far away"),
        (["--once", "tomorrow"], "is not a time"),
        (["--once", "2001-01-01"], "no future slot"),
        (["--every", "60", "--input", "{"], "is not JSON"),
        (["--every", "60", "--timeout", "-1"], "'--timeout': '-1' is too short"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_an_invalid_schedule_is_a_usage_error_and_nothing_is_written(cli: Cli, words: list[str], said: str) -> None:
    cli("migrate")
    result = cli("schedules", "create", "s", "total", *words)
    assert result.exit_code == USAGE
    assert said in result.stderr
    assert document(cli, "list") == {"schedules": []}


@pytest.mark.parametrize("command", ["show", "delete", "pause", "resume", "trigger", "next"])
def test_a_schedule_that_is_not_there_is_not_found(cli: Cli, command: str) -> None:
    cli("migrate")
    result = cli("schedules", command, "nobody")
    assert result.exit_code == NOT_FOUND
    assert "no schedule 'nobody'" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["tomorrow", "2031-01-01"], "is not a time"),
        (["2031-01-02", "2031-01-01"], "must be before"),
        (["2031-01-01", "9000-01-01"], "more than"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused(cli: Cli, words: list[str], said: str) -> None:
    cli("schedules", "create", "s", "total", "--every", "60")
    result = cli("schedules", "backfill", "s", "--since", words[0], "--until", words[1])
    assert result.exit_code == USAGE
    assert said in result.stderr
