"""Two shapes of one workflow: are they the same for the runs that are under way?"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator, Mapping
from typing import Any

from batuta.check.shapes import JUMPS, Shape, without_last_return


def is_gated(before: Shape, after: Shape) -> bool:
    """Whether runs that began with `before` take the same path in `after`: new code is behind `patched`.

    Patches that only `after` has are taken as not passed. Where `after` has `deprecate_patch`, `before` is taken as if
    that patch had been passed; the line may be removed later, too.
    """
    new = patches(after) - patches(before)
    old = patches(before) & _deprecated(after)
    return settled(after, dict.fromkeys(new, False)) == settled(before, dict.fromkeys(old, True))


def patches(shape: Shape) -> set[str]:
    """The ids of the patches that are asked for."""
    found: set[str] = set()
    for part in _parts(shape):
        if "patch" in part:
            found.add(part["patch"])
        for test in (part.get("if"), part.get("while")):
            found |= {id for node in _nodes(test) if (id := _patch_id(node)) is not None}
    return found


def settled(shape: Shape, decided: Mapping[str, bool]) -> Shape:
    """The shape when these patches are decided, without lines that only tell that a patch is deprecated."""
    return without_last_return(_settled(shape, decided))


def lines(shape: Shape, indent: str = "") -> Iterator[str]:
    """A shape for people."""
    for part in shape:
        if isinstance(part, str):
            yield indent + part
            continue
        for key, value in part.items():
            if isinstance(value, list):
                if key not in ("then", "do"):
                    yield f"{indent}{key}".rstrip()
                yield from lines(value, indent + "  ")
            else:
                yield f"{indent}{key} {value}"


def difference(before: Shape, after: Shape) -> list[str]:
    """The lines that went (-) and came (+)."""
    compared = difflib.ndiff(list(lines(before)), list(lines(after)))
    return [line for line in compared if line.startswith(("+ ", "- "))]


def _settled(shape: Shape, decided: Mapping[str, bool]) -> Shape:
    found: Shape = []
    for part in shape:
        found += _settled_part(part, decided)
        if found and found[-1] in JUMPS:
            break
    return found


def _settled_part(part: Any, decided: Mapping[str, bool]) -> Shape:
    if isinstance(part, str):
        return [part]
    if "deprecated" in part:
        return []
    if "patch" in part:
        return [] if part["patch"] in decided else [part]
    if "if" in part:
        test = _folded(part["if"], decided)
        if isinstance(test, bool):
            return _settled(part.get("then" if test else "else", []), decided)
        part = part | {"if": test}
    if "while" in part:
        test = _folded(part["while"], decided)
        if test is False:
            return []
        part = part | {"while": str(test)}
    block = {key: _settled(value, decided) if isinstance(value, list) else value for key, value in part.items()}
    inner = [value for value in block.values() if isinstance(value, list)]
    if "call" in block:
        called = without_last_return(block["call"])
        return [{"call": called}] if any(part == "return" for part in _deep(called)) else called
    if "if" in block and not block.get("else"):
        block.pop("else", None)
    return [block] if any(inner) or "on" in block else []


def _folded(test: str, decided: Mapping[str, bool]) -> bool | str:
    node = _fold(ast.parse(test, mode="eval").body, decided)
    return node if isinstance(node, bool) else ast.unparse(node)


def _fold(node: ast.expr, decided: Mapping[str, bool]) -> bool | ast.expr:
    match node:
        case ast.Call() if (id := _patch_id(node)) in decided and id is not None:
            return decided[id]
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            inner = _fold(operand, decided)
            return (not inner) if isinstance(inner, bool) else ast.UnaryOp(ast.Not(), inner)
        case ast.BoolOp(op=op, values=values):
            ends = isinstance(op, ast.Or)  # the value that decides it alone
            folded = [_fold(value, decided) for value in values]
            if any(value is ends for value in folded):
                return ends
            left = [value for value in folded if not isinstance(value, bool)]
            if not left:
                return not ends
            return left[0] if len(left) == 1 else ast.BoolOp(op, left)
        case _:
            return node


def _patch_id(node: ast.AST) -> str | None:
    match node:
        case ast.Call(func=ast.Name(id="patched"), args=[ast.Constant(value=str(id))]):
            return id
        case _:
            return None


def _nodes(test: object) -> Iterator[ast.AST]:
    if isinstance(test, str):
        yield from ast.walk(ast.parse(test, mode="eval"))


def _deprecated(shape: Shape) -> set[str]:
    return {part["deprecated"] for part in _parts(shape) if "deprecated" in part}


def _parts(shape: Shape) -> Iterator[dict[str, Any]]:
    return (part for part in _deep(shape) if isinstance(part, dict))


def _deep(shape: Shape) -> Iterator[Any]:
    for part in shape:
        yield part
        if isinstance(part, dict):
            for inner in part.values():
                if isinstance(inner, list):
                    yield from _deep(inner)
