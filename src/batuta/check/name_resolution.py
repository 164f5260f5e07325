"""Resolves a name in the code: something outside, or a definition here or in a module beside."""

from __future__ import annotations

import ast
import builtins
from collections.abc import Iterable, Iterator
from enum import StrEnum

from msgspec import Struct

from batuta.check.sources import Function, Library, Module

_BUILTINS = frozenset(dir(builtins))
_DEEPEST = 20
"""How many imports and aliases in a row are followed."""


class Kind(StrEnum):
    """The kind of a definition."""

    WORKFLOW = "workflow"
    ACTIVITY = "activity"
    JOB = "job"
    SIGNAL = "Signal"
    UPDATE = "Update"
    QUERY = "Query"
    FUNCTION = "function"
    CLASS = "class"
    VALUE = "value"


STEPS = (Kind.ACTIVITY, Kind.JOB)
_MADE = {str(kind): kind for kind in (Kind.WORKFLOW, *STEPS, Kind.SIGNAL, Kind.UPDATE, Kind.QUERY)}


class Outside(Struct, frozen=True):
    """Something that is not the user's: `time.time`, `batuta.now`, `open`."""

    name: str


class Definition(Struct, frozen=True, eq=False):
    """Something of the user's, in a module that was read."""

    module: Module
    name: str
    kind: Kind
    node: ast.AST
    made: ast.Call | None = None
    """The call that made it one, with its options."""

    def option(self, name: str) -> ast.expr | None:
        return next((word.value for word in self.made.keywords if word.arg == name), None) if self.made else None

    def known_as(self) -> str:
        """Its name in journals."""
        given = self.option("name")
        if given is None and self.kind in (Kind.SIGNAL, Kind.UPDATE, Kind.QUERY) and self.made and self.made.args:
            given = self.made.args[0]
        return text_of(given, self.module) or self.name.rpartition(".")[2]


Found = Outside | Definition | None


class Scope:
    """The names that one function binds, with the known facts about them."""

    def __init__(self, module: Module, function: Function | ast.Lambda) -> None:
        self.local: set[str] = {argument.arg for argument in arguments_of(function)}
        self.imports: dict[str, str] = {}
        self.functions: dict[str, Function] = {}
        self.aliases: dict[str, ast.expr] = {}
        self.values: dict[str, list[ast.expr]] = {}
        self.annotations = {one.arg: one.annotation for one in arguments_of(function) if one.annotation is not None}
        self.of_tasks: set[str] = set()
        """Names of sets that tasks are added to."""
        shared: set[str] = set()
        seen: dict[str, int] = {}
        for node in own_nodes(function):
            match node:
                case ast.Import() | ast.ImportFrom():
                    self.imports.update(module.imported(node))
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    self.functions[node.name] = node
                case ast.Global(names=names):
                    shared.update(names)
                case ast.Name(id=name, ctx=ast.Store()):
                    self.local.add(name)
                    seen[name] = seen.get(name, 0) + 1
                case ast.ExceptHandler(name=str(name)):
                    self.local.add(name)
                case _:
                    self._note_value(node)
        self.aliases = {name: values[0] for name, values in self.values.items() if seen.get(name) == 1}
        self.shared = shared
        self.local -= shared

    def _note_value(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.values.setdefault(name, []).append(value)
            case ast.AnnAssign(target=ast.Name(id=name), annotation=annotation, value=made):
                self.annotations[name] = annotation
                if made is not None:
                    self.values.setdefault(name, []).append(made)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self.values.setdefault(name, []).append(value)
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="add"), args=[added]):
                if is_task(added) or (isinstance(added, ast.Name) and any(map(is_task, self.values.get(added.id, ())))):
                    self.of_tasks.add(name)
            case _:
                pass


def is_task(node: ast.AST) -> bool:
    """Whether it is a call that makes a task, on any object."""
    name = getattr(node.func, "attr", getattr(node.func, "id", "")) if isinstance(node, ast.Call) else ""
    return name in ("create_task", "ensure_future")


def arguments_of(function: Function | ast.Lambda) -> Iterator[ast.arg]:
    given = function.args
    yield from (*given.posonlyargs, *given.args, *given.kwonlyargs)
    yield from (argument for argument in (given.vararg, given.kwarg) if argument is not None)


def own_nodes(function: Function | ast.Lambda) -> Iterator[ast.AST]:
    """The nodes of its body without those of functions and classes inside; lambdas and comprehensions count."""
    body = function.body if isinstance(function.body, list) else [function.body]
    waiting: list[ast.AST] = [*reversed(body)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Function | ast.ClassDef):
            waiting += reversed(list(ast.iter_child_nodes(node)))


class Names:
    """Resolves expressions. One for a whole check."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def resolve(self, node: ast.AST, module: Module, scopes: Iterable[Scope] = ()) -> Found:
        """The meaning of an expression, or None when it cannot be seen."""
        return self._resolve(node, module, tuple(scopes), _DEEPEST)

    def _resolve(self, node: ast.AST, module: Module, scopes: tuple[Scope, ...], left: int) -> Found:
        if not left:
            return None
        match node:
            case ast.Name(id=name):
                return self._name(name, module, scopes, left - 1)
            case ast.Attribute(value=value, attr=attribute):
                base = self._resolve(value, module, scopes, left - 1)
                return self._attribute(base, attribute, left - 1)
            case ast.Call(func=ast.Attribute(value=value, attr="with_options")):
                return self._resolve(value, module, scopes, left - 1)
            case _:
                return None

    def _name(self, name: str, module: Module, scopes: tuple[Scope, ...], left: int) -> Found:
        for depth, scope in enumerate(reversed(scopes)):
            outer = scopes[: len(scopes) - depth]
            if name in scope.imports:
                return self._dotted(scope.imports[name], module, left)
            if name in scope.functions:
                return self._function(scope.functions[name], name, module, outer)
            if name in scope.aliases:
                return self._resolve(scope.aliases[name], module, outer, left)
            if name in scope.local:
                return None
        return self._global(name, module, left)

    def _global(self, name: str, module: Module, left: int) -> Found:
        if name in module.imports:
            return self._dotted(module.imports[name], module, left)
        if name in module.defined:
            node = module.defined[name]
            if isinstance(node, ast.ClassDef):
                return Definition(module, name, Kind.CLASS, node)
            return self._function(node, name, module, ())
        if name in module.assigned:
            return self._assigned(name, module, left)
        if name in _BUILTINS:
            return Outside(name)
        for star in reversed(module.stars):
            if found := self._dotted(f"{star}.{name}", module, left):
                return found
        return None

    def _assigned(self, name: str, module: Module, left: int) -> Found:
        value = module.assigned[name]
        if value is None:
            return Definition(module, name, Kind.VALUE, module.tree)
        if isinstance(value, ast.Call) and left:
            maker = self._resolve(value.func, module, (), left - 1)
            if isinstance(maker, Outside) and (kind := _MADE.get(ours(maker.name) or "")):
                return Definition(module, name, kind, value, value)
        found = self._resolve(value, module, (), left)
        if isinstance(found, Definition | Outside) and not (isinstance(found, Outside) and "." not in found.name):
            return found
        return Definition(module, name, Kind.VALUE, value)

    def _function(self, node: Function, name: str, module: Module, scopes: tuple[Scope, ...]) -> Definition:
        for decorator in node.decorator_list:
            call = decorator if isinstance(decorator, ast.Call) else None
            made = self.resolve(call.func if call else decorator, module, scopes)
            if isinstance(made, Outside) and (kind := _MADE.get(ours(made.name) or "")):
                return Definition(module, name, kind, node, call)
        return Definition(module, name, Kind.FUNCTION, node)

    def defined(self, node: Function, module: Module, scopes: Iterable[Scope] = ()) -> Definition:
        """The kind of a function, by its decorators."""
        return self._function(node, node.name, module, tuple(scopes))

    def _dotted(self, dotted: str, module: Module, left: int) -> Found:
        """`package.module.name`: a module beside, or something outside."""
        if not left:
            return None
        parts = dotted.split(".")
        for cut in range(len(parts), 0, -1):
            beside = self._library.beside(module, ".".join(parts[:cut]))
            if beside is None:
                continue
            found: Found = _of_module(beside)
            for part in parts[cut:]:
                found = self._attribute(found, part, left - 1)
            return found
        return Outside(dotted)

    def _attribute(self, base: Found, name: str, left: int) -> Found:
        if isinstance(base, Outside):
            return Outside(f"{base.name}.{name}")
        if base is None or not left:
            return None
        if base.node is base.module.tree and not base.name:
            inner = self._library.beside(base.module, f"{base.module.name}.{name}")
            return self._global(name, base.module, left) or (_of_module(inner) if inner else None)
        if base.kind is Kind.CLASS:
            method = base.module.defined.get(f"{base.name}.{name}")
            if isinstance(method, Function):
                return self._function(method, f"{base.name}.{name}", base.module, ())
        return None


def _of_module(module: Module) -> Definition:
    return Definition(module, "", Kind.VALUE, module.tree)


def ours(name: str) -> str | None:
    """`now` for `batuta.now`, and for wherever else in Batuta it was imported from."""
    first, _, _ = name.partition(".")
    return name.rpartition(".")[2] if first == "batuta" else None


def text_of(node: ast.expr | None, module: Module) -> str | None:
    """A string, given as itself or as a constant of the module."""
    if isinstance(node, ast.Name):
        node = module.assigned.get(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    return None


def shown(node: ast.AST, longest: int = 60) -> str:
    """An expression as written in the code, on one line."""
    try:
        text = " ".join(ast.unparse(node).split())
    except (ValueError, RecursionError, AttributeError):
        return type(node).__name__
    return text if len(text) <= longest else text[: longest - 3] + "..."
