"""The shape of a workflow: everything that decides which commands it issues, in which order.

A shape is a list. A text is a command (`activity charge`, `timer`) or a jump; a mapping is a block with lists inside:
`if`, `for`, `while`, `try`, `match`, a handler. Calls of helpers are replaced by their contents. Comments, docstrings,
formatting, logging, arguments and results are not part of it.
"""

from __future__ import annotations

import ast
import copy
import hashlib
import json
from collections.abc import Iterable
from typing import Any

from batuta.check.checker import Workflow
from batuta.check.code import Code
from batuta.check.name_resolution import STEPS, Definition, Kind, Names, Outside, Scope, ours, text_of
from batuta.check.sources import Function, Module

Shape = list[Any]

_WORDS = {
    "side_effect": "side effect",
    "continue_as_new": "continue as new",
    "safe_point": "safe point",
    "handlers_done": "handlers done",
    "wait_until": "wait until",
    "cancel_timer": "cancel timer",
    "as_completed": "as completed",
}
_NAMED = {
    "call": "activity",
    "wait_for_timer": "timer",
    "publish": "publish",
    "run_child": "child",
    "start_child": "start child",
}
_ASYNCIO = dict.fromkeys(("sleep", "timeout", "timeout_at"), "timer") | {
    name: name.replace("_", " ") for name in "wait_for gather wait create_task ensure_future shield".split()
}
_METHODS = ("create_task", "cancel")
_LONGEST = 500
"""Parts of a helper that stand where it is called; of a longer one only its digest does."""
JUMPS = ("return", "raise", "break", "continue")


def shape_of(workflow: Workflow, names: Names) -> Shape:
    """The shape of a workflow with all its helpers."""
    code = Code(names, workflow.module, workflow.scopes)
    return without_last_return(_Reader(code, (), {}).function(workflow.function))


def without_last_return(shape: Shape) -> Shape:
    return shape[:-1] if shape and shape[-1] == "return" else shape


class _Reader:
    """Reads functions of one module. `stack`: the functions that are being read, to detect recursion."""

    def __init__(self, code: Code, stack: tuple[Function, ...], known: dict[Function, Shape]) -> None:
        self._code, self._stack, self._known = code, stack, known

    def function(self, node: Function) -> Shape:
        self._stack = (*self._stack, node)
        self._code.scopes.append(Scope(self._code.module, node))
        found = self._block(node.body)
        self._code.scopes.pop()
        self._stack = self._stack[:-1]
        return found

    def _inlined(self, found: Definition) -> Shape:
        node = found.node
        if not isinstance(node, Function):
            return []
        if node in self._stack:
            return [f"again {node.name}"]
        shape = self._known.get(node)
        if shape is None:
            shape = without_last_return(self._reader_for(found.module, node).function(node))
            if _size(shape) > _LONGEST:
                shape = [f"helper {node.name} {digest(shape)}"]
            self._known[node] = shape
        return [{"call": shape}] if _returns(shape) else shape

    def _reader_for(self, module: Module, node: Function) -> _Reader:
        """A function defined in the same scope: inside another one, or at the top of a module."""
        around: list[Scope] = []
        for depth, scope in enumerate(self._code.scopes):
            if node in scope.functions.values():
                around += self._code.scopes[: depth + 1]
        return _Reader(Code(self._code.names, module, around), self._stack, self._known)

    # -- statements

    def _block(self, body: Iterable[ast.stmt]) -> Shape:
        found: Shape = []
        for statement in body:
            found += self._statement(statement)
            if found and found[-1] in JUMPS:
                break
        return found

    def _statement(self, node: ast.stmt) -> Shape:
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                return [part for decorator in node.decorator_list for part in self._handler(decorator, node)]
            case ast.ClassDef() | ast.Import() | ast.ImportFrom():
                return []
            case ast.If(test=test, body=body, orelse=orelse):
                return self._if(test, self._block(body), self._block(orelse))
            case ast.For() | ast.AsyncFor():
                return self._for(node)
            case ast.While(test=test):
                return _kept(
                    {"while": self._text(test), "do": [*self._expression(test), *self._block(node.body)]}, "do"
                )
            case ast.Try() | ast.TryStar():
                return self._try(node)
            case ast.With() | ast.AsyncWith():
                items = [part for item in node.items for part in self._expression(item.context_expr)]
                return [*items, *self._block(node.body)]
            case ast.Match():
                cases = {f"case {_case(one)}": self._block(one.body) for one in node.cases}
                subject = self._expression(node.subject)
                return [*subject, *_kept({"match": self._text(node.subject)} | cases, *cases)]
            case ast.Return() | ast.Raise() | ast.Break() | ast.Continue():
                return [*self._children(node), type(node).__name__.lower()]
            case _:
                return self._children(node)

    def _if(self, test: ast.expr, then: Shape, orelse: Shape) -> Shape:
        asked = [part for part in self._expression(test) if not (isinstance(part, dict) and "patch" in part)]
        block = {"if": self._text(test), "then": then} | ({"else": orelse} if orelse else {})
        return [*asked, *_kept(block, "then", "else")]

    def _for(self, node: ast.For | ast.AsyncFor) -> Shape:
        over = self._code.definition(node.iter, Kind.SIGNAL)
        each = [] if over is None else [f"signal {over.known_as()}"]
        do = [*each, *self._block(node.body)]
        return [*self._expression(node.iter), *_kept({"for": self._text(node.iter), "do": do}, "do")]

    def _try(self, node: ast.Try | ast.TryStar) -> Shape:
        body = [*self._block(node.body), *self._block(node.orelse)]
        handlers = {
            f"except {ast.unparse(one.type) if one.type else ''}": self._block(one.body) for one in node.handlers
        }
        finals = self._block(node.finalbody)
        if not body and not any(handlers.values()):
            return finals
        return [{"try": body} | handlers | ({"finally": finals} if finals else {})]

    def _handler(self, decorator: ast.expr, function: Function) -> Shape:
        """`@approve.handle` on a function inside of the workflow."""
        asked = decorator.func if isinstance(decorator, ast.Call) else decorator
        return self._handled(asked, self._code.names.defined(function, self._code.module, self._code.scopes))

    def _handled(self, asked: ast.expr, by: object) -> Shape:
        if not isinstance(asked, ast.Attribute) or asked.attr != "handle":
            return []
        message = self._code.definition(asked.value, Kind.SIGNAL, Kind.UPDATE)
        if message is None:
            return []
        do = self._inlined(by) if isinstance(by, Definition) else []
        return [{"on": f"{message.kind.lower()} {message.known_as()}", "do": do}]

    # -- expressions

    def _children(self, node: ast.AST) -> Shape:
        return [part for child in ast.iter_child_nodes(node) for part in self._expression(child)]

    def _expression(self, node: ast.AST) -> Shape:
        match node:
            case ast.Await(value=ast.Call() as call):
                return self._call(call, awaited=True)
            case ast.Await(value=value):
                return [*self._expression(value), "await"]
            case ast.Call():
                return self._call(node, awaited=False)
            case ast.Name() | ast.Attribute():
                found = self._code.definition(node, Kind.FUNCTION)
                return self._children(node) if found is None else self._inlined(found)
            case ast.IfExp(test=test, body=one, orelse=other):
                return self._if(test, self._expression(one), self._expression(other))
            case ast.BoolOp(op=op, values=[first, *others]):
                then = [part for other in others for part in self._expression(other)]
                test = first if isinstance(op, ast.And) else ast.UnaryOp(ast.Not(), first)
                return self._if(test, then, [])
            case ast.ListComp(elt=made) | ast.SetComp(elt=made) | ast.GeneratorExp(elt=made):
                return self._comprehension(node.generators, self._expression(made))
            case ast.DictComp(key=key, value=value):
                return self._comprehension(node.generators, [*self._expression(key), *self._expression(value)])
            case _:
                return self._children(node)

    def _comprehension(self, generators: list[ast.comprehension], do: Shape) -> Shape:
        for one in reversed(generators):
            for test in reversed(one.ifs):
                do = self._if(test, do, [])
            do = [*self._expression(one.iter), *_kept({"for": self._text(one.iter), "do": do}, "do")]
        return do

    def _call(self, node: ast.Call, *, awaited: bool) -> Shape:
        found = self._code.resolve(node.func)
        name = ours(found.name) if isinstance(found, Outside) else None
        given = [*node.args, *(word.value for word in node.keywords)]
        if name == "side_effect":  # its argument is called once, live
            given = given[1:]
        handled = self._handled(node.func, self._code.resolve(node.args[0]) if node.args else None)
        if handled:
            return handled
        inside = [part for one in given for part in self._expression(one)]
        if isinstance(node.func, ast.Attribute) and not isinstance(found, Definition):
            inside = [*self._expression(node.func.value), *inside]
        return [*inside, *self._command(node, found, awaited=awaited)]

    def _command(self, node: ast.Call, found: object, *, awaited: bool) -> Shape:
        if isinstance(found, Outside):
            return self._outside(node, found.name, awaited=awaited)
        if isinstance(found, Definition):
            if found.kind in STEPS:
                return [f"activity {found.known_as()}" + ("" if awaited else ", awaited later")]
            return self._inlined(found) if found.kind in (Kind.FUNCTION, Kind.WORKFLOW) else []
        if isinstance(node.func, ast.Attribute):
            signal = self._code.definition(node.func.value, Kind.SIGNAL)
            if signal is not None and node.func.attr == "wait":
                return [f"signal {signal.known_as()}"]
            if node.func.attr in _METHODS and not awaited:
                return [node.func.attr.replace("_", " ")]
            return [f"await .{node.func.attr}()"] if awaited else []
        return ["await"] if awaited else []

    def _outside(self, node: ast.Call, name: str, *, awaited: bool) -> Shape:
        match ours(name):
            case None:
                known = _ASYNCIO.get(name.removeprefix("asyncio.")) if name.startswith("asyncio.") else None
                return [known] if known else [f"await {name}"] if awaited else []
            case "patched":
                return [{"patch": self._argument(node)}]
            case "deprecate_patch":
                return [{"deprecated": self._argument(node)}]
            case "send":
                return [f"send {self._argument(node, 1)}"]
            case own if own in _NAMED:
                return [f"{_NAMED[own]} {self._argument(node)}"]
            case own:
                return [_WORDS[own]] if own in _WORDS else []

    def _argument(self, node: ast.Call, place: int = 0) -> str:
        """The name that an argument gives: a text, or a definition's."""
        if place >= len(node.args):
            return "?"
        given = node.args[place]
        found = self._code.resolve(given)
        if isinstance(found, Definition) and found.kind is not Kind.VALUE:
            return found.known_as()
        return text_of(given, self._code.module) or "?"

    def _text(self, node: ast.expr) -> str:
        """A condition as one text: calls of `patched` in one form, commands without their arguments."""
        return ast.unparse(ast.fix_missing_locations(_Conditions(self._code).visit(copy.deepcopy(node))))


class _Conditions(ast.NodeTransformer):
    def __init__(self, code: Code) -> None:
        self._code = code

    def visit_Await(self, node: ast.Await) -> ast.AST:
        if isinstance(node.value, ast.Call):
            return ast.Call(node.value.func, [], [])
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._code.of_batuta(node.func) == "patched" and node.args:
            id = text_of(node.args[0], self._code.module)
            return ast.Call(ast.Name("patched", ast.Load()), [ast.Constant(id or "?")], [])
        self.generic_visit(node)
        return node

    def visit_Name(self, node: ast.Name) -> ast.AST:
        """`new_way = patched("x")` and then `if new_way`."""
        for scope in reversed(self._code.scopes):
            value = scope.aliases.get(node.id)
            if isinstance(value, ast.Call) and self._code.of_batuta(value.func) == "patched":
                return self.visit_Call(copy.deepcopy(value))
        return node


def _kept(block: dict[str, Any], *parts: str) -> Shape:
    """A block, if there is something in it."""
    return [block] if any(block.get(part) for part in parts) else []


def _case(node: ast.match_case) -> str:
    return ast.unparse(node.pattern) + (f" if {ast.unparse(node.guard)}" if node.guard else "")


def _returns(shape: Shape) -> bool:
    """Whether a jump out of the function is in it."""
    for part in shape:
        if part == "return":
            return True
        if isinstance(part, dict) and not ("call" in part or "on" in part) and any(map(_returns, _lists(part))):
            return True
    return False


def _lists(block: dict[str, Any]) -> list[Shape]:
    return [inner for inner in block.values() if isinstance(inner, list)]


def _size(shape: Shape) -> int:
    return sum(1 + sum(map(_size, _lists(part))) if isinstance(part, dict) else 1 for part in shape)


def digest(shape: Shape) -> str:
    """One short word that changes with the shape."""
    return hashlib.blake2b(json.dumps(shape, ensure_ascii=False).encode(), digest_size=8).hexdigest()
