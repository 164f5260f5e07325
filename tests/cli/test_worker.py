"""`batuta worker`: what it runs, how it stops, and what happens when it can't."""

import json
import re
import signal
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import DEADLINE, SHOP, Cli, Spawn, lines, wait_for


def show(cli: Cli, id: str) -> Any:
    return json.loads(cli("runs", "show", id, "--json").stdout)


def counts(ledger: Path) -> dict[str, Counter[str]]:
    """How often each key began and ended."""
    pairs = [line.split() for line in lines(ledger)]
    return {what: Counter(key for did, key in pairs if did == what) for what in ("began", "ended")}


@pytest.mark.parametrize("target", [SHOP, f"{SHOP}:app", f"{SHOP}:make", f"{SHOP}:make_async", f"{SHOP}:resource"])
def test_a_worker_is_given_a_module_an_app_or_what_makes_one(cli: Cli, spawn: Spawn, target: str) -> None:
    spawn("worker", "--app", target)
    result = cli("runs", "start", "total", "--input", "[[20, 22]]", "--wait")
    assert result.stdout.endswith("is completed\n42\n")


def test_a_worker_serves_its_metrics_and_logs_as_json(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    log = tmp_path / "stderr.log"
    spawn("worker", "--app", SHOP, "--metrics-port", "0", BATUTA_LOG_FORMAT="json")
    wait_for(lambda: "serving queue" in "".join(lines(log)), "the worker to begin")
    logged = [json.loads(line) for line in lines(log)]
    assert all(len(line["trace_id"]) == 32 and line["level"] and line["logger"] for line in logged)
    [address] = re.findall(r"metrics at (http://127\.0\.0\.1:\d+/metrics)", log.read_text())
    cli("runs", "start", "total", "--input", "[[20, 22]]", "--wait")
    with urllib.request.urlopen(address) as answer:
        text = answer.read().decode()
    assert 'batuta_runs_closed_total{kind="workflow",name="total",namespace="default",state="completed"} 1.0' in text
    refused = cli("worker", "--app", SHOP, "--metrics-port", re.findall(r":(\d+)/", address)[0])
    assert refused.exit_code == 2
    assert "choose another port" in refused.stderr


def test_a_worker_on_another_queue_leaves_a_run_alone(cli: Cli, spawn: Spawn) -> None:
    spawn("worker", "--app", SHOP, "--queue", "night", "--queue", "weekend")
    cli("runs", "start", "total", "--input", "[[1]]", "--id", "by-day")
    assert cli("runs", "start", "total", "--input", "[[1]]", "--queue", "weekend", "--wait").exit_code == 0
    assert show(cli, "by-day")["state"] == "pending"


@pytest.mark.chaos
def test_a_worker_that_was_killed_is_followed_by_one_that_goes_on(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    # covers B-03
    ledger = tmp_path / "ledger"
    first = spawn("worker", "--app", SHOP)
    cli("runs", "start", "walk", "--input", "[6, 0.2]", "--id", "w-1")
    wait_for(lambda: len(counts(ledger)["ended"]) >= 2, "two activities to end")
    first.kill()
    first.wait()
    durable = show(cli, "w-1")["entries"] - 1
    assert 1 <= durable < 6
    spawn("worker", "--app", SHOP)
    wait_for(lambda: show(cli, "w-1")["state"] == "completed", "another worker to finish the run")
    assert show(cli, "w-1")["result"] == list(range(6))
    seen = counts(ledger)
    in_flight = [key for key, times in seen["began"].items() if times > 1]
    assert len(in_flight) <= 1
    assert len(seen["ended"]) == 6
    assert cli("verify", "--app", SHOP).exit_code == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stopping_worker_finishes_calls_in_flight_and_leaves(
    cli: Cli, spawn: Spawn, tmp_path: Path, number: signal.Signals
) -> None:
    ledger = tmp_path / "ledger"
    worker = spawn("worker", "--app", SHOP, "--json")
    cli("runs", "start", "nap", "--input", "20", "--id", "n-1")
    cli("runs", "start", "walk", "--input", "[3, 0.5]", "--id", "w-1")
    wait_for(lambda: counts(ledger)["began"], "an activity to begin")
    worker.send_signal(number)
    stdout, _ = worker.communicate(timeout=DEADLINE)
    assert worker.returncode == 0
    assert json.loads(stdout)["drained"]
    assert counts(ledger)["began"] == counts(ledger)["ended"]
    assert show(cli, "n-1")["worker"] is None
    assert (show(cli, "w-1")["state"], show(cli, "w-1")["worker"]) == ("waiting", None)


def test_a_second_signal_ends_a_worker_at_once(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn("worker", "--app", SHOP, "--json", "--grace", "600")
    cli("runs", "start", "walk", "--input", "[1, 600]", "--id", "w-1")
    cli("runs", "start", "blocked", "--input", "600", "--id", "b-1")
    wait_for(lambda: len(lines(tmp_path / "ledger")) == 2, "both activities to begin")
    worker.terminate()
    wait_for(lambda: "stopping" in (tmp_path / "stderr.log").read_text(), "the first signal to be seen")
    worker.terminate()
    stdout, _ = worker.communicate(timeout=DEADLINE)
    assert worker.returncode == 0
    assert not json.loads(stdout)["drained"]
    assert show(cli, "w-1")["worker"] is show(cli, "b-1")["worker"] is None


def test_log_lines_go_to_stderr_at_the_level_that_is_asked_for(cli: Cli, spawn: Spawn, tmp_path: Path) -> None:
    worker = spawn("worker", "--app", SHOP, BATUTA_LOG_LEVEL="error")
    cli("runs", "start", "total", "--input", "[[1]]", "--wait")
    worker.terminate()
    assert worker.communicate(timeout=DEADLINE)[0] == ""
    assert (tmp_path / "stderr.log").read_text() == ""
    assert cli("worker", "--app", SHOP, "--log-level", "loud").exit_code == 2
