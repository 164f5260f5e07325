"""The source tree as data, for the tests about its shape."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "batuta"


@dataclass(frozen=True)
class Import:
    """One import of one module. ``late`` means inside a function; ``typing`` only for the type checker."""

    importer: str
    module: str
    line: int
    late: bool
    typing: bool

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.module}"


@cache
def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), filename=str(path))


def python_files(*folders: str) -> list[Path]:
    """All but what `make proto` writes."""
    found = (path for folder in folders for path in (ROOT / folder).rglob("*.py"))
    return sorted(path for path in found if "_pb2" not in path.name)


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def modules() -> dict[str, Path]:
    return {module_name(path): path for path in PACKAGE.rglob("*.py")}


@cache
def imports() -> list[Import]:
    """Every import of every module of batuta; ``from package import module`` counts as that module."""
    known = modules()
    return [found for name, path in sorted(known.items()) for found in _imports_of(name, parse(path), known)]


def _imports_of(importer: str, tree: ast.Module, known: dict[str, Path]) -> Iterator[Import]:
    for node, late, typing in _walk(tree, late=False, typing=False):
        for module in _targets(node, known):
            yield Import(importer, module, getattr(node, "lineno", 0), late, typing)


def _walk(node: ast.AST, *, late: bool, typing: bool) -> Iterator[tuple[ast.AST, bool, bool]]:
    yield node, late, typing
    late = late or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    typing = typing or (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
    for child in ast.iter_child_nodes(node):
        if not isinstance(child, ast.expr):  # most of the tree, and no import is in one
            yield from _walk(child, late=late, typing=typing)


def _targets(node: ast.AST, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module:
        for alias in node.names:
            inner = f"{node.module}.{alias.name}"
            yield inner if inner in known else node.module


@cache
def functions(path: Path) -> tuple[tuple[str, int], ...]:
    """The name and length in lines of each function, nested ones too. Keeps no tree: a thousand of them are slow to
    collect garbage around."""
    nodes = ast.walk(ast.parse(path.read_text(), filename=str(path)))
    found = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return tuple((node.name, (node.end_lineno or node.lineno) - node.lineno + 1) for node in found)
