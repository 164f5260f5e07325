"""Every route of the server."""

from __future__ import annotations

from batuta.server import (
    admin,
    audit,
    bulk,
    dead_letters,
    health,
    jobs,
    limits,
    live,
    metrics,
    openapi,
    operations,
    overview,
    partners,
    queues,
    run_actions,
    runs,
    schedules,
)
from batuta.server.access import api_keys, idempotency, session
from batuta.server.http.routing import Route

TABLE: tuple[Route, ...] = (
    *runs.ROUTES,
    *run_actions.ROUTES,
    *bulk.ROUTES,
    *jobs.ROUTES,
    *schedules.ROUTES,
    *queues.ROUTES,
    *dead_letters.ROUTES,
    *limits.ROUTES,
    *partners.ROUTES,
    *audit.ROUTES,
    *operations.ROUTES,
    *api_keys.ROUTES,
    *idempotency.ROUTES,
    *overview.ROUTES,
    *live.ROUTES,
    *session.ROUTES,
    *admin.ROUTES,
    *health.ROUTES,
    *metrics.ROUTES,
    *openapi.ROUTES,
)
