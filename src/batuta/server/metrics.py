"""Metrics for Prometheus: of this process, and of the stores of all namespaces that are open here."""

from __future__ import annotations

from starlette.responses import Response

from batuta.client import Batuta
from batuta.journal.queues import StoreGauges
from batuta.metrics.exposition import CONTENT_TYPE, exposition
from batuta.metrics.gauges import store_metrics
from batuta.server.access.check import EVERY_NAMESPACE
from batuta.server.http.call import Call
from batuta.server.http.routing import route


class WithBacklog:
    """A namespace whose gauges also say what the broker of its bus holds."""

    def __init__(self, client: Batuta) -> None:
        self._client, self.name = client, client.namespace.name

    async def gauges(self) -> StoreGauges:
        found = await self._client.namespace.gauges()
        if found.bus is not None:
            await self._client.bus.with_backlog(found.bus)
        return found


async def metrics(call: Call) -> Response:
    """A credential for one namespace sees that one alone; others see all that are open here, or the one they name."""
    every = call.principal.namespace == EVERY_NAMESPACE and "namespace" not in call.request.query_params
    clients = call.server.opened if every else [call.client]
    found = await store_metrics([WithBacklog(client) for client in clients])
    cache = await call.server.cache.look()
    if cache.configured:
        found.add_cache(cache.where, cache.info)
    text = exposition(call.server.metrics, found, namespace=None if every else call.client.namespace.name)
    return Response(text, headers={"Content-Type": CONTENT_TYPE, "Cache-Control": "no-store"})


ROUTES = (
    route(
        "GET",
        "/metrics",
        metrics,
        "Metrics of this server and of the store, as text that Prometheus reads.",
        None,
        media="text/plain",
    ),
)
