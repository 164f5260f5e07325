"""`batuta status` and `workers`, lists of runs that are stuck, and all that `runs show` and `journal --full` tell."""

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import DEADLINE, SHOP, Cli, Spawn, wait_for

OK, USAGE = 0, 2
STUCK = "tests.cli.stuck"


def document(cli: Cli, *words: str) -> Any:
    result = cli(*words, "--json")
    assert result.exit_code == OK, result.stderr
    return json.loads(result.stdout)


def listed(cli: Cli, *words: str) -> list[str]:
    return [run["id"] for run in document(cli, "runs", "list", *words)["runs"]]


@pytest.fixture
def stuck(cli: Cli, spawn: Spawn) -> int:
    """Two runs of which an activity is tried again for ever, and a job that was given up. The pid of the worker."""
    worker = spawn("worker", "--app", STUCK)
    for id in ("o-1", "o-2"):
        cli("runs", "start", "order", "--input", json.dumps([id, "x" * 200]), "--id", id)
    cli("jobs", "enqueue", "mail", "--input", '"ada"', "--id", "m-1", "--wait")
    wait_for(lambda: document(cli, "runs", "count", "--retrying") == {"count": 2}, "both runs to try again")
    return worker.pid


def test_stuck_runs_are_found_by_what_holds_them(cli: Cli, stuck: int) -> None:
    assert stuck
    assert listed(cli, "--retrying", "--older-than", "0.001s", "--waiting-for", "charge") == ["o-2", "o-1"]
    assert listed(cli, "--waiting-for", "pack") == ["o-2", "o-1"]
    assert listed(cli, "--retrying", "--older-than", "1h") == []
    assert listed(cli, "--retrying", "--until", "1h", "--older-than", "0.001s") == []
    assert listed(cli, "--tries", "2") == []
    assert listed(cli, "--waiting-for", "nothing") == []
    assert document(cli, "jobs", "count", "--retrying") == {"count": 0}
    assert document(cli, "runs", "cancel", "--retrying", "--reason", "the bank is gone", "--yes")["done"] == 2


def test_status_is_one_screen(cli: Cli, stuck: int) -> None:
    cli("queues", "pause", "night", "--reason", "stocktaking")
    cli("runs", "start", "total", "--queue", "slow", "--id", "s-1")
    found = document(cli, "status")
    [worker] = found["workers"]
    assert (worker["pid"], worker["host"], worker["live"]) == (stuck, os.uname().nodename, True)
    assert worker["silent"] < DEADLINE
    assert "order" in worker["code"]
    assert {queue["name"]: queue["paused"] for queue in found["queues"]} == {
        "default": False,
        "night": True,
        "slow": False,
    }
    assert found["stopped"] == {"needs_code": 0, "poisoned": 0, "paused": 0}
    assert (found["retrying"], found["retrying_often"], found["dead_letters"]) == (2, 0, 1)
    assert document(cli, "status", "--tries", "1")["retrying_often"] == 0
    screen = cli("status").stdout
    assert len(screen.splitlines()) <= 24
    for said in ("workers: 1 live", str(stuck), "last beat", "paused stocktaking", "oldest waits", "dead letters"):
        assert said in screen
    assert "batuta dead-letters groups" in screen


def test_workers_are_listed_with_where_they_run_and_their_last_beat(cli: Cli, stuck: int) -> None:
    [worker] = document(cli, "workers")["workers"]
    assert (worker["pid"], worker["queues"]) == (stuck, ["default"])
    shown = cli("workers").stdout
    assert " ago" in shown
    assert "order" in shown
    assert "charge" in cli("workers", "--code").stdout


def test_without_workers_the_screen_says_how_to_start_one(cli: Cli) -> None:
    cli("migrate")
    assert document(cli, "workers") == {"workers": []}
    assert "batuta worker --app MODULE" in cli("workers").stderr
    assert "no work is executed" in cli("status").stdout


def test_a_run_is_shown_with_input_published_values_and_what_it_waits_for(cli: Cli, stuck: int) -> None:
    assert stuck
    shown = document(cli, "runs", "show", "o-1")
    assert shown["input"] == ["o-1", "x" * 200]
    assert shown["published"] == {"step": "paying"}
    assert [(call["kind"], call["name"]) for call in shown["waiting_for"]] == [
        ("activity", "charge"),
        ("activity", "pack"),
    ]
    text = cli("runs", "show", "o-1").stdout
    for said in ("activity charge", "activity pack", 'step: "paying"', "x" * 100):
        assert said in text.replace("\n", "")
    assert document(cli, "jobs", "show", "m-1")["input"] == ["ada"]
    assert "LookupError: ada" in cli("jobs", "show", "m-1").stdout


def test_a_journal_in_full_cuts_nothing(cli: Cli, stuck: int) -> None:
    assert stuck
    cut, full = (cli("runs", "journal", "o-1", *more).stdout for more in ((), ("--full",)))
    assert "…" in cut
    assert "…" not in full
    assert full.count("x") > cut.count("x")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("runs", "list", "--older-than", "soon"), "is not a duration"),
        (("runs", "list", "--older-than", "0"), "more than 0"),
        (("runs", "list", "--tries", "0"), "--tries"),
        (("runs", "list", "--waiting-for", ""), "--waiting-for is empty"),
        (("runs", "count", "--waiting-for", "x"), "--waiting-for"),
        (("status", "--tries", "many"), "--tries"),
        (("workers", "x"), "x"),
    ],
    ids=lambda value: " ".join(value).replace("\0", "NUL") if isinstance(value, tuple) else "",
)
def test_mistakes_are_named(cli: Cli, words: tuple[str, ...], said: str) -> None:
    cli("migrate")
    result = cli(*words)
    assert (result.exit_code, result.stdout) == (USAGE, "")
    assert said in result.stderr


def test_a_worker_says_what_it_works_on_and_what_a_stop_waits_for(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    worker = spawn("worker", "--app", f"{STUCK}:jobs_only", "--grace", "600")
    wait_for(lambda: "serving queue default: job slow" in log.read_text(), "the worker to say its jobs")
    cli("jobs", "enqueue", "slow", "--id", "s-1")
    wait_for(lambda: document(cli, "jobs", "show", "s-1")["state"] == "running", "the job to begin")
    worker.send_signal(signal.SIGINT)
    wait_for(lambda: "stopping: waiting up to 10 min for slow" in log.read_text(), "the stop to say what it waits for")
    worker.send_signal(signal.SIGINT)
    worker.communicate(timeout=DEADLINE)
    assert worker.returncode == 0


def test_a_worker_of_workflows_names_them(spawn: Spawn, tmp_path: Path) -> None:
    spawn("worker", "--app", SHOP)
    log = tmp_path / "stderr.log"
    wait_for(lambda: "serving queue default: workflows basket" in log.read_text(), "the worker to say its workflows")
    assert "; jobs " in log.read_text() or "; job " in log.read_text()


def test_a_worker_of_flows_says_so(spawn: Spawn, tmp_path: Path) -> None:
    spawn("worker", "--app", f"{STUCK}:flows_only")
    log = tmp_path / "stderr.log"
    wait_for(lambda: "serving queue default: flows" in log.read_text(), "the worker to say that it runs flows")
