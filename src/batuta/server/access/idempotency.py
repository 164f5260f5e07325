"""Idempotency keys over HTTP."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict

from batuta.authoring.client.idempotency import IdempotencyPage
from batuta.server.http.call import Call
from batuta.server.http.routing import route


class IdempotencyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    prefix: str = ""
    cursor: str | None = None
    limit: int = 50


class DeleteKeyQuery(Struct, kw_only=True, forbid_unknown_fields=True):
    key: str = ""
    reason: str = ""


class DeletedKey(Struct):
    key: str
    deleted: bool


async def list_idempotency_keys(call: Call) -> IdempotencyPage:
    return await call.client.idempotency.list(**asdict(call.query))


async def delete_idempotency_key(call: Call) -> DeletedKey:
    query: DeleteKeyQuery = call.query
    return DeletedKey(query.key, await call.client.idempotency.delete(query.key, reason=query.reason))


ROUTES = (
    route(
        "GET",
        "/api/v1/idempotency",
        list_idempotency_keys,
        "Idempotency keys and their states.",
        IdempotencyPage,
        query=IdempotencyQuery,
    ),
    route(
        "DELETE",
        "/api/v1/idempotency",
        delete_idempotency_key,
        "Delete an idempotency key: the next request with it is carried out.",
        DeletedKey,
        query=DeleteKeyQuery,
    ),
)
