"""The rules for activities and jobs: they may do anything, but an async one must not block, and a transactional one
should do no more than its transaction holds."""

from __future__ import annotations

import ast
import re

from batuta.check.code import Code
from batuta.check.forbidden import blocks, rule_for
from batuta.check.names import Scope, own_nodes, shown
from batuta.check.sources import Function
from batuta.check.workflows import Report

_WORLD = frozenset({"W201", "W202", "W302"})
"""Rules about what happens whether or not a transaction commits."""
_ENDS = re.compile(r"\s*(BEGIN|COMMIT|END|ROLLBACK(?!(\s+TRANSACTION)?\s+TO\b))\b", re.IGNORECASE)


def check_activity(code: Code, function: Function, report: Report) -> None:
    """What blocks the loop that all async activities and all runs of the worker share; and what a transactional one
    cannot take back, or must not do."""
    code.scopes.append(Scope(code.module, function))
    calls = [node for node in own_nodes(function) if isinstance(node, ast.Call)]
    if isinstance(function, ast.AsyncFunctionDef):
        for node in calls:
            if blocks(code.outside(node.func)):
                report(node, "W501", shown(node))
    if any(_is_transactional(one) for one in function.decorator_list):
        _check_transactional(code, function, calls, report)
    code.scopes.pop()


def _is_transactional(decorator: ast.expr) -> bool:
    return isinstance(decorator, ast.Call) and any(
        one.arg == "transactional" and isinstance(one.value, ast.Constant) and one.value.value is True
        for one in decorator.keywords
    )


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
