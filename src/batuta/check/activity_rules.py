"""The rules for activities and jobs: they may do anything, but an async one must not block, and a transactional one
should do no more than its transaction holds."""

from __future__ import annotations

import ast
import re

from batuta.check.code import Code
from batuta.check.forbidden_names import blocks, rule_for
from batuta.check.name_resolution import Scope, own_nodes, shown
from batuta.check.sources import Function
from batuta.check.workflow_rules import Report

_WORLD = frozenset({"W201", "W202", "W302"})
"""Rules about what happens whether or not a transaction commits."""
_ENDS = re.compile(r"\s*(BEGIN|COMMIT|END|ROLLBACK(?!(\s+TRANSACTION)?\s+TO\b))\b", re.IGNORECASE)


def check_activity(code: Code, function: Function, report: Report) -> None:
    """Calls that block the loop which all async activities and all runs of the worker share; and effects that a
    transactional activity cannot roll back, or must not have."""
    scope = Scope(code.module, function)
    code.scopes.append(scope)
    calls = [node for node in own_nodes(function) if isinstance(node, ast.Call)]
    if isinstance(function, ast.AsyncFunctionDef):
        for node in calls:
            if blocks(code.outside(node.func)):
                report(node, "W501", shown(node))
    if any(_is_transactional(one) for one in function.decorator_list):
        _check_transactional(code, function, calls, report)
    _check_errors(code, function, scope, report)
    code.scopes.pop()


def _check_errors(code: Code, function: Function, scope: Scope, report: Report) -> None:
    """Errors whose class a worker does not know when it opens. It knows those that the top of the module imports."""
    known = {dotted.partition(".")[0] for dotted in code.module.imports.values()}
    late = {name for name, dotted in scope.imports.items() if dotted.partition(".")[0] not in known}
    if not late or any(_option(one, "raises") is not None for one in function.decorator_list):
        return
    for node in own_nodes(function):
        if isinstance(node, ast.Raise) and node.exc is not None and _root(node.exc) in late:
            report(node, "W504", shown(node.exc))


def _root(node: ast.expr) -> str:
    """The name that an expression such as `stripe.CardError(...)` begins with."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _option(decorator: ast.expr, name: str) -> ast.expr | None:
    words = decorator.keywords if isinstance(decorator, ast.Call) else []
    return next((one.value for one in words if one.arg == name), None)


def _is_transactional(decorator: ast.expr) -> bool:
    given = _option(decorator, "transactional")
    return isinstance(given, ast.Constant) and given.value is True


def _check_transactional(code: Code, function: Function, calls: list[ast.Call], report: Report) -> None:
    lent = {
        target.id
        for node in own_nodes(function)
        if isinstance(node, ast.Assign) and _is_lent(code, node.value, set())
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in calls:
        if rule_for(code.outside(node.func), node) in _WORLD:
            report(node, "W502", shown(node))
        elif isinstance(node.func, ast.Attribute) and _is_lent(code, node.func.value, lent) and _ends(node):
            report(node, "W503", shown(node))


def _is_lent(code: Code, node: ast.expr, names: set[str]) -> bool:
    """Whether it is the connection of the transaction: `transaction().connection`, or a name for that."""
    if isinstance(node, ast.Name):
        return node.id in names
    return (
        isinstance(node, ast.Attribute)
        and node.attr == "connection"
        and isinstance(node.value, ast.Call)
        and code.of_batuta(node.value.func) == "transaction"
    )


def _ends(call: ast.Call) -> bool:
    """Whether a method of the connection ends its transaction."""
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    first = call.args[0] if call.args else None
    said = first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""
    return method in ("commit", "rollback", "close") or (method.startswith("execute") and bool(_ENDS.match(said)))
