"""`batuta queues` against SQLite."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import SHOP, Cli, Spawn, wait_for

OK, USAGE, NOT_FOUND = 0, 2, 3


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


def test_queues_show_what_waits_in_them(cli: Cli) -> None:
    cli("jobs", "enqueue", "weigh", "--queue", "mail")
    cli("jobs", "enqueue", "weigh", "--queue", "mail", "--delay", "60")
    cli("runs", "start", "total")
    found = {queue["name"]: queue for queue in document(cli, "queues", "list")["queues"]}
    assert {name: (queue["ready"], queue["delayed"]) for name, queue in found.items()} == {
        "default": (1, 0),
        "mail": (1, 1),
    }
    assert document(cli, "queues", "show", "mail") == found["mail"]
    assert "mail" in cli("queues", "list").stdout


def test_limits_are_set_one_by_one_and_taken_away(cli: Cli) -> None:
    cli("migrate")
    cli("queues", "limit", "mail", "--concurrency", "5", "--rate", "100/min")
    shown = document(cli, "queues", "limit", "mail", "--key-rate", "2/s", "--rate", "none")
    limits = ("concurrency", "key_concurrency", "rate", "key_rate")
    assert [shown[limit] for limit in limits] == [5, None, None, "2/s"]
    assert "concurrency 5, key rate 2/s" in cli("queues", "show", "mail").stdout


def test_a_paused_queue_waits_until_it_is_resumed(cli: Cli, spawn: Spawn) -> None:
    cli("migrate")
    paused = document(cli, "queues", "pause", "default", "--reason", "stock-taking")
    assert (paused["paused"], paused["reason"]) == (True, "stock-taking")
    spawn("worker", "--app", SHOP)
    wait_for(lambda: document(cli, "queues", "show", "default")["workers"] == 1, "the worker")
    cli("jobs", "enqueue", "weigh", "--input", "1", "--id", "w-1")
    assert "stock-taking" in document(cli, "jobs", "show", "w-1")["reason"]
    assert "paused" in cli("queues", "list").stdout
    assert document(cli, "queues", "resume", "default")["paused"] is False
    wait_for(lambda: document(cli, "jobs", "show", "w-1")["state"] == "completed", "the job to end")


def test_a_queue_that_is_not_there_is_not_found(cli: Cli) -> None:
    cli("migrate")
    result = cli("queues", "show", "nobody")
    assert result.exit_code == NOT_FOUND
    assert "'nobody'" in result.stderr


def test_a_queue_of_which_nothing_is_left_to_say_is_no_error(cli: Cli) -> None:
    cli("migrate")
    cli("queues", "pause", "mail")
    assert document(cli, "queues", "resume", "mail")["paused"] is False
    cli("queues", "limit", "mail", "--rate", "5/s")
    assert document(cli, "queues", "limit", "mail", "--rate", "none")["rate"] is None
    assert cli("queues", "resume", "mial").exit_code == NOT_FOUND


@pytest.mark.parametrize("words", [["pause", "mail"], ["resume", "mail"], ["limit", "mail", "--rate", "5/s"]])
def test_a_database_that_is_not_there_is_not_made(cli: Cli, words: list[str], tmp_path: Path) -> None:
    place = tmp_path / "mistyped.db"
    result = cli("queues", *words, "--url", f"sqlite:///{place}")
    assert result.exit_code not in (OK, USAGE)
    assert not place.exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["limit", "mail"], "nothing to set"),
        (["limit", "mail", "--concurrency", "many"], "--concurrency 'many'"),
        (
            ["limit", "mail", "--concurrency", "-1"],
            "--concurrency -1 must be a whole number of at least 1; none means no limit",
        ),
        (["limit", "mail", "--key-concurrency", "0"], "--key-concurrency 0"),
        (["limit", "mail", "--rate", "-5/min"], "rate '-5/min'"),
        (["limit", "mail", "--rate", "fast"], "100/min"),
        (["limit", "mail", "--rate", "0/s"], "of at least 1"),
        (["limit", "mail", "--rate", "1/0s"], "from 0.001 s"),
        (["limit", "mail", "--key-rate", "1/fortnight"], "units"),
        (["limit", "", "--rate", "1/s"], "queue ''"),
        (["pause", "a\nb"], "queue 'a\\nb'"),
        (["pause", "mail", "--reason", "\0"], "--reason"),
    ],
    ids=lambda value: " ".join(value)[:40].encode("unicode_escape").decode() if isinstance(value, list) else "",
)
def test_wrong_words_are_a_usage_error_that_says_which(cli: Cli, words: list[str], said: str) -> None:
    cli("migrate")
    result = cli("queues", *words)
    assert result.exit_code == USAGE
    assert said in result.stderr
    assert document(cli, "queues", "list") == {"queues": []}
