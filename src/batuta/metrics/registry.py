"""Middleware that counts events in a registry.

An event is only put aside. They are counted many at a time, and at a scrape: that costs much less than counting one by
one, and some of them come with every step of every run.
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.utils import floatToGoString

from batuta.authoring.middleware import Middleware
from batuta.clock import SECOND, SystemClock
from batuta.errors import InvalidInput
from batuta.metrics.table import FREE, METRICS, ByEvent, Metric, Read
from batuta.telemetry import CacheAsked, Event

log = logging.getLogger("batuta.metrics")

MOST_SERIES = 1_000
"""Combinations of labels of one metric. Later ones are counted with "other" in place of the names."""
OTHER = "other"
_ASIDE = 250
"""Events that wait to be counted, at most: as many as are still in the processor's cache."""

Key = tuple[str, ...]
Reading = Callable[[Any], Any] | ByEvent
Family = CounterMetricFamily | HistogramMetricFamily


class Metrics(Middleware):
    """Counts what happens in this process: `connect(url, middleware=[Metrics()])`.

    `registry`: where the metrics are registered; without it, one of their own. There is no global one: pass the object
    to `expose`, to the server, or to your own exporter. `table`: the metrics to count.
    """

    def __init__(self, registry: CollectorRegistry | None = None, *, table: Sequence[Metric] = METRICS) -> None:
        if registry is not None and not isinstance(registry, CollectorRegistry):
            raise InvalidInput(f"registry={registry!r} must be a prometheus_client.CollectorRegistry")
        self._tallies = [_Histogram(metric) if metric.buckets else _Count(metric) for metric in table]
        self._of: dict[type[Event], list[_Tally]] = {}
        for tally in self._tallies:
            for event in tally.metric.events:
                self._of.setdefault(event, []).append(tally)
        self.events = tuple(self._of)  # type: ignore[misc]  # of this instance: the table may be another
        self._aside: deque[Event] = deque()
        self._counting = threading.Lock()
        self._clock = SystemClock()
        self.registry = CollectorRegistry() if registry is None else registry
        self.registry.register(self)

    def event(self, event: Event) -> None:
        aside = self._aside
        aside.append(event)
        if len(aside) >= _ASIDE:
            self._count()

    def observe_cache(self, entity: str, operation: str, outcome: str, seconds: float) -> None:
        """Count operations of a cache: `open_cache(url, observer=metrics.observe_cache)`."""
        self.event(CacheAsked(self._clock.now() / SECOND, entity, operation, outcome, seconds))

    def _count(self) -> None:
        with self._counting:  # workers in other threads may have the same object
            groups: dict[type[Event], list[Event]] = {}
            for event in [self._aside.popleft() for _ in range(len(self._aside))]:
                groups.setdefault(type(event), []).append(event)
            for kind, events in groups.items():
                for tally in self._of.get(kind, ()):
                    try:
                        tally.add(events)
                    except Exception:  # of a function in the user's own table: it must harm nothing else
                        log.exception("%d events are not counted in %s", len(events), tally.metric.name)

    # -- what a registry asks for

    def describe(self) -> Iterator[Family]:
        for tally in self._tallies:
            yield tally.family()

    def collect(self) -> Iterator[Family]:
        self._count()
        with self._counting:
            yield from [tally.collected() for tally in self._tallies]


def _reading(read: Read) -> Callable[[Any], Any]:
    return attrgetter(read) if isinstance(read, str) else read


def _column_of(read: Read | ByEvent) -> Reading:
    return read if isinstance(read, Mapping) else _reading(read)


class _Tally:
    """The series of one metric."""

    def __init__(self, metric: Metric) -> None:
        self.metric, self._labels = metric, tuple(metric.labels)
        self._reads = [_column_of(read) for read in metric.labels.values()]
        self._value = None if metric.value is None else _reading(metric.value)
        self._series: dict[Key, Any] = {}

    def add(self, events: Sequence[Event]) -> None:
        raise NotImplementedError

    def family(self) -> Family:
        """Without any sample."""
        raise NotImplementedError

    def collected(self) -> Family:
        raise NotImplementedError

    def _keys(self, events: Sequence[Event]) -> Iterable[Key]:
        """`events` are all of one class."""
        return zip(*(self._column(read, events) for read in self._reads), strict=False) if self._reads else repeat(())

    def _column(self, read: Reading, events: Sequence[Event]) -> Iterable[str]:
        chosen = read[type(events[0])] if isinstance(read, Mapping) else read
        return repeat(chosen, len(events)) if isinstance(chosen, str) else map(chosen, events)

    def _key(self, key: Key) -> Key:
        """The key, or one with `other` for free labels when there are too many series."""
        if key in self._series or len(self._series) < MOST_SERIES:
            return key
        return tuple(OTHER if name in FREE else value for name, value in zip(self._labels, key, strict=True))


class _Count(_Tally):
    def add(self, events: Sequence[Event]) -> None:
        found: Counter[Key] = Counter()
        if self._value is None:
            found.update(self._keys(events))
        else:
            for key, value in zip(self._keys(events), map(self._value, events), strict=False):
                if value is not None:
                    found[key] += value
        for key, amount in found.items():
            key = self._key(key)
            self._series[key] = self._series.get(key, 0) + amount

    def family(self) -> CounterMetricFamily:
        return CounterMetricFamily(self.metric.name, self.metric.help, labels=self._labels)

    def collected(self) -> CounterMetricFamily:
        made = self.family()
        for key, amount in self._series.items():
            made.add_metric(key, amount)
        return made


class _Histogram(_Tally):
    """For each series: how many are in each bucket, and their sum."""

    def add(self, events: Sequence[Event]) -> None:
        bounds, series = self.metric.buckets, self._series
        for key, value in zip(self._keys(events), map(self._value or _one, events), strict=False):
            if value is None:
                continue
            counts = series.get(key)
            if counts is None:
                counts = series.setdefault(self._key(key), [0] * (len(bounds) + 1) + [0.0])
            counts[bisect_left(bounds, value)] += 1
            counts[-1] += value

    def family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self.metric.name, self.metric.help, labels=self._labels)

    def collected(self) -> HistogramMetricFamily:
        made = self.family()
        bounds = [*map(floatToGoString, self.metric.buckets), "+Inf"]
        for key, (*counts, total) in self._series.items():
            so_far = 0
            buckets = [(bound, so_far := so_far + count) for bound, count in zip(bounds, counts, strict=True)]
            made.add_metric(key, buckets, total)
        return made


def _one(_: Event) -> float:
    return 1.0
