"""Alert rules and the dashboard name metrics and labels that exist, and every alert is in the runbook."""

import json
import re
from pathlib import Path

import pytest

from batuta.metrics import GAUGES, METRICS, Kind

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = ("prometheus/alerts.yml", "prometheus/alerts_test.yml", "grafana/batuta.json")
LABELS = {one.name: {*one.labels} for one in (*METRICS, *GAUGES)}
SELECTOR = re.compile(r"\b(batuta_\w+)(?:\{([^}]*)\})?")


def series() -> dict[str, set[str]]:
    """Every series that is exposed, with its labels."""
    found = dict(LABELS)
    for one in (*METRICS, *GAUGES):
        if one.kind is Kind.HISTOGRAM:
            del found[one.name]
            for suffix, more in (("_bucket", {"le"}), ("_sum", set()), ("_count", set())):
                found[one.name + suffix] = {*one.labels} | more
    return found


@pytest.mark.parametrize("name", FILES)
def test_every_metric_and_label_that_is_named_exists(name: str) -> None:
    known, text = series(), (DEPLOY / name).read_text().replace('\\"', '"')
    named = SELECTOR.findall(text)
    assert len(named) > 10
    assert {metric for metric, _ in named} - known.keys() == set()
    for metric, matchers in named:
        assert set(re.findall(r"(\w+)\s*=", matchers)) <= known[metric], metric


def test_the_dashboard_shows_every_metric() -> None:
    text = (DEPLOY / "grafana" / "batuta.json").read_text()
    assert not [name for name in LABELS if name not in text]


def test_the_dashboard_is_one_that_grafana_reads() -> None:
    board = json.loads((DEPLOY / "grafana" / "batuta.json").read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    assert all(
        target["expr"] and panel["datasource"]["uid"] == "${datasource}"
        for panel in panels
        for target in panel["targets"]
    )
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))
    assert all(at["x"] + at["w"] <= 24 for at in places)


def test_every_alert_is_in_the_runbook_and_has_a_unit_test() -> None:
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "prometheus" / "alerts.yml").read_text())
    rows = re.findall(r"^\| `(Batuta\w+)` \|", (ROOT / "docs" / "operating" / "metrics.md").read_text(), re.MULTILINE)
    assert rows == alerts
    fired = (DEPLOY / "prometheus" / "alerts_test.yml").read_text().split("exp_alerts")
    tested = {re.findall(r"alertname: (\w+)", part)[-1] for part in fired[:-1]}
    assert tested == set(alerts)
