"""Prometheus' own tool reads the alert rules, runs their unit tests, and finds no fault with the metrics."""

import subprocess
from pathlib import Path

import pytest

from batuta.metrics import Metrics, exposition, store_metrics
from batuta.telemetry import RequestServed
from batuta.testing import Environment

pytestmark = pytest.mark.extra
RULES = Path(__file__).parents[2] / "deploy" / "prometheus"


def promtool(*arguments: str, given: bytes = b"") -> str:
    done = subprocess.run(["promtool", *arguments], cwd=RULES, input=given, capture_output=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr).decode()
    return (done.stdout + done.stderr).decode()


def rules_in(file: str) -> int:
    found = (RULES / file).read_text().count("- alert: ")
    assert found > 5
    return found


def test_the_rules_are_valid_and_pass_their_unit_tests() -> None:
    assert f"{rules_in('alerts.yml')} rules found" in promtool("check", "rules", "alerts.yml")
    assert "SUCCESS" in promtool("test", "rules", "alerts_test.yml")


def test_the_rules_of_pixdict_are_valid_and_pass_their_unit_tests() -> None:
    assert f"{rules_in('pixdict.yml')} rules found" in promtool("check", "rules", "pixdict.yml")
    assert "SUCCESS" in promtool("test", "rules", "pixdict_test.yml")


async def test_the_metrics_follow_the_conventions() -> None:
    metrics = Metrics()
    metrics.event(RequestServed(0.0, "GET", "/healthz", 200, 0.001))
    async with Environment(middleware=[metrics]) as env:
        text = exposition(metrics, await store_metrics([env.client.namespace]))
    assert promtool("check", "metrics", given=text) == ""
