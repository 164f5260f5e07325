"""An object's fields are assigned by its own class: nothing else keeps its invariants."""

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tests.architecture.source import PACKAGE, imports, module_name, parse, python_files

RECORDS = frozenset({"Struct", "NamedTuple", "TypedDict", "Exception", "BaseException"})
Function = ast.FunctionDef | ast.AsyncFunctionDef

ALLOWED = {
    "batuta.engine.machine.machine:loop.in_turn": "twice in every turn: a call for each would cost every step",
    "batuta.engine.machine.core:loop.in_turn": "the same switch, put back as it was",
    "batuta.engine.run.owned_run:host.turn": "twice in every turn, for the watchdog: a call would cost every step",
    "batuta.client:batch.done": "filled in where the batch is made",
    "batuta.client:self._backend.home": "the loop of the client, which opens its backend",
    "batuta.cli.common.options:found.width": "a property of rich's console",
    "batuta.stores.sqlite.caller_transaction:cursor.row_factory": "a cursor of sqlite3",
    "batuta.stores.sqlite.store:self._readers.faults": "for tests: the store passes it on",
    "batuta.stores.sqlite.store:self._writer.faults": "the same",
    "batuta.stores.postgres.base:self._shift.micros": "for tests: the clock that all connections share",
}
"""Assignments to fields of others, and why."""


def sources() -> list[Path]:
    return [path for path in python_files("src/batuta") if "testing" not in path.relative_to(PACKAGE).parts]


def bases(node: ast.ClassDef) -> set[str]:
    return {ast.unparse(one).split("[")[0].split(".")[-1] for one in node.bases}


def is_record(node: ast.ClassDef) -> bool:
    """Whether its fields are data that others fill in, not a state that its methods keep."""
    decorators = {ast.unparse(one).split("(")[0] for one in node.decorator_list}
    return bool(bases(node) & records()) or "dataclass" in decorators


@cache
def records() -> frozenset[str]:
    """Names of bases that make a class a record, however deep."""
    classes = [node for path in sources() for node in ast.walk(parse(path)) if isinstance(node, ast.ClassDef)]
    found = set(RECORDS)
    while more := {node.name for node in classes if bases(node) & found} - found:
        found |= more
    return frozenset(found)


def fields(node: ast.ClassDef) -> set[str]:
    """Those that its class declares or assigns."""
    found = {one.target.id for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)}
    for inner in ast.walk(node):
        if isinstance(inner, ast.Attribute) and isinstance(inner.ctx, ast.Store) and is_self(inner.value):
            found.add(inner.attr)
    return found


def is_self(node: ast.expr) -> bool:
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


@cache
def classes() -> tuple[dict[str, set[str]], dict[str, set[str]], dict[str, set[str]]]:
    """Of classes that keep a state: their modules by name, and their modules by field. And those of records, by
    field."""
    by_name: dict[str, set[str]] = {}
    by_field: dict[str, set[str]] = {}
    of_records: dict[str, set[str]] = {}
    for path in sources():
        for node in ast.walk(parse(path)):
            if not isinstance(node, ast.ClassDef) or "Protocol" in bases(node):
                continue
            found = of_records if is_record(node) else by_field
            for name in fields(node):
                found.setdefault(name, set()).add(module_name(path))
            if found is by_field:
                by_name.setdefault(node.name, set()).add(module_name(path))
    return by_name, by_field, of_records


@cache
def imported_by(module: str) -> frozenset[str]:
    return frozenset({one.module for one in imports() if one.importer == module} | {module})


def known_types(function: Function) -> dict[str, str]:
    """The classes of a function's variables, as far as it names them."""
    arguments = function.args
    found = {
        one.arg: ast.unparse(one.annotation).strip('"').removesuffix(" | None").split("[")[0]
        for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        if one.annotation is not None
    }
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call) and isinstance(node.value.func, ast.Name):
            found |= {one.id: node.value.func.id for one in node.targets if isinstance(one, ast.Name)}
    return found


def foreign(path: Path) -> Iterator[str]:
    by_name, by_field, of_records = classes()
    module = module_name(path)
    for function in ast.walk(parse(path)):
        if not isinstance(function, Function):
            continue
        types = known_types(function)
        for node in ast.walk(function):
            if not isinstance(node, ast.Attribute) or not isinstance(node.ctx, ast.Store) or is_self(node.value):
                continue
            kind = types.get(node.value.id, "") if isinstance(node.value, ast.Name) else ""
            if kind in by_name:
                owners = by_name[kind]
            elif kind or of_records.get(node.attr, set()) & imported_by(module):
                continue  # a record, or perhaps
            else:
                owners = by_field.get(node.attr, set())
            if owners and module not in owners:
                yield f"{module}:{ast.unparse(node)}"


def test_fields_are_assigned_by_their_own_class() -> None:
    found = {one for path in sources() for one in foreign(path)}
    assert sorted(found - ALLOWED.keys()) == []


def test_every_exception_is_still_needed() -> None:
    found = {one for path in sources() for one in foreign(path)}
    assert sorted(ALLOWED.keys() - found) == []
