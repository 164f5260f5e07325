"""Every route of the server."""

from __future__ import annotations

from batuta.server import (
    admin,
    audit,
    bulk,
    dead_letters,
    docs,
    health,
    jobs,
    limits,
    live,
    metrics,
    openapi,
    operations,
    overview,
    queues,
    run_actions,
    runs,
    schedules,
)
from batuta.server.access import api_keys, idempotency, session
from batuta.server.flows import events, pages, secrets, workflows
from batuta.server.flows import runs as flow_runs
from batuta.server.http.routing import Route
from batuta.server.partners import bus, cache, gates, webhooks

TABLE: tuple[Route, ...] = (
    *runs.ROUTES,
    *run_actions.ROUTES,
    *bulk.ROUTES,
    *jobs.ROUTES,
    *schedules.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *limits.ROUTES,
    *gates.ROUTES,
    *webhooks.ROUTES,
    *cache.ROUTES,
    *bus.ROUTES,
    *audit.ROUTES,
    *operations.ROUTES,
    *api_keys.ROUTES,
    *idempotency.ROUTES,
    *overview.ROUTES,
    *live.ROUTES,
    *session.ROUTES,
    *workflows.ROUTES,
    *events.ROUTES,
    *flow_runs.ROUTES,
    *secrets.ROUTES,
    *pages.ROUTES,
    *admin.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
    *openapi.ROUTES,
    *docs.ROUTES,
)
