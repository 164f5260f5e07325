"""JSON schemas of what workflows and jobs take: workers publish them, and forms are made from them.

A workflow's signals, updates and queries are those that its code names, in helpers of its own package, too. Arguments
of updates and queries stand in the annotations of their handlers, which exist only while a run executes: they are read
from the source.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
import typing
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

import msgspec
from msgspec import Struct

from batuta.authoring.definitions import Activity, Workflow
from batuta.authoring.jobs import Job, job_code
from batuta.authoring.workflow.messages import Query, Request, Signal, Update

Schema = dict[str, Any]
"""A JSON schema by itself: its references are to its own `$defs`. An empty one fits anything."""

MOST_FUNCTIONS = 200
"""Functions that are looked through for one workflow."""
LARGEST = 64 * 1024
"""Bytes of one document. A larger one is published without its schemas."""


class Parameter(Struct, kw_only=True):
    """An argument, in order."""

    name: str
    schema: Schema
    required: bool
    default: Any = None
    """Of one that is not required, where it has a JSON form."""


class MessageSchema(Struct, kw_only=True):
    """A signal, an update or a query of a workflow."""

    name: str
    args: list[Parameter] | None = None
    """Null: they are not known. A signal has one, its value, or none."""
    answer: Schema | None = None
    """Of an update or a query; null: it answers nothing, or nothing is known."""


class CodeSchema(Struct, kw_only=True):
    """The input and output of a workflow or a job."""

    name: str
    kind: str
    """`workflow` or `job`."""
    version: str = ""
    about: str = ""
    """The first line of its docstring."""
    input: list[Parameter] | None = None
    """Null: it is not known, or too large to be published."""
    result: Schema | None = None
    signals: list[MessageSchema] = []
    updates: list[MessageSchema] = []
    queries: list[MessageSchema] = []


@lru_cache(maxsize=1_000)
def schema_of(code: Workflow[..., Any] | Job[..., Any]) -> str:
    """The document of a workflow or a job, as JSON of a limited size."""
    kind = "workflow" if isinstance(code, Workflow) else "job"
    version = code.version if isinstance(code, Workflow) else ""
    about = (inspect.getdoc(code.fn) or "").partition("\n")[0][:200]
    found = CodeSchema(name=code.name, kind=kind, version=version, about=about)
    bare = msgspec.json.encode(found).decode()
    hints = _hints(code.fn)
    found.input = _parameters(code.codec.signature, hints)
    found.result = _schema(hints.get("return", Any))
    if isinstance(code, Workflow):
        found.signals, found.updates, found.queries = _messages(code.fn)
    text = msgspec.json.encode(found).decode()
    return text if len(text) <= LARGEST else bare


def _hints(fn: object, names: dict[str, Any] | None = None) -> dict[str, Any]:
    try:
        hints = typing.get_type_hints(fn, names, include_extras=True)
    except Exception:  # noqa: BLE001 - names that are not there, or anything that annotations may do
        return {}
    return {name: type(None) if hint is None else hint for name, hint in hints.items()}


def _schema(annotation: Any) -> Schema:
    """An empty one where none can be made."""
    try:
        return msgspec.json.schema(annotation)
    except Exception:  # noqa: BLE001 - a type of others, such as a model of pydantic
        return _schema_of_model(annotation)


def _schema_of_model(annotation: Any) -> Schema:
    try:
        from pydantic import TypeAdapter

        found: Schema = TypeAdapter(annotation).json_schema()
    except Exception:  # noqa: BLE001 - pydantic is not there, or does not know it either
        return {}
    return found


_GIVEN = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)


def _parameters(signature: inspect.Signature, hints: dict[str, Any]) -> list[Parameter]:
    """Those that are given by position: others cannot be sent in a list."""
    return [
        Parameter(
            name=one.name,
            schema=_schema(hints.get(one.name, Any)),
            required=one.default is one.empty,
            default=_default(one.default),
        )
        for one in signature.parameters.values()
        if one.kind in _GIVEN
    ]


def _default(value: object) -> Any:
    if value is inspect.Parameter.empty:
        return None
    try:
        return msgspec.json.decode(msgspec.json.encode(value))
    except Exception:  # noqa: BLE001 - it has no JSON form
        return None


# -- messages of a workflow


def _messages(fn: Any) -> tuple[list[MessageSchema], list[MessageSchema], list[MessageSchema]]:
    """Signals, updates and queries, by name."""
    functions = _functions(fn)
    known: dict[tuple[type, str], Signal[Any] | Request] = {}
    for function in functions:
        for value in _named_in(function):
            if isinstance(value, Signal | Request):
                known.setdefault((type(value), value.name), value)
    handled = {place: args for function in functions for place, args in _handlers(function)}
    found: dict[type, list[MessageSchema]] = {Signal: [], Update: [], Query: []}
    for (kind, name), one in sorted(known.items(), key=lambda item: item[0][1]):
        schema = None if one.type is None else _schema(one.type)
        if kind is Signal:
            value = [] if schema is None else [Parameter(name="value", schema=schema, required=True)]
            found[kind].append(MessageSchema(name=name, args=value))
        else:
            fn = one.function if isinstance(one, Request) else None
            args = handled.get((kind, name)) if fn is None else _parameters(inspect.signature(fn), _hints(fn))
            found[kind].append(MessageSchema(name=name, args=args, answer=schema))
    return found[Signal], found[Update], found[Query]


def _functions(fn: FunctionType) -> list[FunctionType]:
    """The function, and those of the same package that it names, in the order in which they are found."""
    root = _package(fn)
    found = [fn]
    for one in found:
        for value in _named_in(one):
            inner = value if isinstance(value, FunctionType) else None
            if inner is not None and inner not in found and _package(inner) == root:
                found.append(inner)
        if len(found) > MOST_FUNCTIONS:
            break
    return found[:MOST_FUNCTIONS]


def _package(fn: FunctionType) -> str:
    return (fn.__module__ or "").partition(".")[0]


def _named_in(fn: FunctionType) -> Iterator[object]:
    """Values that the code names: globals, what modules among them have, and what it closes over."""
    names = set(_names(fn.__code__))
    for name in names & fn.__globals__.keys():
        value = fn.__globals__[name]
        yield value
        if isinstance(value, ModuleType):
            yield from (vars(value)[inner] for inner in names & vars(value).keys())
    for cell in fn.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not set yet
            continue


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _handlers(fn: FunctionType) -> Iterator[tuple[tuple[type, str], list[Parameter]]]:
    """Arguments of handlers that are defined in the function: `@update.handle`, or `update.handle(function)`."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(fn)))
    except (OSError, TypeError, SyntaxError):  # no source, or a part of a line
        return
    names = {**fn.__globals__, **inspect.getclosurevars(fn).nonlocals}
    defined = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    for node in defined.values():
        for decorator in node.decorator_list:
            if (handled := _handled(decorator, names)) is not None:
                yield handled, _parameters_of(node, names)
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and (handled := _handled(call, names)) is not None and call.args:
            given = call.args[0]
            if isinstance(given, ast.Name) and given.id in defined:
                yield handled, _parameters_of(defined[given.id], names)
            elif isinstance(given, ast.Name) and isinstance(value := names.get(given.id), FunctionType):
                yield handled, _parameters(inspect.signature(value), _hints(value))


def _handled(node: ast.AST, names: dict[str, Any]) -> tuple[type, str] | None:
    """The update or query of `one.handle`, also where that is called."""
    target = node.func if isinstance(node, ast.Call) else node
    if not isinstance(target, ast.Attribute) or target.attr != "handle":
        return None
    value = _value(target.value, names)
    return (type(value), value.name) if isinstance(value, Request) else None


def _value(node: ast.AST, names: dict[str, Any]) -> Any:
    if isinstance(node, ast.Name):
        return names.get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(module := _value(node.value, names), ModuleType):
        return vars(module).get(node.attr)
    return None


def _parameters_of(node: ast.FunctionDef | ast.AsyncFunctionDef, names: dict[str, Any]) -> list[Parameter]:
    arguments = [*node.args.posonlyargs, *node.args.args]
    written = {one.arg: ast.unparse(one.annotation) for one in arguments if one.annotation is not None}
    hints = _hints(SimpleNamespace(__annotations__=written), names)
    needed = len(arguments) - len(node.args.defaults)
    defaults = [None] * needed + [_literal(one) for one in node.args.defaults]
    return [
        Parameter(name=one.arg, schema=_schema(hints.get(one.arg, Any)), required=place < needed, default=default)
        for place, (one, default) in enumerate(zip(arguments, defaults, strict=True))
    ]


def _literal(node: ast.expr) -> Any:
    try:
        return _default(ast.literal_eval(node))
    except ValueError:
        return None


def schemas_of(code: dict[str, Workflow[..., Any]], activities: dict[str, Activity[..., Any]]) -> dict[str, str]:
    """The documents of these workflows, and of the jobs among these activities, by code name."""
    jobs = {job_code(name): one for name, one in activities.items() if isinstance(one, Job)}
    return {name: schema_of(one) for name, one in (*code.items(), *jobs.items())}
