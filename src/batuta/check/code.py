"""Questions about a piece of workflow code, answered in its context."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterable, Iterator

from batuta.check.forbidden_names import rule_for
from batuta.check.name_resolution import STEPS, Definition, Found, Kind, Names, Outside, Scope, is_task, ours, own_nodes
from batuta.check.sources import Function, Module, functions_in, names_in

_AWAITED = frozenset(
    "run_child start_child send call side_effect handlers_done wait_for_timer wait_until safe_point".split()
)  # of batuta
_AWAITED_OF_ASYNCIO = frozenset(["asyncio.sleep", "asyncio.wait", "asyncio.wait_for"])

_SET_TYPES = frozenset(
    "set frozenset typing.Set typing.AbstractSet typing.FrozenSet typing.MutableSet collections.abc.Set "
    "collections.abc.MutableSet".split()
)
_SET_METHODS = frozenset("union intersection difference symmetric_difference copy".split())

MUTATORS = frozenset(
    "append appendleft extend insert remove pop popleft popitem clear add discard update setdefault sort reverse put "
    "put_nowait increment".split()
)
"""Methods that change their object."""


class Code:
    """A module, and the functions around the place that is looked at, the innermost last."""

    def __init__(self, names: Names, module: Module, scopes: Iterable[Scope] = ()) -> None:
        self.names, self.module = names, module
        self.scopes = list(scopes)

    def resolve(self, node: ast.AST) -> Found:
        return self.names.resolve(node, self.module, self.scopes)

    def definition(self, node: ast.AST, *kinds: Kind) -> Definition | None:
        """What a name stands for, if that is of the user's and of one of these kinds."""
        found = self.resolve(node)
        return found if isinstance(found, Definition) and found.kind in kinds else None

    def outside(self, node: ast.AST) -> str:
        """The full name of something outside, or ""."""
        found = self.resolve(node)
        return found.name if isinstance(found, Outside) else ""

    def of_batuta(self, node: ast.AST) -> str:
        """`now` for `batuta.now`, or ""."""
        return ours(self.outside(node)) or ""

    def shared(self, node: ast.AST) -> Definition | None:
        """The value or class at the top of a module that an expression is, or is inside of."""
        while isinstance(node, ast.Attribute | ast.Subscript):
            found = self.resolve(node)
            if isinstance(found, Definition):
                break
            node = node.value
        return self.definition(node, Kind.VALUE, Kind.CLASS)

    def makes_awaitable(self, call: ast.Call) -> bool:
        """Whether it is a call that does nothing unless it is awaited."""
        match self.resolve(call.func):
            case Outside(name=name):
                return (ours(name) or "") in _AWAITED or name in _AWAITED_OF_ASYNCIO
            case Definition(kind=kind, node=node):
                if kind in (*STEPS, Kind.WORKFLOW):
                    return True
                return isinstance(node, ast.AsyncFunctionDef) and not node.decorator_list and not _yields(node)
        if isinstance(call.func, ast.Attribute) and call.func.attr == "wait":
            return self.definition(call.func.value, Kind.SIGNAL) is not None
        return False

    def is_step(self, call: ast.Call) -> bool:
        return self.definition(call.func, *STEPS, Kind.WORKFLOW) is not None

    # -- the origin of a value

    def maker(self, node: ast.AST, left: int = 8) -> str:
        """The full name of what made a value (`requests.Session`, `pathlib.Path`), or ""."""
        if not left:
            return ""
        match node:
            case ast.Call(func=func):
                return self.outside(func)
            case ast.BinOp(left=value, op=ast.Div()):
                return self.maker(value, left - 1)
            case ast.Name(id=name):
                return self._maker_of_name(name, left - 1)
            case ast.Attribute():
                return self._maker_of_global(node)
            case _:
                return ""

    def _maker_of_name(self, name: str, left: int) -> str:
        scope = self._scope_of(name)
        if scope is None:
            return self._maker_of_global(ast.Name(id=name, ctx=ast.Load()))
        if name in scope.annotations:
            return self.outside(scope.annotations[name])
        return next((made for value in scope.values.get(name, ()) if (made := self.maker(value, left))), "")

    def _maker_of_global(self, node: ast.AST) -> str:
        found = self.definition(node, Kind.VALUE)
        if found is not None and isinstance(found.node, ast.Call):
            return Code(self.names, found.module).outside(found.node.func)
        return ""

    def _scope_of(self, name: str) -> Scope | None:
        """The innermost function around that has a variable of this name."""
        for scope in reversed(self.scopes):
            if name in scope.local or name in scope.values or name in scope.annotations:
                return scope
        return None

    def of_the_machine(self, node: ast.AST) -> ast.AST | None:
        """The part of an expression that asks the clock, chance or the environment, outside of lambdas."""
        for part in _eager(node):
            call = part if isinstance(part, ast.Call) else None
            name = self.outside(call.func if call else part) if isinstance(part, ast.Call | ast.Attribute) else ""
            if name and (rule_for(name, call) or "") in ("W101", "W102", "W103", "W104"):
                return part
        return None

    # -- sets

    def is_set(self, node: ast.AST | None, assumed: frozenset[str] = frozenset()) -> bool:
        """Whether a value is a set with a random order. Sets of tasks have a fixed one: their hash is counted.

        `assumed`: variables that are being asked about already, and count as sets.
        """
        match node:
            case ast.Set(elts=elements):
                return not any(map(is_task, elements))
            case ast.SetComp(elt=element):
                return not is_task(element)
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in _SET_METHODS:
                return self.is_set(value, assumed)
            case ast.Call(func=func, args=args):
                return self.outside(func) in ("set", "frozenset") and not (args and _holds_task(args[0]))
            case ast.BinOp(left=one, right=other, op=ast.BitOr() | ast.BitAnd() | ast.Sub() | ast.BitXor()):
                return _is_keys(one) or _is_keys(other) or self.is_set(one, assumed) or self.is_set(other, assumed)
            case ast.IfExp(body=one, orelse=other):
                return self.is_set(one, assumed) or self.is_set(other, assumed)
            case ast.Name(id=name):
                return name in assumed or self._is_set_name(name, assumed | {name})
            case ast.Attribute():
                return self._is_set_value(node, assumed)
            case _:
                return False

    def _is_set_name(self, name: str, assumed: frozenset[str]) -> bool:
        scope = self._scope_of(name)
        if scope is None:
            return self._is_set_value(ast.Name(id=name, ctx=ast.Load()), assumed)
        if name in scope.annotations:
            return self.is_set_type(scope.annotations[name])
        values = scope.values.get(name, ())
        return name not in scope.of_tasks and bool(values) and all(self.is_set(value, assumed) for value in values)

    def _is_set_value(self, node: ast.AST, assumed: frozenset[str]) -> bool:
        found = self.definition(node, Kind.VALUE)
        if found is None or not isinstance(found.node, ast.expr):
            return False
        key = f"{found.module.name}:{found.name}"
        inner = frozenset(name for name in assumed if ":" in name) | {key}
        return key in assumed or Code(self.names, found.module).is_set(found.node, inner)

    def is_set_type(self, annotation: ast.expr) -> bool:
        match annotation:
            case ast.Subscript(value=value, slice=inside):
                return self.is_set_type(value) and not any(word in ast.unparse(inside) for word in ("Task", "Future"))
            case ast.BinOp(left=one, right=other, op=ast.BitOr()):
                return self.is_set_type(one) or self.is_set_type(other)
            case _:
                return self.outside(annotation) in _SET_TYPES


def _is_keys(node: ast.AST) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("keys", "items")


def _holds_task(node: ast.AST) -> bool:
    return any(is_task(part) for part in ast.walk(node))


def _eager(node: ast.AST) -> Iterator[ast.AST]:
    """The parts that are evaluated with it: not the bodies of lambdas."""
    if not isinstance(node, ast.Lambda):
        yield node
        for child in ast.iter_child_nodes(node):
            yield from _eager(child)


def _yields(function: Function) -> bool:
    return any(isinstance(node, ast.Yield | ast.YieldFrom) for node in ast.walk(function))


# -- variables at the top of modules, which runs of one process share


@functools.lru_cache(maxsize=256)
def changed_in(module: Module) -> frozenset[str]:
    """The module's variables that some function of it changes."""
    return frozenset(_changed(module, module.tree, ()))


def _changed(module: Module, node: ast.AST, hidden: tuple[str, ...]) -> Iterator[str]:
    for child in functions_in(node):
        scope = Scope(module, child)
        inside = (*hidden, *scope.local, *scope.functions, *scope.imports)
        for part in own_nodes(child):
            yield from (name for name in changes(part, scope) if name in module.assigned and name not in inside)
        yield from _changed(module, child, inside)


def changes(node: ast.AST, scope: Scope) -> Iterator[str]:
    """The names whose value, or contents, this node changes."""
    match node:
        case ast.Assign(targets=targets) | ast.Delete(targets=targets):
            for target in targets:
                yield from _stored(target, scope)
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            yield from _stored(target, scope)
        case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in MUTATORS:
            yield from _base(value)
        case _:
            pass


def _stored(target: ast.expr, scope: Scope) -> Iterator[str]:
    if isinstance(target, ast.Attribute | ast.Subscript):
        yield from _base(target)
    else:
        yield from (name for name in names_in(target) if name in scope.shared)


def _base(node: ast.expr) -> Iterator[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    if isinstance(node, ast.Name):
        yield node.id
