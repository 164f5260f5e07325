"""OpenAPI 3.1, made from the table of routes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec

from batuta.problems import MEDIA_TYPE
from batuta.server.http.call import Call
from batuta.server.http.routing import Repeat, Route, Scope, public

_PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "detail", "code", "trace_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "detail": {"type": "string"},
        "code": {"type": "string"},
        "trace_id": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        "retry_after": {"type": "number"},
    },
}
_IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "required": False,
    "schema": {"type": "string", "pattern": "^[!-~]{1,200}$"},
}
_LAST_EVENT_ID = {"name": "Last-Event-ID", "in": "header", "required": False, "schema": {"type": "string"}}
_REF = "#/components/schemas/{name}"


def document(table: Iterable[Route]) -> dict[str, Any]:
    """The whole description."""
    routes = list(table)
    kinds = [kind for route in routes for kind in (route.query, route.body, route.answer) if kind is not None]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REF)
    by_kind = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, by_kind, components)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Batuta", "version": version("batuta")},
        "paths": paths,
        "components": {
            "schemas": dict(components) | {"Problem": _PROBLEM},
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": "batuta_session"},
            },
        },
    }


def _operation(route: Route, by_kind: dict[int, Any], components: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in route.parameters
    ]
    shape = components[by_kind[id(route.query)]["$ref"].rpartition("/")[2]]
    required = shape.get("required", ())
    parameters += [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in shape.get("properties", {}).items()
    ]
    if route.namespaced:
        parameters.append({"name": "namespace", "in": "query", "required": False, "schema": {"type": "string"}})
    if route.payloads:
        parameters.append({"name": "reveal", "in": "query", "required": False, "schema": {"type": "boolean"}})
        if "reason" not in shape.get("properties", {}):
            parameters.append({"name": "reason", "in": "query", "required": False, "schema": {"type": "string"}})
    if route.repeat is Repeat.OWN or (route.method == "POST" and route.repeat is not Repeat.FREE):
        parameters.append(_IDEMPOTENCY_KEY)
    if route.streams:
        parameters.append(_LAST_EVENT_ID)
    found: dict[str, Any] = {
        "operationId": route.operation_id,
        "summary": route.summary,
        "tags": [route.noun],
        "parameters": parameters,
        "responses": _responses(route, by_kind),
        "security": [] if route.scope is Scope.PUBLIC else [{"key": []}, {"session": []}],
        "x-scope": route.scope.word,
    }
    if route.body is not None:
        needed = bool(components[by_kind[id(route.body)]["$ref"].rpartition("/")[2]].get("required"))
        content = {"application/json": {"schema": by_kind[id(route.body)]}}
        found["requestBody"] = {"required": needed, "content": content}
    return found


def _responses(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    well: dict[str, Any] = {"description": "It was done."}
    if route.answer is not None:
        well["content"] = {"application/json": {"schema": by_kind[id(route.answer)]}}
    elif route.media:
        well["content"] = {route.media: {"schema": {"type": "string"}}}
    problem = {
        "description": "The problem.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    statuses = {route.status} | ({200, 202} if route.status in (201, 202) else set())
    if route.answer is not None and route.answer.__name__ in ("Decided", "Updated", "Operation"):
        statuses |= {200, 202}
    if route.later:
        statuses.add(202)
    if route.path == "/readyz":
        statuses.add(503)
    found: dict[str, Any] = {str(status): well for status in sorted(statuses)}
    return found | {"default": problem}


async def show(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = call.server.openapi
    return found | {"servers": [{"url": call.root}]} if call.root else found  # mounted: paths begin there


ROUTES = (public("/openapi.json", show, "This description.", None),)
