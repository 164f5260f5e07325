"""The audit log."""

from __future__ import annotations

from msgspec import Struct

from batuta.authoring.client.bulk_operations import AuditPage, AuditReport
from batuta.errors import UnknownRun
from batuta.server.http.call import Call, ago, find_run
from batuta.server.http.routing import Scope, route


class AuditQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    """`target`: the id or run id of a run, or the name of a queue, schedule or key."""

    target: str | None = None
    actor: str | None = None
    verb: str | None = None
    since: str | None = None
    until: str | None = None
    limit: int = 50
    cursor: str | None = None


class VerifyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    expect: str | None = None
    """The `head` of an earlier answer, kept elsewhere."""


async def list_acts(call: Call) -> AuditPage:
    query: AuditQuery = call.query
    target = query.target
    if target:
        try:
            target = (await find_run(call.client, target)).id
        except UnknownRun:
            pass  # the name of something else
    return await call.client.audit(
        target=target,
        actor=query.actor,
        verb=query.verb,
        since=ago(query.since, "since"),
        until=ago(query.until, "until"),
        cursor=query.cursor,
        limit=query.limit,
    )


async def verify(call: Call) -> AuditReport:
    return await call.client.verify_audit(call.query.expect)


ROUTES = (
    route(
        "GET",
        "/api/v1/audit",
        list_acts,
        "What operators did, newest first.",
        AuditPage,
        query=AuditQuery,
        payloads=True,
    ),
    route(
        "GET",
        "/api/v1/audit/verify",
        verify,
        "Verify that no row of the audit log was changed.",
        AuditReport,
        scope=Scope.ADMIN,
        query=VerifyQuery,
    ),
)
