"""`batuta activities`: answers from outside, against SQLite, with a worker process beside it."""

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, Work, lines, wait_for

OK, FAILED, USAGE = 0, 1, 2


def token_of(tmp_path: Path, attempt: int = 1) -> str:
    """What the activity was given, once it has been begun so often."""
    wait_for(lambda: len(lines(tmp_path / "ledger")) >= attempt, "a token")
    return lines(tmp_path / "ledger")[attempt - 1].split()[0].removeprefix("token=")


def state_of(cli: Cli, id: str) -> str:
    return str(json.loads(cli("runs", "show", id, "--json").stdout)["state"])


def test_an_activity_is_completed_by_token(cli: Cli, work: Work, tmp_path: Path) -> None:
    cli("runs", "start", "survey", "--input", '"how many?"', "--id", "s-1")
    work()
    token = token_of(tmp_path)
    assert cli("activities", "heartbeat", token, '{"asked": 3}').stdout == "noted\n"
    assert cli("activities", "complete", token, "42").stdout == "completed\n"
    wait_for(lambda: state_of(cli, "s-1") == "completed", "the end of the run")
    assert json.loads(cli("runs", "show", "s-1", "--json").stdout)["result"] == 42
    again = cli("activities", "complete", token, "43")
    assert again.exit_code == FAILED
    assert "takes no more messages" in again.stderr


def test_an_activity_fails_by_token_and_is_tried_again(cli: Cli, work: Work, tmp_path: Path) -> None:
    cli("runs", "start", "survey", "--input", '"how many?"', "--id", "s-1")
    work()
    told = cli("activities", "fail", token_of(tmp_path), "nobody there")
    assert told.stdout == "failed\n", told.stderr
    second = token_of(tmp_path, 2)
    assert cli("activities", "fail", second, "gone for good", "--no-retry", "--json").exit_code == OK
    wait_for(lambda: state_of(cli, "s-1") == "failed", "the end of the run")
    assert "gone for good" in cli("runs", "show", "s-1", "--json").stdout


def test_a_token_is_read_from_a_file_so_that_other_users_of_the_machine_do_not_see_it(
    cli: Cli, work: Work, tmp_path: Path
) -> None:
    cli("runs", "start", "survey", "--input", '"how many?"', "--id", "s-1")
    work()
    file = tmp_path / "token"
    file.write_text(f"{token_of(tmp_path)}\n")
    assert cli("activities", "heartbeat", f"@{file}").stdout == "noted\n"
    assert cli("activities", "complete", f"@{file}", "42").stdout == "completed\n"
    missing = cli("activities", "complete", f"@{file}.none")
    assert (missing.exit_code, "the token cannot be read from" in missing.stderr) == (USAGE, True)


@pytest.mark.parametrize("words", [("complete", "rubbish", "1"), ("fail", "rubbish"), ("heartbeat", "rubbish")])
def test_rubbish_is_no_token(cli: Cli, words: tuple[str, ...]) -> None:
    cli("migrate")
    result = cli("activities", *words)
    assert result.exit_code == USAGE
    assert "is no token" in result.stderr


def test_a_result_that_is_not_json_is_refused(cli: Cli) -> None:
    result = cli("activities", "complete", "token", "{")
    assert result.exit_code == USAGE
    assert "the result is not JSON" in result.stderr
