"""`batuta dead-letters` against SQLite, with a worker process beside it."""

# covers D-02
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOP, Cli, Spawn, Work, lines, wait_for

OK, FAILED, USAGE, NOT_FOUND = 0, 1, 2, 3


def document(cli: Cli, *words: str) -> Any:
    result = cli("dead-letters", *words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def given_up(cli: Cli, work: Work) -> list[str]:
    """Three jobs that failed."""
    work()
    ids = [f"w-{number}" for number in range(3)]
    for number, id in enumerate(ids):
        assert cli("jobs", "enqueue", "weigh", "--input", f"-{number + 1}", "--id", id, "--wait").exit_code == FAILED
    return ids


@pytest.mark.usefixtures("given_up")
def test_letters_are_listed_grouped_and_shown(cli: Cli) -> None:
    assert [letter["id"] for letter in document(cli, "list")["letters"]] == ["w-2", "w-1", "w-0"]
    page = document(cli, "list", "--limit", "2", "--error", "ValueError", "--name", "weigh")
    more = document(cli, "list", "--cursor", page["cursor"])
    assert [letter["id"] for letter in page["letters"] + more["letters"]] == ["w-2", "w-1", "w-0"]
    (group,) = document(cli, "groups")["groups"]
    assert (group["count"], group["example"]["message"]) == (3, "less than nothing")
    assert document(cli, "list", "--fingerprint", "other") == {"letters": [], "cursor": None}
    shown = cli("dead-letters", "show", "w-1").stdout
    assert "exhausted" in shown
    assert group["fingerprint"] in shown
    assert "less than nothing" in cli("dead-letters", "groups").stdout
    assert cli("dead-letters", "list").stdout.count("weigh") == 3


def test_one_is_reprocessed_and_one_discarded(cli: Cli, given_up: list[str]) -> None:
    assert cli("dead-letters", "discard", "w-0", "--reason", "a typo").stdout == "discarded 1\n"
    assert document(cli, "show", "w-0")["note"] == "a typo"
    again = document(
        cli, "reprocess", "w-1", "--mode", "start", "--input", "[21]", "--app", SHOP, "--reason", "mended by hand"
    )
    assert (again["matched"], again["reprocessed"]) == (1, 1)
    wait_for(lambda: "42" in cli("jobs", "show", "w-1").stdout, "the job to be done")
    for words in (("reprocess", "w-0"), ("discard", "w-0", "--reason", "twice")):
        refused = cli("dead-letters", *words)
        assert refused.exit_code == FAILED
        assert "discarded before" in refused.stderr
    assert [letter["id"] for letter in document(cli, "list")["letters"]] == ["w-2"]


def test_a_worker_calls_what_its_app_names(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    spawn("worker", "--app", f"{SHOP}:alerting")
    assert cli("jobs", "enqueue", "weigh", "--input", "-1", "--id", "w-1", "--wait").exit_code == FAILED
    wait_for(lambda: lines(tmp_path / "ledger") == ["weigh w-1 ValueError"], "the alert")


def test_many_need_a_yes_and_are_counted_first(cli: Cli, given_up: list[str]) -> None:
    asked = cli("dead-letters", "discard", "--name", "weigh", "--reason", "all")
    assert asked.exit_code == USAGE
    assert "3 dead letters match: add --yes" in asked.stderr
    assert document(cli, "reprocess", "--name", "weigh", "--dry-run")["matched"] == 3
    assert cli("dead-letters", "reprocess", "--name", "weigh", "--dry-run").stdout == "3 would be reprocessed\n"
    done = cli("dead-letters", "discard", "--name", "weigh", "--reason", "all", "--yes")
    assert done.stdout == "discarded 3\n"
    assert "--until" in done.stderr
    nothing = cli("dead-letters", "reprocess", "--name", "weigh", "--yes")
    assert nothing.exit_code == NOT_FOUND
    assert "no open dead letter matches" in nothing.stderr
    assert len(document(cli, "list", "--state", "discarded")["letters"]) == 3


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("reprocess",), USAGE, "no dead letters are selected"),
        (("discard", "--reason", "x"), USAGE, "no dead letters are selected"),
        (("discard", "w-0", "--name", "weigh", "--reason", "x"), USAGE, "not both"),
        (("show", "nobody"), NOT_FOUND, "not a dead letter"),
        (("reprocess", "nobody"), NOT_FOUND, "not a dead letter"),
        (("reprocess", "--all", "--input", "[1", "--mode", "start"), USAGE, "is not JSON"),
        (("list", "--since", "soon"), USAGE, "is not a time"),
        (("list", "--cursor", "x"), USAGE, "is not a cursor"),
    ],
)
def test_mistakes_are_named(cli: Cli, words: tuple[str, ...], code: int, said: str) -> None:
    assert cli("migrate").exit_code == OK
    result = cli("dead-letters", *words)
    assert (result.exit_code, result.stdout) == (code, "")
    assert said in result.stderr


@pytest.mark.usefixtures("given_up")
def test_an_empty_filter_is_refused_as_it_would_match_more(cli: Cli) -> None:
    for words in (["--error", "ValueError", "--yes"], ["w-0"]):
        refused = cli("dead-letters", "discard", *words, "--id-prefix", "", "--reason", "over")
        assert (refused.exit_code, refused.stdout) == (USAGE, "")
        assert "--id-prefix is empty" in refused.stderr
    assert len(document(cli, "list")["letters"]) == 3
