"""Gauges and counters of reconciliations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from prometheus_client import Counter, Gauge

from pixdict.connect.reconciliation.models import AGREES, BUSY, DIFFERS, Report


class ReconciliationMetrics:
    """By type of keys. `registry`: of Prometheus."""

    def __init__(self, registry: Any) -> None:
        self._agreed = Gauge(
            "dict_reconciliation_agreed_timestamp_seconds",
            "When our entries and the directory's agreed last, in seconds since 1970",
            ["key_type"],
            registry=registry,
        )
        self._left = Gauge(
            "dict_reconciliation_differs",
            "1 when the last reconciliation left a difference that it could not repair",
            ["key_type"],
            registry=registry,
        )
        self._repairs = Counter(
            "dict_reconciliation_repairs", "Rows of ours that were repaired", ["key_type", "action"], registry=registry
        )
        self._ended = Counter(
            "dict_reconciliation_ended", "Reconciliations by outcome", ["key_type", "outcome"], registry=registry
        )

    def known(self, report: Report) -> None:
        """What an earlier process found."""
        if report.outcome in (AGREES, BUSY):
            self._agreed.labels(report.key_type).set(report.ended_at.timestamp())
        if report.outcome in (AGREES, BUSY, DIFFERS):
            self._left.labels(report.key_type).set(report.outcome == DIFFERS)

    def set(self, report: Report, repairs: Mapping[str, int]) -> None:
        """How one ended."""
        self.known(report)
        self._ended.labels(report.key_type, report.outcome).inc()
        for action, count in repairs.items():
            self._repairs.labels(report.key_type, action).inc(count)
