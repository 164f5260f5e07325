"""OpenAPI 3.1, made from the table of routes, and a page that shows it without anything from elsewhere."""

from __future__ import annotations

import html
from collections.abc import Iterable
from importlib.metadata import version
from typing import Any

import msgspec
from starlette.responses import HTMLResponse, Response

from batuta.problems import MEDIA_TYPE
from batuta.server.http.call import Call
from batuta.server.http.routing import Route, Scope

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
        found["requestBody"] = {"content": {"application/json": {"schema": by_kind[id(route.body)]}}}
    return found


def _responses(route: Route, by_kind: dict[int, Any]) -> dict[str, Any]:
    well = {"description": "It was done."}
    if route.answer is not None:
        well["content"] = {"application/json": {"schema": by_kind[id(route.answer)]}}  # type: ignore[assignment]
    problem = {
        "description": "The problem.",
        "content": {MEDIA_TYPE: {"schema": {"$ref": _REF.format(name="Problem")}}},
    }
    statuses = {route.status} | ({200, 202} if route.status in (201, 202) else set())
    if route.answer is not None and route.answer.__name__ in ("Updated", "Operation"):
        statuses |= {200, 202}
    if route.path == "/readyz":
        statuses.add(503)
    found: dict[str, Any] = {str(status): well for status in sorted(statuses)}
    return found | {"default": problem}


async def show(call: Call) -> dict[str, Any]:
    found: dict[str, Any] = call.server.openapi()
    return found


async def docs(call: Call) -> Response:
    """Every route on one page: no script, nothing from elsewhere."""
    rows = "".join(_row(route) for route in call.server.table)
    page = (
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>Batuta API</title><link rel=stylesheet href='{html.escape(call.root)}/docs.css'><h1>Batuta API</h1>"
        f"<p>The whole description is at <a href='{html.escape(call.root)}/openapi.json'>openapi.json</a>.</p>"
        f"<table><tr><th>Method<th>Path<th>Scope<th>What it does</tr>{rows}</table></html>"
    )
    return HTMLResponse(page)


def _row(route: Route) -> str:
    cells = (route.method, route.path, route.scope.word, route.summary)
    return "<tr>" + "".join(f"<td>{html.escape(cell)}" for cell in cells) + "</tr>"


_CSS = """:root { color-scheme: light dark; font: 16px/1.5 system-ui, sans-serif }
body { max-width: 72rem; margin: 2rem auto; padding: 0 1rem }
table { border-collapse: collapse; width: 100% }
td, th { text-align: left; vertical-align: top; padding: .25rem .75rem .25rem 0; border-bottom: 1px solid #8884 }
td:nth-child(2) { font-family: ui-monospace, monospace; overflow-wrap: anywhere }
"""


async def css(_: Call) -> Response:
    return Response(_CSS, media_type="text/css")


def _route(path: str, handler: Any, summary: str) -> Route:
    return Route(method="GET", path=path, scope=Scope.PUBLIC, handler=handler, summary=summary, namespaced=False)


ROUTES = (
    _route("/openapi.json", show, "This description."),
    _route("/docs", docs, "Every route on one page."),
    _route("/docs.css", css, "How that page looks."),
)
