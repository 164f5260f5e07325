"""`batuta runs fork`, `reset` and `retry`."""

import json
import re

from tests.cli.conftest import SHOP, Cli, Work, wait_for


def began(cli: Cli, work: Work) -> None:
    """The run `sum` has come to its end, and a worker is there for others."""
    cli("migrate")
    work()
    assert cli("runs", "start", "total", "--input", "[[1,2,3]]", "--id", "sum", "--wait").exit_code == 0


def result_of(cli: Cli, id: str) -> object:
    wait_for(lambda: "result" in json.loads(cli("runs", "show", id, "--json").output), f"the end of {id}")
    return json.loads(cli("runs", "show", id, "--json").output)["result"]


def test_a_run_is_forked_with_another_result(cli: Cli, work: Work) -> None:
    began(cli, work)
    assert result_of(cli, "sum") == 6
    made = cli("runs", "fork", "sum", "sum-2", "--output", "2=30", "--app", SHOP, "--reason", "what if")
    assert made.exit_code == 0, made.output
    assert result_of(cli, "sum-2") == 33
    shown = cli("runs", "show", "sum-2").output
    assert re.search(r"made from +run \S+, after its entry 1", shown)
    assert "what if" in cli("runs", "journal", "sum-2").output


def test_the_journal_shows_calls_by_number_with_what_they_were_given(cli: Cli, work: Work) -> None:
    began(cli, work)
    shown = [" ".join(line.split()) for line in cli("runs", "journal", "sum").output.splitlines()]
    assert [line for line in shown if "1 activity add [0,1]" in line], shown
    assert [line for line in shown if re.search(r"activity_done 1 add 1 \S+ s 1 2 activity add \[1,2\]", line)], shown
    assert [line for line in shown if line.endswith("complete")], shown


def test_a_run_is_reset_to_an_entry(cli: Cli, work: Work) -> None:
    began(cli, work)
    made = cli("runs", "reset", "sum", "--to", "1", "--json")
    assert json.loads(made.output)["reset_to"] == 1
    assert result_of(cli, "sum") == 6
    assert json.loads(cli("runs", "show", "sum", "--json").output)["forked_at"] == 1


def test_many_are_forked_and_reset_once_they_are_counted(cli: Cli, work: Work) -> None:
    began(cli, work)
    assert cli("runs", "start", "total", "--input", "[[4,5]]", "--id", "sum-b", "--wait").exit_code == 0
    words = ("fork", "{id}-x", "--name", "total", "--output", "2=30", "--app", SHOP)
    counted = cli("runs", *words)
    assert (counted.exit_code, "2 runs match" in counted.output) == (2, True)
    made = json.loads(cli("runs", *words, "--yes", "--json").output)
    assert made == {"verb": "fork", "matched": 2, "done": 2, "refused": {}}
    assert (result_of(cli, "sum-x"), result_of(cli, "sum-b-x")) == (33, 30)
    reset = cli("runs", "reset", "--to", "1", "--id-prefix", "sum-b", "--yes")
    assert "reset: 2 of 2 runs" in reset.output
    wrong = {
        ("fork", "copy", "--name", "total", "--at", "1", "--yes"): "{id}",
        ("fork", "{id}-y", "--id-prefix", "sum", "--app", SHOP, "--at", "1", "--yes"): "give its --name",
        ("fork", "sum"): "no runs are selected",
        ("fork",): "NEW_ID",
        ("reset", "--to", "1"): "no runs are selected",
        ("reset", "sum", "--to", "1", "--name", "total"): "not both",
    }
    for command, why in wrong.items():
        result = cli("runs", *command)
        assert (result.exit_code, why in result.output) == (2, True), (command, result.output)


def test_mistakes_are_said_and_nothing_is_changed(cli: Cli, work: Work) -> None:
    began(cli, work)
    wrong = {
        ("--at", "9"): "there is no 9",
        ("--output", "2=30"): "code",
        ("--output", '2="x"', "--app", SHOP): "does not fit",
        ("--output", "x=30"): "CALL=JSON",
        ("--output", "2={", "--app", SHOP): "not JSON",
        ("--args", "[[1],2]", "--app", SHOP): "does not fit",
        (): "at which entry",
    }
    for words, why in wrong.items():
        result = cli("runs", "fork", "sum", "other", *words)
        assert result.exit_code == 2, (words, result.output)
        assert why in result.output, (words, result.output)
    assert cli("runs", "show", "other").exit_code == 3
