"""State that runs of one process share: the variables at the top of modules."""

from __future__ import annotations

import ast
import functools
from collections.abc import Iterator

from batuta.check.code import MUTATORS
from batuta.check.name_resolution import Scope, own_nodes
from batuta.check.sources import Module, functions_in, names_in


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
