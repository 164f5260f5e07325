"""Metrics as text, and over HTTP."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from prometheus_client import Metric, generate_latest, start_http_server
from prometheus_client.core import Sample
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4

from batuta.errors import InvalidInput
from batuta.metrics.registry import Metrics

log = logging.getLogger("batuta.metrics")

CONTENT_TYPE = CONTENT_TYPE_PLAIN_0_0_4


class _Restricted:
    """A registry without the series of other namespaces than `namespace`."""

    def __init__(self, registry: Any, namespace: str) -> None:
        self._registry, self._namespace = registry, namespace

    def collect(self) -> Iterator[Metric]:
        for family in self._registry.collect():
            family.samples = [one for one in family.samples if self._shows(one)]
            yield family

    def _shows(self, sample: Sample) -> bool:
        return sample.labels.get("namespace") in (None, self._namespace)


def exposition(*collectors: Any, namespace: str | None = None) -> bytes:
    """The text that Prometheus reads, of a `Metrics` and of what `store_metrics` gives. With `namespace`, nothing of
    others is in it."""
    found = (one.registry if isinstance(one, Metrics) else one for one in collectors)
    if namespace is not None:
        found = (_Restricted(one, namespace) for one in found)
    return b"".join(map(generate_latest, found))


@contextmanager
def expose(metrics: Metrics, port: int, *, host: str = "127.0.0.1") -> Iterator[int]:
    """Serve the metrics of this process at `http://host:port/metrics`, from a thread; port 0: any that is free. Gives
    the port. Raises InvalidInput."""
    if not isinstance(metrics, Metrics):
        raise InvalidInput(f"{metrics!r} is not a batuta.metrics.Metrics")
    try:
        server, thread = start_http_server(port, host, metrics.registry)
    except OSError as error:
        raise InvalidInput(f"metrics cannot listen at {host}:{port}: {error.strerror}; choose another port") from error
    try:
        log.info("metrics at http://%s:%d/metrics", host, server.server_port)
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
