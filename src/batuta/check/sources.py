"""The checked modules, and those beside them. They are read and parsed, never imported."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path

from batuta.errors import InvalidInput

_IGNORE = re.compile(r"#\s*batuta:\s*ignore\[([^\]]*)\]")
_INSTALLED = ("site-packages", "dist-packages")

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Unreadable(Exception):
    """A file that is not valid Python: the line, and the problem."""

    def __init__(self, line: int, what: str) -> None:
        super().__init__(what)
        self.line, self.what = line, what


class Module:
    """One parsed file: its imports, definitions and assignments at the top level."""

    def __init__(self, name: str, path: Path, root: Path) -> None:
        self.name, self.path, self.root = name, path, root
        text = _text(path)
        self.tree = _parsed(text, path)
        self._ignored = _ignores(text)
        self.imports: dict[str, str] = {}
        self.stars: list[str] = []
        self.defined: dict[str, Function | ast.ClassDef] = {}
        self.assigned: dict[str, ast.expr | None] = {}
        for statement in _top(self.tree.body):
            self._note(statement)

    def _note(self, statement: ast.stmt) -> None:
        match statement:
            case ast.Import() | ast.ImportFrom():
                self.imports.update(self.imported(statement))
                if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*":
                    self.stars.append(self._from(statement))
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self.defined[statement.name] = statement
            case ast.ClassDef():
                self.defined[statement.name] = statement
                for inner in _top(statement.body):
                    if isinstance(inner, Function):
                        self.defined[f"{statement.name}.{inner.name}"] = inner
            case ast.Assign():
                for target in statement.targets:
                    for name in names_in(target):
                        self.assigned[name] = statement.value if isinstance(target, ast.Name) else None
            case ast.AnnAssign(target=ast.Name(id=name)):
                self.assigned[name] = statement.value
            case _:
                pass

    def imported(self, statement: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
        """The names that an import binds, with their dotted names."""
        for alias in statement.names:
            if isinstance(statement, ast.ImportFrom):
                if alias.name != "*":
                    yield alias.asname or alias.name, f"{self._from(statement)}.{alias.name}"
            elif alias.asname:
                yield alias.asname, alias.name
            else:
                first = alias.name.partition(".")[0]
                yield first, first

    def _from(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        package = self.name.split(".") if self.path.name == "__init__.py" else self.name.split(".")[:-1]
        base = package[: len(package) - statement.level + 1]
        return ".".join([*base, *([statement.module] if statement.module else [])])

    def ignores(self, node: ast.AST, code: str) -> bool:
        """Whether its first or last line has `# batuta: ignore[CODE]`."""
        first = getattr(node, "lineno", 0)
        last = getattr(node, "end_lineno", None) or first
        return any(code in self._ignored.get(line, ()) for line in (first, last))


def names_in(target: ast.expr) -> Iterator[str]:
    """The names that an assignment to this binds."""
    for node in ast.walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id


def functions_in(node: ast.AST) -> Iterator[Function]:
    """The functions that are defined in a statement, also in classes and blocks, but not those inside of them."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            yield child
        elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
            yield from functions_in(child)


def _top(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported, those in `if` and `try`, too."""
    for statement in body:
        yield statement
        if isinstance(statement, ast.If | ast.Try | ast.With):
            parts = [statement.body, getattr(statement, "orelse", []), getattr(statement, "finalbody", [])]
            parts += [handler.body for handler in getattr(statement, "handlers", [])]
            for part in parts:
                yield from _top(part)


def _text(path: Path) -> str:
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (OSError, SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise Unreadable(1, str(error)) from error


def _parsed(text: str, path: Path) -> ast.Module:
    try:
        return ast.parse(text, filename=str(path))
    except SyntaxError as error:
        raise Unreadable(error.lineno or 1, error.msg) from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise Unreadable(1, str(error) or type(error).__name__) from error


def _ignores(text: str) -> dict[int, set[str]]:
    if "batuta:" not in text:
        return {}
    found: dict[int, set[str]] = {}
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.COMMENT and (match := _IGNORE.search(token.string)):
                found[token.start[0]] = {code.strip() for code in match[1].split(",")}
    except (tokenize.TokenError, SyntaxError):
        return found  # as far as it went: the parser was content
    return found


class Library:
    """Modules by name or file, each read once."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = [Path(path) for path in dict.fromkeys(paths)]
        self._known: dict[Path, Module | Unreadable] = {}
        self._beside: dict[tuple[Path, str, str], Module | None] = {}

    def files(self, target: str) -> list[tuple[str, Path, Path]]:
        """(module name, file, root) for a target: a file, a folder, a module or a package, with everything below.

        Raises InvalidInput.
        """
        path = Path(target)
        if path.is_file() or (path.is_dir() and ("/" in target or not (path / "__init__.py").is_file())):
            return [_named(file) for file in _python_files(path)]
        name = target.partition(":")[0]
        if not all(part.isidentifier() for part in name.split(".")):
            raise InvalidInput(f"{target!r} is neither a module nor a file: write package.module, or a path")
        for root in self._paths:
            if (place := _located(root, name)) is not None:
                return [(_dotted(file.relative_to(root)), file, root) for file in _python_files(place)]
        raise InvalidInput(f"no module {name!r}: run this where it can be found, set PYTHONPATH, or give its path")

    def read(self, name: str, path: Path, root: Path) -> Module:
        """Raises Unreadable."""
        path = path.resolve()
        if path not in self._known:
            try:
                self._known[path] = Module(name, path, root)
            except Unreadable as error:
                self._known[path] = error
        found = self._known[path]
        if isinstance(found, Unreadable):
            raise found
        return found

    def beside(self, module: Module, name: str) -> Module | None:
        """A module of that name under the same root; of an installed package, its own alone."""
        key = (module.root, module.name.rpartition(".")[0], name)
        if key not in self._beside:
            self._beside[key] = self._find_beside(module, name)
        return self._beside[key]

    def _find_beside(self, module: Module, name: str) -> Module | None:
        first, folder = name.partition(".")[0], name.rpartition(".")[0]
        if first == "batuta" and folder != module.name.rpartition(".")[0]:
            return None
        if module.root.name in _INSTALLED and first != module.name.partition(".")[0]:
            return None
        for root in (module.root, Path.cwd()):
            place = _located(root, name) if module.path.is_relative_to(root) else None
            if place is not None:
                try:
                    return self.read(name, place / "__init__.py" if place.is_dir() else place, root)
                except Unreadable:
                    return None
        return None


def _located(root: Path, name: str) -> Path | None:
    """The package's folder or the module's file, as an import would look for it, without running anything."""
    place = root.joinpath(*name.split("."))
    if (place / "__init__.py").is_file():
        return place
    if place.with_suffix(".py").is_file():
        return place.with_suffix(".py")
    return place if place.is_dir() and any(place.glob("*.py")) else None


def _python_files(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    hidden = ("__pycache__", "node_modules", *_INSTALLED)
    return sorted(
        file
        for file in path.rglob("*.py")
        if not any(part in hidden or part.startswith(".") for part in file.relative_to(path).parts)
    )


def _named(file: Path) -> tuple[str, Path, Path]:
    """A file, with its module name, which the packages above it determine."""
    root = file.resolve().parent
    while (root / "__init__.py").is_file() and root.name.isidentifier():
        root = root.parent
    return _dotted(file.resolve().relative_to(root)), file, root


def _dotted(file: Path) -> str:
    parts = file.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
