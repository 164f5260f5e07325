"""`batuta replay`: journals of a database, or from files, against the code of today."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOP, Cli, Work, wait_for

OTHER_SHOP = "tests.cli.other_shop"


@pytest.fixture
def done(cli: Cli, work: Work) -> None:
    """Two runs of `total` that have completed."""
    work()
    for id, numbers in (("a", "[[1, 2]]"), ("b", "[[1, 2, 3]]")):
        assert cli("runs", "start", "total", "--input", numbers, "--id", id, "--wait").exit_code == 0


def replayed(cli: Cli, *words: str) -> tuple[int, Any]:
    result = cli("replay", "--app", *words, "--json")
    assert result.exit_code in (0, 1), result.stderr
    return result.exit_code, json.loads(result.stdout)


@pytest.mark.usefixtures("done")
def test_the_journals_of_a_database_fit_the_code_that_wrote_them(cli: Cli) -> None:
    assert replayed(cli, SHOP) == (0, {"replayed": 2, "ok": 2, "runs": []})
    assert "2 journals replayed, 2 ok" in cli("replay", "--app", SHOP).stdout
    assert replayed(cli, SHOP, "--limit", "1")[1]["replayed"] == 1
    assert replayed(cli, SHOP, "--name", "nap")[1]["replayed"] == 0


@pytest.mark.usefixtures("done")
def test_other_code_is_told_apart_with_both_sides(cli: Cli) -> None:
    code, found = replayed(cli, OTHER_SHOP)
    assert code == 1
    assert [run["verdict"] for run in found["runs"]] == ["differs", "differs"]
    assert "recorded: activity add [0,1]" in found["runs"][0]["difference"]
    assert "today's code: activity add [1,0]" in found["runs"][0]["difference"]
    shown = cli("replay", "--app", OTHER_SHOP).stdout
    assert "differs: run b" in shown
    assert "today's code" in shown


@pytest.mark.usefixtures("done")
def test_an_exported_journal_is_replayed_from_its_file(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text(cli("runs", "journal", "a", "--export").stdout)
    assert replayed(cli, SHOP, str(file)) == (0, {"replayed": 1, "ok": 1, "runs": []})
    assert replayed(cli, OTHER_SHOP, str(file))[0] == 1
    code, found = replayed(cli, "tests.cli.shop:make", str(file), "--name", "total")
    assert (code, found["ok"]) == (0, 1)


def test_an_unknown_workflow_is_reported(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"workflow": "gone", "version": "2", "id": "a", "entries": []}')
    code, found = replayed(cli, SHOP, str(file))
    assert (code, found["runs"][0]["verdict"]) == (1, "no code")


def test_a_file_that_is_no_journal_is_a_usage_error(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    file.write_text('{"workflow": 1}')
    result = cli("replay", "--app", SHOP, str(file))
    assert result.exit_code == 2
    assert "is not an exported journal" in result.stderr


def test_recorded_journals_of_the_tests_are_such_files(cli: Cli) -> None:
    files = sorted(str(path) for path in (Path(__file__).parents[1] / "journals").glob("order.*.json"))
    assert replayed(cli, "tests.replay.workflows", *files)[0] == 0


def test_only_runs_that_have_not_ended_are_replayed_on_request(cli: Cli, work: Work, tmp_path: Path) -> None:
    work()
    assert cli("runs", "start", "total", "--input", "[[1, 2]]", "--id", "a", "--wait").exit_code == 0
    cli("runs", "start", "nap", "--input", "3600", "--id", "n")
    wait_for(lambda: json.loads(cli("runs", "show", "n", "--json").stdout)["entries"] > 0, "the nap to begin")
    assert replayed(cli, SHOP)[1]["replayed"] == 2
    assert replayed(cli, SHOP, "--open") == (0, {"replayed": 1, "ok": 1, "runs": []})
    assert replayed(cli, SHOP, "--open", "--name", "total")[1]["replayed"] == 0
    file = tmp_path / "a.json"
    file.write_text(cli("runs", "journal", "a", "--export").stdout)
    refused = cli("replay", "--app", SHOP, str(file), "--open")
    assert refused.exit_code == 2
    assert "--open cannot be combined with FILES" in refused.stderr
