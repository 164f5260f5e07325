"""Metrics for Prometheus as middleware: `connect(url, middleware=[Metrics()])`. Needs the extra `metrics`.

from batuta.metrics import Metrics, expose

metrics = Metrics()
with expose(metrics, port=9464):  # http://127.0.0.1:9464/metrics
    async with connect(url, middleware=[metrics]) as batuta, batuta.worker(...): ...
"""

from __future__ import annotations

from batuta.errors import MissingExtra

try:
    import prometheus_client  # noqa: F401 - only whether it is there
except ImportError as error:
    raise MissingExtra("batuta.metrics", "metrics") from error

from batuta.metrics.exposition import expose, exposition
from batuta.metrics.gauges import store_metrics
from batuta.metrics.registry import Metrics
from batuta.metrics.table import GAUGES, METRICS, Gauge, Kind, Metric

__all__ = ["GAUGES", "METRICS", "Gauge", "Kind", "Metric", "Metrics", "expose", "exposition", "store_metrics"]
