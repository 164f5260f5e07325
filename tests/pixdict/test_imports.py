"""pixdict is an application of Batuta: it takes public names alone."""

import ast

from tests.architecture.source import ROOT, parse, python_files

INNER = ("authoring", "cli", "codecs", "engine", "flows", "journal", "stores", "testing")


def test_pixdict_imports_no_inner_part_of_batuta() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files("src/pixdict")
        for node in ast.walk(parse(path))
        for name in _modules(node)
        if name.startswith(tuple(f"batuta.{inner}" for inner in INNER))
    ]
    assert found == []


def _modules(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    return [node.module] if isinstance(node, ast.ImportFrom) and node.module else []
