"""The JSON Schema of flows, and their reference, both made from the structs of the format."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from msgspec import Struct, structs

from batuta.flows import expressions, values
from batuta.flows.conditions import ALIASES, OPERATORS
from batuta.flows.document import FORMAT, STEP_TYPES, FlowDocument, RetryPolicy, StepBase, Trigger
from batuta.flows.expressions import FUNCTIONS

SCHEMA_ID: Final = f"urn:batuta:flow:{FORMAT}"
"""Stays the same while documents of this format are read."""
_ARGUMENTS: Final = {
    "upper": "text",
    "lower": "text",
    "trim": "text",
    "concat": "value, ...",
    "replace": "text, old, new",
    "split": "text, by",
    "join": "list, by",
    "substring": "text, start, end",
    "length": "text, list or object",
    "text": "value",
    "number": "text or number",
    "json": "text",
    "add": "a, b",
    "subtract": "a, b",
    "multiply": "a, b",
    "divide": "a, b",
    "round": "number, digits",
    "min": "list, or numbers",
    "max": "list, or numbers",
    "sum": "list",
    "first": "list",
    "last": "list",
    "get": "object or list, key",
    "keys": "object",
    "list": "value, ...",
    "merge": "object, object",
    "add_seconds": "time, seconds",
    "seconds_between": "time, time",
}
"""How each function is called, for people."""


def json_schema() -> dict[str, Any]:
    """Of a flow as a file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": SCHEMA_ID,
        "title": f"Flow, format {FORMAT}",
        **msgspec.json.schema(FlowDocument),
    }


def reference() -> str:
    """The page about steps and expressions."""
    return "\n".join([*_head(), *_common(), *_steps(), *_trigger(), *_conditions(), *_expressions()]) + "\n"


def _head() -> list[str]:
    return [
        "# Steps and expressions of flows",
        "",
        "This page is made from the format itself: a test keeps it in step. The format as JSON Schema, for editors:",
        f"[flow-{FORMAT}.schema.json](flow-{FORMAT}.schema.json), or `GET /api/workflows/schema`.",
        "",
        "A flow is a list of steps. Each has a `key`, a `type` and a `config`. Steps follow each other in the order of",
        "the list, unless a step names another one. A *template* is a JSON value whose texts may hold",
        "`{{ expressions }}`.",
        "",
    ]


def _common() -> list[str]:
    retry = ["`retry`, of steps that reach the world:", "", *_table(RetryPolicy), ""]
    return ["## What all steps have", "", *_table(StepBase), "", *retry]


def _steps() -> list[str]:
    known = {one.name for one in structs.fields(StepBase)}
    lines: list[str] = []
    for name, kind in STEP_TYPES.items():
        lines += [f"## {name}", "", _text(kind), ""]
        config = next((one.type for one in structs.fields(kind) if one.name == "config"), None)
        if config is not None and structs.fields(config):
            if doc := _own_text(config):
                lines += [doc, ""]
            lines += ["In `config`:", "", *_table(config), ""]
            lines += [line for inner in _inner(config) for line in [f"{_named(inner)}:", "", *_table(inner), ""]]
        own = [one for one in structs.fields(kind) if one.name not in known and one.name != "config"]
        if own:
            names = ", ".join(f"`{one.encode_name}`" for one in own)
            lines += [f"Beside `config` it may have {names}:", "", *_rows(own), ""]
    return lines


def _trigger() -> list[str]:
    lines = ["## trigger", "", f"{_text(Trigger)}", "", *_table(Trigger), ""]
    return lines + [line for inner in _inner(Trigger) for line in [f"{_named(inner)}:", "", *_table(inner), ""]]


def _conditions() -> list[str]:
    by_name: dict[str, list[str]] = {name: [] for name in OPERATORS}
    for alias, name in ALIASES.items():
        by_name[name].append(alias)
    rows = [f"| `{name}` | {', '.join(f'`{one}`' for one in aliases)} |" for name, aliases in by_name.items()]
    return [
        "## Conditions",
        "",
        '`{"field": "amount", "operator": "greater_than", "value": 100}`; `{"and": [...]}`, `{"or": [...]}` and',
        '`{"not": {...}}` to any depth. `field` is a path into the payload of the event, or begins with `event.`,',
        "`context.` or `steps.`. A missing field is empty, and fits operators that deny something; no others.",
        "",
        "| operator | also |",
        "|---|---|",
        *rows,
        "",
    ]


def _expressions() -> list[str]:
    rows = [f"| `{name}({_ARGUMENTS[name]})` |" for name in FUNCTIONS]
    return [
        "## Expressions",
        "",
        "A path (`event.payload.customer.name`, `context.total`, `steps.notify.output.status`), a literal (`12.5`,",
        '`"text"`, `true`, `null`) or a call of a function. There are no loops, no definitions and no way into Python.',
        "",
        *_rules(expressions.__doc__),
        "",
        "How values are compared:",
        "",
        *_rules(values.__doc__),
        "",
        "| function |",
        "|---|",
        "| `default(path, value)`: the value where the path leads nowhere, or to null |",
        *rows,
    ]


def _rules(doc: str | None) -> list[str]:
    rows = [line for line in (doc or "").splitlines() if line.startswith("|")]
    return ["| case | what happens |", *rows[1:]]


# -- tables of fields


def _table(kind: Any) -> list[str]:
    return _rows(structs.fields(kind))


def _rows(fields: Any) -> list[str]:
    rows = ["| field | default | |", "|---|---|---|"]
    for one in fields:
        default = "needed" if one.required else _default(one)
        rows.append(f"| `{one.encode_name}` | {default} | {_description(one.type)} |")
    return rows


def _default(one: structs.FieldInfo) -> str:
    value = one.default
    if value is msgspec.NODEFAULT:
        made = one.default_factory() if one.default_factory is not msgspec.NODEFAULT else None
        value = None if isinstance(made, Struct) else made
    return "" if value in (None, "", [], {}) or value is msgspec.UNSET else f"`{msgspec.json.encode(value).decode()}`"


def _description(kind: Any) -> str:
    metas = reversed(getattr(kind, "__metadata__", ()))
    found = next((str(meta.description) for meta in metas if meta.description), "")
    if not found:
        found = next((_text(one) for one in _structs(kind)), "")
    return found.replace("|", "\\|")


def _structs(kind: Any) -> Iterator[type[Struct]]:
    if isinstance(kind, type) and issubclass(kind, Struct):
        yield kind
    for one in getattr(kind, "__args__", ()):
        yield from _structs(one)
    if (origin := getattr(kind, "__origin__", None)) is not None and not isinstance(origin, type):
        yield from _structs(origin)


def _inner(kind: Any) -> list[type[Struct]]:
    """Structs in the fields of a struct, but for steps."""
    found = (inner for one in structs.fields(kind) for inner in _structs(one.type))
    return [one for one in dict.fromkeys(found) if not issubclass(one, StepBase)]


def _named(kind: type[Struct]) -> str:
    return f"Each {kind.__name__.lower()}" if kind.__name__ == "Case" else kind.__name__


def _text(kind: type) -> str:
    return " ".join((kind.__doc__ or "").split())


def _own_text(kind: type) -> str:
    inherited = any(base.__doc__ == kind.__doc__ for base in kind.__mro__[1:])
    return "" if inherited else _text(kind)
