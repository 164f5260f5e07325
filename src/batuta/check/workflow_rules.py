"""The rules for workflow code: one visit of a workflow, or of a helper that it calls."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence

from batuta.check.code import MUTATORS, Code, changed_in
from batuta.check.forbidden_names import PATH_METHODS, method_rule, rule_for
from batuta.check.name_resolution import STEPS, Definition, Kind, Outside, Scope, own_nodes, shown
from batuta.check.sources import Function

_EFFECTS = frozenset("W107 W201 W202 W203 W204 W301 W302 W405".split())
"""Rules that become W401 in code that also runs when the run leaves memory."""

_IN_ORDER = frozenset("list tuple iter enumerate map filter zip dict.fromkeys collections.deque reversed next".split())
_METHODS_IN_ORDER = frozenset("join extend choice sample".split())
_ORDER_DOES_NOT_MATTER = frozenset("sorted set frozenset sum min max any all len collections.Counter math.fsum".split())
_DROPPED = ("BaseException", "GeneratorExit")

Report = Callable[[ast.AST, str, str], None]
Follow = Callable[[Definition], None]


class WorkflowRules(ast.NodeVisitor):
    """Visits one function and those inside it. `report` gets the findings, `follow` the calls."""

    def __init__(self, code: Code, report: Report, follow: Follow) -> None:
        self._code, self._report, self._follow = code, report, follow
        self._dropped = 0
        self._async: list[bool] = []
        self._live_only: set[str] = set()
        self._any_order: set[ast.AST] = set()

    # -- functions

    def check(self, function: Function) -> None:
        """Visit a function at the top of its module."""
        for default in _defaults(function):
            if part := self._code.of_the_machine(default):
                self._report(part, "W106", f"{shown(part)} as a default")
        self._body(function)

    def _nested(self, node: Function) -> None:
        for part in (*node.decorator_list, *_defaults(node)):
            self.visit(part)
        if node.name not in self._live_only:
            dropped, self._dropped = self._dropped, 0
            self._body(node)
            self._dropped = dropped

    visit_FunctionDef = visit_AsyncFunctionDef = _nested

    def _body(self, function: Function) -> None:
        self._code.scopes.append(Scope(self._code.module, function))
        self._async.append(isinstance(function, ast.AsyncFunctionDef))
        before, self._live_only = self._live_only, self._live_only | set(self._given_to_side_effect(function))
        self._check_kept(function)
        for statement in function.body:
            self.visit(statement)
        self._live_only = before
        self._async.pop()
        self._code.scopes.pop()

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._code.scopes.append(Scope(self._code.module, node))
        self.visit(node.body)
        self._code.scopes.pop()

    def _given_to_side_effect(self, function: Function) -> Iterator[str]:
        """Functions that are called once, live: they may do anything."""
        for node in own_nodes(function):
            if isinstance(node, ast.Call) and self._code.of_batuta(node.func) == "side_effect":
                yield from (argument.id for argument in node.args[:1] if isinstance(argument, ast.Name))

    # -- names and calls

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._used(node)
        elif any(node.id in scope.shared for scope in self._code.scopes[-1:]):
            self._tell(node, "W405", node.id)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if self._used(node) if isinstance(node.ctx, ast.Load) else self._stored_in(node):
            return
        self.generic_visit(node)

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.ctx, ast.Load) or not self._stored_in(node):
            self.generic_visit(node)

    def _stored_in(self, node: ast.Attribute | ast.Subscript) -> bool:
        if self._code.shared(node.value) is None:
            return False
        self._tell(node, "W405", shown(node))
        return True

    def _used(self, node: ast.Name | ast.Attribute) -> bool:
        """A name is read. True when it is resolved, and its parts need no further look."""
        found = self._code.resolve(node)
        if isinstance(found, Outside):
            if code := rule_for(found.name, None):
                self._tell(node, code, shown(node))
            return code is not None or isinstance(node, ast.Name)
        if isinstance(found, Definition):
            if found.kind in (Kind.FUNCTION, Kind.WORKFLOW):
                self._follow(found)
            elif found.kind is Kind.VALUE:
                self._read_shared(node, found)
            return bool(found.name)
        return False

    def _read_shared(self, node: ast.expr, found: Definition) -> None:
        elsewhere = Code(self._code.names, found.module)
        if found.name in changed_in(found.module) and not self._is_context_variable(node):
            self._tell(node, "W406", shown(node))
        elif isinstance(found.node, ast.expr) and elsewhere.of_the_machine(found.node):
            self._tell(node, "W106", f"{shown(node)} = {shown(found.node)}")

    def _is_context_variable(self, node: ast.expr) -> bool:
        return self._code.maker(node) == "contextvars.ContextVar"

    def visit_Call(self, node: ast.Call) -> None:
        name = self._code.outside(node.func)
        if self._code.of_batuta(node.func) == "side_effect":
            for part in (*node.args[1:], *(word.value for word in node.keywords)):
                self.visit(part)
            return
        self._check_order(node, name)
        code = rule_for(name, node) if name else self._method(node)
        if code:
            self._tell(node, code, shown(node))
        else:
            if name == "contextlib.suppress" and any(map(self._is_dropping, node.args)):
                self._report(node, "W402", shown(node))
            self._constructed(node)
            self.visit(node.func)
        for part in (*node.args, *(word.value for word in node.keywords)):
            if isinstance(part, ast.ListComp | ast.GeneratorExp) and self._is_harmless(part, name):
                self._any_order.add(part)
            self.visit(part)

    def _constructed(self, node: ast.Call) -> None:
        found = self._code.definition(node.func, Kind.CLASS)
        if found is not None and isinstance(found.node, ast.ClassDef):
            for inner in found.node.body:
                if isinstance(inner, Function):
                    method = self._code.names.defined(inner, found.module)
                    if method.kind not in STEPS:
                        self._follow(method)

    def _method(self, node: ast.Call) -> str | None:
        """A method of something that is known by what made it, or by the method's name."""
        if not isinstance(node.func, ast.Attribute) or self._code.is_step(node):
            return None
        base, method = node.func.value, node.func.attr
        maker = self._code.maker(base)
        if maker.startswith("pathlib."):
            return "W201" if method in PATH_METHODS else None
        if maker == "random.Random":
            return "W102" if self._code.shared(base) else None
        if maker and (code := rule_for(f"{maker}.{method}", node)):
            return code
        if method in MUTATORS and maker != "contextvars.ContextVar" and self._code.shared(base):
            return None if isinstance(self._code.resolve(node.func), Definition) else "W405"
        return method_rule(node)

    def _tell(self, node: ast.AST, code: str, what: str) -> None:
        self._report(node, "W401" if self._dropped and code in _EFFECTS else code, what)

    # -- sets

    def _check_order(self, node: ast.Call, name: str) -> None:
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        in_order = name in _IN_ORDER or name.startswith("itertools.") or method in _METHODS_IN_ORDER
        for argument in node.args if in_order else ():
            self._check_set(argument)
        if method == "pop" and not node.args and isinstance(node.func, ast.Attribute):
            self._check_set(node.func.value)

    def _check_set(self, node: ast.expr) -> None:
        if self._code.is_set(node):
            self._report(node, "W404", shown(node))

    def _is_harmless(self, node: ast.ListComp | ast.GeneratorExp, consumer: str) -> bool:
        """A comprehension whose order is lost at once, and that issues no command."""
        if consumer not in _ORDER_DOES_NOT_MATTER:
            return False
        parts = list(ast.walk(node.elt))
        acts = any(isinstance(part, ast.Call) and self._code.makes_awaitable(part) for part in parts)
        return not acts and not any(isinstance(part, ast.Await) for part in parts)

    def visit_For(self, node: ast.For) -> None:
        acts = (ast.Call, ast.Await, ast.Yield, ast.Return, ast.Break)
        if any(isinstance(part, acts) for statement in node.body for part in ast.walk(statement)):
            self._check_set(node.iter)
        self.generic_visit(node)

    def _comprehension(self, node: ast.ListComp | ast.GeneratorExp | ast.DictComp) -> None:
        for one in node.generators if node not in self._any_order else ():
            self._check_set(one.iter)
        self.generic_visit(node)

    visit_ListComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Assign(self, node: ast.Assign) -> None:
        """Unpacked into several names; a single element has no order."""
        if any(isinstance(target, ast.Tuple | ast.List) and len(target.elts) > 1 for target in node.targets):
            self._check_set(node.value)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        if isinstance(node.ctx, ast.Load):
            self._check_set(node.value)
        self.generic_visit(node)

    # -- awaiting

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self._must_be_awaited(node.value)
            if self._code.outside(node.value.func) in ("asyncio.create_task", "asyncio.ensure_future"):
                self._report(node, "W304", shown(node))
            self._effect_of_shared(node.value)
        self.generic_visit(node)

    def _effect_of_shared(self, call: ast.Call) -> None:
        """`metrics.count("x")` in a `finally`: its effect also happens when the run leaves memory."""
        if self._dropped and isinstance(call.func, ast.Attribute) and not self._code.is_step(call):
            found = self._code.shared(call.func.value)
            is_value = found is not None and found.kind is Kind.VALUE and found.name
            if is_value and not self._is_context_variable(call.func):
                self._report(call, "W401", shown(call))

    def visit_Return(self, node: ast.Return) -> None:
        if isinstance(node.value, ast.Call) and self._async[-1]:
            self._must_be_awaited(node.value)
        self.generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self._values(node, [node.left, node.right])

    def visit_Compare(self, node: ast.Compare) -> None:
        self._values(node, [node.left, *node.comparators])

    def _tested(self, node: ast.If | ast.While) -> None:
        self._values(node, [node.test])

    visit_If = visit_While = _tested

    def visit_FormattedValue(self, node: ast.FormattedValue) -> None:
        self._values(node, [node.value])

    def _values(self, node: ast.AST, values: Sequence[ast.expr]) -> None:
        for value in values:
            if isinstance(value, ast.Call):
                self._must_be_awaited(value)
        self.generic_visit(node)

    def _must_be_awaited(self, call: ast.Call) -> None:
        if self._code.makes_awaitable(call):
            self._report(call, "W403", shown(call))

    def _check_kept(self, function: Function) -> None:
        """`hold = reserve(...)`, and `hold` is never looked at again."""
        scope = self._code.scopes[-1]
        inside = [part for statement in function.body for part in ast.walk(statement)]
        read = {part.id for part in inside if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Load)}
        for name, values in scope.values.items():
            for value in values if name not in read else ():
                if isinstance(value, ast.Call):
                    self._must_be_awaited(value)

    # -- try

    def _try(self, node: ast.Try | ast.TryStar) -> None:
        for statement in (*node.body, *node.orelse):
            self.visit(statement)
        for handler in node.handlers:
            dropped = handler.type is None or self._is_dropping(handler.type)
            if dropped and not self._is_only_generator_exit(handler) and not _raises(handler.body):
                self._report(handler, "W402", f"except {shown(handler.type)}" if handler.type else "except:")
            self._where_dropped(handler.body, dropped)
        for statement in _leaves(node.finalbody):
            self._report(statement, "W402", f"{shown(statement)} in finally")
        self._where_dropped(node.finalbody, dropped=True)

    visit_Try = visit_TryStar = _try

    def _where_dropped(self, body: Sequence[ast.stmt], dropped: bool) -> None:
        self._dropped += dropped
        for statement in body:
            self.visit(statement)
        self._dropped -= dropped

    def _is_dropping(self, node: ast.expr) -> bool:
        kinds = node.elts if isinstance(node, ast.Tuple) else [node]
        return any(self._code.outside(kind) in _DROPPED for kind in kinds)

    def _is_only_generator_exit(self, handler: ast.ExceptHandler) -> bool:
        return handler.type is not None and self._code.outside(handler.type) == "GeneratorExit"


def _defaults(function: Function) -> list[ast.expr]:
    return [*function.args.defaults, *(value for value in function.args.kw_defaults if value is not None)]


def _raises(body: Sequence[ast.stmt]) -> bool:
    return any(isinstance(part, ast.Raise) for statement in body for part in ast.walk(statement))


def _leaves(body: Sequence[ast.stmt], in_loop: bool = False) -> Iterator[ast.stmt]:
    """What leaves a `finally` block and forgets the exception under way."""
    for statement in body:
        if isinstance(statement, ast.Return) or (isinstance(statement, ast.Break | ast.Continue) and not in_loop):
            yield statement
        if isinstance(statement, Function | ast.ClassDef):
            continue
        loop = in_loop or isinstance(statement, ast.For | ast.AsyncFor | ast.While)
        inner = [child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt)]
        yield from _leaves(inner, loop)
