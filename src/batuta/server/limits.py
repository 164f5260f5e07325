"""Rules of a namespace: quotas on starts, how long closed runs are kept, and whether payloads are redacted."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct

from batuta.authoring.client.documents import retention_document
from batuta.journal.quotas import NAMES, Quota
from batuta.server.filters import ReasonQuery
from batuta.server.http.call import Call, Refused
from batuta.server.http.routing import Scope, route


class Quotas(Struct):
    quotas: list[Quota]


class QuotaBody(Struct, kw_only=True, forbid_unknown_fields=True):
    limit: float | None
    """null: none, also where namespace `*` has one."""
    burst: int | None = None
    reason: str = ""


class RetentionRule(Struct, kw_only=True):
    workflow: str | None
    state: str | None
    keep: str


class RetentionRules(Struct):
    retention: list[RetentionRule]


class RetentionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    """`keep` is a text such as `30d` or `forever`."""

    keep: str
    workflow: str = ""
    state: str = ""
    reason: str = ""


class RetentionQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    workflow: str = ""
    state: str = ""
    reason: str = ""


class RedactionBody(Struct, kw_only=True, forbid_unknown_fields=True):
    required: bool
    reason: str = ""


class Redaction(Struct):
    required: bool
    """Whether the namespace asks for it; BATUTA_REDACT of a server asks, too."""


class PruneBody(Struct, kw_only=True, forbid_unknown_fields=True):
    dry_run: bool = False
    reason: str = ""


class WasPruned(Struct):
    runs: int
    dry_run: bool


def _name(call: Call) -> str:
    if call.id not in NAMES:
        raise Refused(404, "unknown_quota", f"no quota {call.id[:100]!r}: there are {', '.join(NAMES)}")
    return call.id


async def list_quotas(call: Call) -> Quotas:
    return Quotas(list(await call.client.quotas.list()))


async def set_quota(call: Call) -> Quotas:
    body: QuotaBody = call.body
    limit = int(body.limit) if body.limit is not None and body.limit.is_integer() else body.limit
    with call.because(body.reason):
        await call.client.quotas.set(_name(call), limit, burst=body.burst)
    return await list_quotas(call)


async def delete_quota(call: Call) -> Quotas:
    with call.because(call.query.reason):
        await call.client.quotas.delete(_name(call))
    return await list_quotas(call)


async def list_retention(call: Call) -> dict[str, Any]:
    return retention_document(await call.client.retention.list())


async def set_retention(call: Call) -> dict[str, Any]:
    body: RetentionBody = call.body
    with call.because(body.reason):
        await call.client.retention.set(body.keep, workflow=body.workflow, state=body.state)
    return await list_retention(call)


async def delete_retention(call: Call) -> dict[str, Any]:
    query: RetentionQuery = call.query
    with call.because(query.reason):
        await call.client.retention.delete(workflow=query.workflow, state=query.state)
    return await list_retention(call)


async def prune(call: Call) -> WasPruned:
    body: PruneBody = call.body
    with call.because(body.reason):
        return WasPruned(await call.client.retention.prune(dry_run=body.dry_run), body.dry_run)


async def show_redaction(call: Call) -> Redaction:
    return Redaction(await call.client.namespace.requires_redaction())


async def set_redaction(call: Call) -> Redaction:
    await call.client.namespace.set_redaction(call.body.required, call.body.reason)
    call.server.redaction_changed(call.client)
    return await show_redaction(call)


_QUOTA, _RETENTION, _REDACTION = "/api/v1/quotas/{name}", "/api/v1/retention", "/api/v1/redaction"


_route = partial(route, changes=Scope.ADMIN)
ROUTES = (
    _route("GET", "/api/v1/quotas", list_quotas, "Quotas, and how much of them is used.", Quotas),
    _route("PUT", _QUOTA, set_quota, "Set a quota, or replace it.", Quotas, body=QuotaBody),
    _route("DELETE", _QUOTA, delete_quota, "Delete a quota of the namespace.", Quotas, query=ReasonQuery),
    _route("GET", _RETENTION, list_retention, "How long closed runs are kept.", RetentionRules),
    _route("PUT", _RETENTION, set_retention, "Add a rule, or replace one.", RetentionRules, body=RetentionBody),
    _route("DELETE", _RETENTION, delete_retention, "Delete a rule.", RetentionRules, query=RetentionQuery),
    _route(
        "POST", f"{_RETENTION}/prune", prune, "Delete closed runs whose retention is over.", WasPruned, body=PruneBody
    ),
    _route("GET", _REDACTION, show_redaction, "Whether payloads of the namespace are redacted.", Redaction),
    _route("PUT", _REDACTION, set_redaction, "Turn redaction on or off.", Redaction, body=RedactionBody),
)
