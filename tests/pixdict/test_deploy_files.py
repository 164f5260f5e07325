"""Alert rules, dashboard and runbook of pixdict name what exists."""

import json
import re

from prometheus_client import CollectorRegistry

from batuta.metrics import GAUGES, METRICS
from pixdict.caches import claims, entries, lookups
from pixdict.connect.monitor.metrics import MONITOR_METRICS, MonitorMetrics
from pixdict.connect.reconciliation import ReconciliationMetrics
from tests.architecture.source import ROOT

DEPLOY = ROOT / "deploy"
FILES = ("prometheus/pixdict.yml", "prometheus/pixdict_test.yml", "grafana/pixdict.json")
NAMED = re.compile(r"\b((?:dict|batuta)_\w+)(?=[{\[)\s\"'\\])")


def ours():
    return registered(MonitorMetrics) | {one.name for one in MONITOR_METRICS}


def registered(metrics):
    registry = CollectorRegistry()
    metrics(registry)
    return {family.name + ("_total" if family.type == "counter" else "") for family in registry.collect()}


def series():
    of_batuta = {one.name for one in (*METRICS, *GAUGES)}
    return {
        name + suffix
        for name in ours() | registered(ReconciliationMetrics) | of_batuta
        for suffix in ("", "_bucket", "_count", "_sum")
    }


def test_every_metric_that_is_named_exists():
    for name in FILES:
        found = set(NAMED.findall((DEPLOY / name).read_text())) - {"dict_rate_limit"}
        assert found - series() == set(), name
        assert len(found) > 4


#
def test_the_metrics_have_the_names_of_document_a():
    assert ours() == {
        "dict_rate_limit_available_tokens",
        "dict_rate_limit_utilization_pct",
        "dict_rate_limit_alerts_total",
        "dict_rate_limit_last_check_timestamp_seconds",
        "dict_rate_limit_workflow_duration_seconds",
        "dict_rate_limit_activity_duration_seconds",
    }


def test_the_dashboard_shows_every_metric_and_its_panels_do_not_overlap():
    board = json.loads((DEPLOY / "grafana" / "pixdict.json").read_text())
    shown = json.dumps(board)
    assert not [name for name in ours() | registered(ReconciliationMetrics) if name not in shown]
    assert len({panel["id"] for panel in board["panels"]}) == len(board["panels"])
    places = [panel["gridPos"] for panel in board["panels"]]
    cells = [
        (x, y) for at in places for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells))


#
def test_every_alert_is_in_the_runbook_and_has_a_unit_test():
    alerts = re.findall(r"- alert: (\w+)", (DEPLOY / "prometheus" / "pixdict.yml").read_text())
    runbook = (ROOT / "docs" / "pixdict" / "runbook.md").read_text()
    assert re.findall(r"^## `(Dict\w+)`", runbook, re.MULTILINE) == alerts
    fired = (DEPLOY / "prometheus" / "pixdict_test.yml").read_text().split("exp_alerts")
    assert {re.findall(r"alertname: (\w+)", part)[-1] for part in fired[:-1]} == set(alerts)


# covers C-10
def test_hits_and_times_of_every_cached_entity_are_shown_and_watched():
    board = json.loads((DEPLOY / "grafana" / "pixdict.json").read_text())
    shown = " ".join(target["expr"] for panel in board["panels"] for target in panel.get("targets", []))
    chosen = {text.replace("\\", "") for text in re.findall(r'batuta_cache_\w+\{entity=~"([^"]+)"', shown)}
    assert chosen, "no panel shows caches"
    for key in (entries.BY_ID, entries.BY_KEY, claims.BY_ID, claims.STATUS, claims.OF_ENTRY, lookups.BY_KEY):
        entity = ":".join(part for part in key.split(":") if not part.startswith("{"))
        assert all(re.fullmatch(pattern, entity) for pattern in chosen), entity
    alerts = (DEPLOY / "prometheus" / "alerts.yml").read_text()
    low = alerts.partition("- alert: BatutaCacheHitsLow")[2].partition("- alert:")[0]
    assert "sum by (entity)" in low
    assert "entity=" not in low, "it must watch every entity"
