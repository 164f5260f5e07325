"""Gauges of whole namespaces, read from their stores at the moment of a scrape."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from typing import Protocol

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from batuta.cache import CacheInfo
from batuta.clock import SECOND
from batuta.errors import StoreError
from batuta.journal.bus.messages import BusStatus
from batuta.journal.queues import QueueGauges, StoreGauges
from batuta.journal.resilience.partners import BREAKER_STATES
from batuta.journal.states import OPEN
from batuta.metrics.table import GAUGES, Gauge, Kind

log = logging.getLogger("batuta.metrics")

SLOWEST = 5.0
"""Seconds after which a store counts as down for this scrape."""


class Source(Protocol):
    """The part of a namespace that is asked: that of `client.namespace`."""

    @property
    def name(self) -> str: ...
    async def gauges(self) -> StoreGauges: ...


class StoreMetrics:
    """Gauges of one scrape, as prometheus_client collects them."""

    def __init__(self, found: Sequence[tuple[str, StoreGauges | None]]) -> None:
        self._families = {one.name: _family(one) for one in GAUGES}
        for namespace, gauges in found:
            self._add("batuta_store_up", [namespace], gauges is not None)
            if gauges is not None:
                self._fill(namespace, gauges)

    def add_cache(self, where: str, info: CacheInfo | None) -> None:
        """The state of the application's Redis; None: it did not answer."""
        self._add("batuta_cache_up", [where], info is not None)
        if info is not None:
            self._add("batuta_cache_keys", [where], info.keys)
            self._add("batuta_cache_memory_bytes", [where], info.memory_used)
            self._add("batuta_cache_memory_max_bytes", [where], info.memory_max)
            self._add("batuta_cache_evictions_total", [where], info.evicted)

    def collect(self) -> Iterator[GaugeMetricFamily | CounterMetricFamily]:
        yield from self._families.values()

    def _add(self, name: str, labels: Sequence[str], value: float) -> None:
        self._families[name].add_metric(labels, float(value))

    def _fill(self, namespace: str, gauges: StoreGauges) -> None:
        for state in sorted(OPEN):
            self._add("batuta_runs_open", [namespace, state], gauges.states.get(state, 0))
        for name, queue in gauges.queues.items():
            self._fill_queue([namespace, name], queue, gauges.now)
        self._add("batuta_runs_retrying", [namespace], sum(gauges.retrying.values()))
        self._add("batuta_workers_live", [namespace], gauges.workers)
        self._add("batuta_dead_letters_open", [namespace], gauges.dead_letters)
        for breaker, current in gauges.breakers.items():
            for each in BREAKER_STATES:
                self._add("batuta_breaker_state", [namespace, breaker, each], each == current)
        if gauges.bus is not None:
            self._fill_bus(namespace, gauges.bus, gauges.now)
        self._add("batuta_schedule_overdue_seconds", [namespace], _age(gauges.schedule_due, gauges.now))

    def _fill_bus(self, namespace: str, bus: BusStatus, now: int) -> None:
        for one in bus.subscriptions:
            self._add("batuta_bus_waiting", [namespace, one.name], one.waiting)
            self._add("batuta_bus_running", [namespace, one.name], one.running)
            self._add("batuta_bus_lag_seconds", [namespace, one.name], _age(one.oldest_at, now))
            if one.behind is not None:
                self._add("batuta_bus_behind", [namespace, one.name], one.behind)
        for topic in bus.topics:
            self._add("batuta_bus_unsent", [namespace, topic.name], topic.unsent)

    def _fill_queue(self, labels: list[str], queue: QueueGauges, now: int) -> None:
        for state in ("ready", "delayed", "running"):
            self._add("batuta_queue_depth", [*labels, state], getattr(queue, state))
        self._add("batuta_queue_oldest_seconds", labels, _age(queue.oldest, now))
        self._add("batuta_queue_workers", labels, queue.workers)
        self._add("batuta_queue_paused", labels, queue.paused)


def _family(one: Gauge) -> GaugeMetricFamily | CounterMetricFamily:
    kind = CounterMetricFamily if one.kind is Kind.COUNTER else GaugeMetricFamily
    return kind(one.name, one.help, labels=one.labels)


async def store_metrics(namespaces: Sequence[Source]) -> StoreMetrics:
    """Ask all stores at the same time. A store that does not answer is shown as down."""

    async def ask(one: Source) -> tuple[str, StoreGauges | None]:
        try:
            async with asyncio.timeout(SLOWEST):
                return one.name, await one.gauges()
        except (StoreError, TimeoutError) as error:
            log.warning("the store of namespace %r did not answer a scrape: %r", one.name, error)
            return one.name, None

    return StoreMetrics(await asyncio.gather(*map(ask, namespaces)))


def _age(since: int | None, now: int) -> float:
    return 0.0 if since is None else max(0, now - since) / SECOND
