"""The description of the API as one page: no script, nothing from elsewhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import Any

from starlette.responses import HTMLResponse, Response

from batuta.server.http.call import Call
from batuta.server.http.routing import public

Schema = dict[str, Any]

_INTRODUCTION = """<p>Requests and answers are JSON. A program sends <code>Authorization: Bearer KEY</code>; a browser
has a session, and sends <code>X-CSRF-Token</code> with every change. Each route says which scope it needs. Lists take
<code>limit</code> and <code>cursor</code>. Every POST takes an <code>Idempotency-Key</code>, and every GET answers with
an <code>ETag</code>. An error is a <a href='#schema-Problem'>Problem</a> (RFC 9457) with a code and a trace id.</p>"""
_SAMPLES = {"string": "…", "integer": 1, "number": 1.5, "boolean": True, "array": [], "object": {}}


def page(document: dict[str, Any], root: str) -> str:
    """The whole description as HTML. `root`: the path that the server is mounted at."""
    found = [
        (operation["tags"][0], method.upper(), path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    nouns = [(noun, list(group)) for noun, group in groupby(sorted(found, key=_by_noun), key=_by_noun)]
    schemas = document["components"]["schemas"]
    links = "".join(f"<a href='#{escape(noun)}'>{escape(noun)}</a>" for noun, _ in nouns)
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>Batuta API</title><link rel=stylesheet href='{escape(root)}/docs.css'>",
        f"<nav aria-label=Routes>{links}<a href='#schemas'>schemas</a></nav><main><h1>Batuta API</h1>",
        f"<p>Version {escape(document['info']['version'])}. For programs: ",
        f"<a href='{escape(root)}/openapi.json'>openapi.json</a> (OpenAPI 3.1).</p>{_INTRODUCTION}",
    ]
    for noun, routes in nouns:
        parts.append(f"<h2 id='{escape(noun)}'>{escape(noun)}</h2>")
        parts += (_operation(method, path, operation, schemas, root) for _, method, path, operation in routes)
    parts.append("<h2 id=schemas>schemas</h2>")
    parts += (_schema(name, schema) for name, schema in sorted(schemas.items()))
    return "".join(parts) + "</main></html>"


def _by_noun(found: tuple[str, str, str, Schema]) -> str:
    return found[0]


def _operation(method: str, path: str, operation: Schema, schemas: dict[str, Schema], root: str) -> str:
    parts = [
        f"<details id='{escape(operation['operationId'])}'><summary><b class={method.lower()}>{method}</b> ",
        f"<code>{escape(path)}</code> <span>{escape(operation['summary'])}</span> ",
        f"<i>{escape(operation['x-scope'])}</i></summary>",
    ]
    if operation["parameters"]:
        rows = (
            (one["name"], _type(one["schema"]), one["in"], _default(one["schema"], one["required"]))
            for one in operation["parameters"]
        )
        parts.append(f"<h3>Parameters</h3>{_table(rows)}")
    body = _content(operation.get("requestBody", {}))
    if body:
        parts.append(f"<h3>Body: {_type(body)}</h3>{_fields(_resolved(body, schemas))}")
    answer = _content(next(iter(operation["responses"].values())))
    if answer:
        parts.append(f"<h3>Answer: {_type(answer)}</h3>{_fields(_resolved(answer, schemas), is_answer=True)}")
    parts.append(f"<h3>Example</h3><pre>{escape(_example(method, root + path, operation, body, schemas))}</pre>")
    return "".join(parts) + "</details>"


def _example(method: str, path: str, operation: Schema, body: Schema, schemas: dict[str, Schema]) -> str:
    """A command that sends what must be sent."""
    words = ["curl"] if method == "GET" else ["curl", "-X", method]
    if operation["security"]:
        words.append('-H "Authorization: Bearer $KEY"')
    if body:
        shape = _resolved(body, schemas)
        given = {name: _sample(shape["properties"][name], schemas) for name in shape.get("required", ())}
        words.append(f"-H 'Content-Type: application/json' -d '{json.dumps(given, ensure_ascii=False)}'")
    for name in ("{id}", "{name}"):
        path = path.replace(name, name.strip("{}").upper())
    return " ".join([*words, f"$BATUTA{path}"])


def _sample(schema: Schema, schemas: dict[str, Schema]) -> Any:
    shape = _resolved(schema, schemas)
    if "enum" in shape:
        return shape["enum"][0]
    return _SAMPLES.get(shape.get("type", "object"), "…")


def _content(part: Schema) -> Schema:
    """The schema of a body or an answer; empty when it has none."""
    found: Schema = part.get("content", {}).get("application/json", {}).get("schema", {})
    return found


def _resolved(schema: Schema, schemas: dict[str, Schema]) -> Schema:
    return schemas[_name(schema)] if "$ref" in schema else schema


def _name(schema: Schema) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


def _fields(schema: Schema, *, is_answer: bool = False) -> str:
    required = () if is_answer else schema.get("required", ())
    fields = schema.get("properties", {}).items()
    return _table((name, _type(one), "", _default(one, name in required)) for name, one in fields)


def _table(rows: Iterator[tuple[str, str, str, str]]) -> str:
    cells = "".join(
        f"<tr><td><code>{escape(name)}</code><td>{kind}<td>{escape(where)}<td>{escape(default)}"
        for name, kind, where, default in rows
    )
    return f"<div class=wide><table>{cells}</table></div>" if cells else ""


def _default(schema: Schema, is_required: bool) -> str:
    if is_required:
        return "required"
    return f"default {json.dumps(schema['default'])}" if schema.get("default") is not None else ""


def _type(schema: Schema) -> str:
    """As HTML: `string`, `list of Run`, `integer or null`."""
    if "$ref" in schema:
        name = escape(_name(schema))
        return f"<a href='#schema-{name}'>{name}</a>"
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "enum" in schema:
        return " or ".join(f"<code>{escape(json.dumps(one))}</code>" for one in schema["enum"])
    kind = schema.get("type", "any")
    if kind == "array":
        items = schema.get("items")
        return f"list of {_type(items)}" if items else "list"
    if kind == "object" and isinstance(schema.get("additionalProperties"), dict):
        return f"object of {_type(schema['additionalProperties'])}"
    return escape(str(kind) + (f" ({schema['format']})" if "format" in schema else ""))


def _schema(name: str, schema: Schema) -> str:
    about = escape(schema.get("description", ""))
    shape = _fields(schema) or f"<p>{_type({key: one for key, one in schema.items() if key != '$ref'})}</p>"
    return f"<section id='schema-{escape(name)}'><h3>{escape(name)}</h3><p>{about}</p>{shape}</section>"


async def docs(call: Call) -> Response:
    return HTMLResponse(page(call.server.openapi, call.root))


_CSS = """:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; --line: #8883; --soft: #8881 }
* { box-sizing: border-box }
body { margin: 0; display: grid; grid-template-columns: 11rem minmax(0, 1fr) }
nav { position: sticky; top: 0; height: 100vh; overflow: auto; padding: 1.5rem 1rem }
nav { border-right: 1px solid var(--line) }
nav a { display: block; padding: .15rem 0; color: inherit; text-decoration: none }
nav a:hover { text-decoration: underline }
main { max-width: 62rem; padding: 1.5rem 2rem 20rem; min-width: 0 }
h1 { font-size: 1.5rem; margin: 0 }
h2 { font-size: 1.15rem; margin: 2rem 0 .5rem }
h3 { font-size: .9rem; margin: .8rem 0 .3rem; overflow-wrap: anywhere }
code, pre { font: .87em/1.6 ui-monospace, Menlo, Consolas, monospace; overflow-wrap: anywhere }
pre { background: var(--soft); padding: .6rem .8rem; border-radius: 5px; white-space: pre-wrap; margin: .3rem 0 }
details { border: 1px solid var(--line); border-radius: 6px; padding: 0 .9rem; margin: .35rem 0 }
details[open] { padding-bottom: .9rem }
summary { cursor: pointer; padding: .4rem 0 }
summary::after { content: ''; display: block; clear: both }
summary b { display: inline-block; min-width: 4rem; font-size: .8rem }
summary span { margin-left: .4rem; opacity: .8 }
summary i { float: right; font-style: normal; font-size: .8rem; opacity: .8 }
.post, .put, .patch { color: light-dark(#1a5fbb, #6aa9ff) }
.delete { color: light-dark(#b01f26, #ff8080) }
.get { color: light-dark(#0c6b4c, #4ed19c) }
a { color: light-dark(#3350d8, #93a5ff) }
.wide { overflow-x: auto }
table { border-collapse: collapse; width: 100% }
td { vertical-align: top; padding: .25rem .9rem .25rem 0; border-top: 1px solid var(--line) }
td:first-child { width: 13rem }
td:last-child { padding-right: 0; text-align: right }
section:target, details:target { box-shadow: -3px 0 0 light-dark(#3350d8, #93a5ff) }
@media (max-width: 50rem) {
  body { display: block }
  nav { position: static; height: auto; border: 0; display: flex; flex-wrap: wrap; gap: 0 .9rem; padding: 1rem 1rem 0 }
  main { padding: 1rem }
  summary span { display: block; margin: 0 }
  td { overflow-wrap: anywhere }
  td:last-child { overflow-wrap: normal }
  td:first-child { width: auto }
}
"""


async def css(_: Call) -> Response:
    return Response(_CSS, media_type="text/css")


ROUTES = (
    public("/docs", docs, "Every route on one page.", None, media="text/html"),
    public("/docs.css", css, "How that page looks.", None, media="text/css"),
)
