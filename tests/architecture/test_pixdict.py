"""pixdict is an application: it uses what every user of batuta can use, and nothing of batuta knows it."""

import ast

from tests.architecture.source import Import, imports, parse, python_files

PUBLIC = frozenset(
    {
        "batuta",
        "batuta.asgi",
        "batuta.bus",
        "batuta.cache",
        "batuta.clock",
        "batuta.codecs",
        "batuta.errors",
        "batuta.flows",
        "batuta.ids",
        "batuta.metrics",
        "batuta.otel",
        "batuta.printable",
        "batuta.redaction",
        "batuta.resilience",
        "batuta.resilience.deadlines",
        "batuta.resilience.degradation",
        "batuta.resilience.idempotency",
        "batuta.resilience.idempotency_asgi",
        "batuta.server",
        "batuta.server.http.connections",
        "batuta.settings",
        "batuta.sync",
        "batuta.telemetry",
        "batuta.testing",
        "batuta.webhooks",
    }
)
"""Modules that the documentation tells users to import from."""


def refusals(source: ast.Module) -> list[str]:
    found = []
    for node in ast.walk(source):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "batuta":
            names = [alias.name for alias in node.names]
            if node.module not in PUBLIC or any(name.startswith("_") for name in names):
                found.append(f"line {node.lineno}: from {node.module} import {', '.join(names)}")
        elif isinstance(node, ast.Import):
            found += [
                f"line {node.lineno}: import {alias.name}"
                for alias in node.names
                if alias.name.split(".")[0] == "batuta" and alias.name not in PUBLIC
            ]
    return found


def test_pixdict_imports_public_names_of_batuta_only() -> None:
    wrong = [f"{path.name} {line}" for path in python_files("src/pixdict") for line in refusals(parse(path))]
    assert not wrong, "\n".join(wrong)


def test_nothing_of_batuta_imports_pixdict() -> None:
    wrong: list[Import] = [found for found in imports() if found.module.split(".")[0] == "pixdict"]
    assert not wrong


def test_the_rule_refuses_inner_modules_and_private_names() -> None:
    assert refusals(ast.parse("from batuta.engine.worker.worker import Worker"))
    assert refusals(ast.parse("import batuta.stores.sqlite"))
    assert refusals(ast.parse("from batuta.clock import _EPOCH"))
    assert not refusals(ast.parse("from batuta import workflow\nfrom batuta.clock import Clock"))
