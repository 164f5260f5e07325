"""The rules for activities and jobs: they may do anything, but an async one must not block."""

from __future__ import annotations

import ast

from batuta.check.code import Code
from batuta.check.forbidden import blocks
from batuta.check.names import Scope, own_nodes, shown
from batuta.check.workflows import Report


def check_activity(code: Code, function: ast.AsyncFunctionDef, report: Report) -> None:
    """What blocks the loop that all async activities and all runs of the worker share."""
    code.scopes.append(Scope(code.module, function))
    for node in own_nodes(function):
        if isinstance(node, ast.Call) and blocks(code.outside(node.func)):
            report(node, "W501", shown(node))
    code.scopes.pop()
