"""Checks modules: finds the workflows, and follows their calls."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from batuta.check.activity_rules import check_activity
from batuta.check.code import Code
from batuta.check.findings import Finding
from batuta.check.name_resolution import STEPS, Definition, Kind, Names, Scope
from batuta.check.sources import Function, Library, Module, Unreadable, functions_in
from batuta.check.workflow_rules import WorkflowRules


class Workflow:
    """A workflow that was found: its definition, its function, and the functions around that."""

    def __init__(self, definition: Definition, function: Function, scopes: Sequence[Scope]) -> None:
        self.definition, self.function, self.scopes = definition, function, tuple(scopes)

    @property
    def module(self) -> Module:
        return self.definition.module


class Check:
    """Modules, their workflows, and the findings about them."""

    def __init__(self, targets: Sequence[str], paths: Sequence[str] | None = None) -> None:
        """`targets` are modules, packages, files or folders. Raises InvalidInput when one of them is not there."""
        self._library = Library([os.getcwd(), *(sys.path if paths is None else paths)])
        self.names = Names(self._library)
        self._found: dict[tuple[str, int, int, str], Finding] = {}
        self._seen: set[int] = set()
        self.workflows: list[Workflow] = []
        self.files = 0
        self.steps = 0
        """Activities and jobs."""
        for target in targets:
            for name, path, root in self._library.files(target):
                self._read(name, path, root)

    def _read(self, name: str, path: Path, root: Path) -> None:
        self.files += 1
        try:
            module = self._library.read(name, path, root)
            for workflow in self._workflows_of(module):
                if id(workflow.function) not in self._seen:
                    self._seen.add(id(workflow.function))
                    self.workflows.append(workflow)
        except Unreadable as error:
            self._add(Finding(file=shown_path(path), line=error.line, column=1, code="W001", what=error.what, where=""))
        except RecursionError:
            self._add(Finding(file=shown_path(path), line=1, column=1, code="W001", what="nested too deeply", where=""))

    def findings(self) -> list[Finding]:
        """The findings, in order of file and line."""
        for workflow in self.workflows:
            self._check(workflow.function, workflow.module, workflow.scopes, f"workflow {workflow.definition.name}")
        return sorted(self._found.values())

    # -- finding workflows

    def _workflows_of(self, module: Module) -> Iterator[Workflow]:
        """The workflows that it defines, at its top level or inside functions, and those that it imports from beside
        it."""
        yield from self._defined_in(module, module.tree, ())
        for name in (*module.assigned, *module.imports):
            yield from self._as_workflow(self.names.resolve(ast.Name(name, ast.Load()), module))
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in module.imports:
                yield from self._as_workflow(self.names.resolve(node, module))

    def _defined_in(self, module: Module, node: ast.AST, scopes: tuple[Scope, ...]) -> Iterator[Workflow]:
        for child in functions_in(node):
            definition = self.names.defined(child, module, scopes)
            if definition.kind is Kind.WORKFLOW:
                yield Workflow(definition, child, scopes)
            elif definition.kind in STEPS:
                self._check_activity(definition, scopes)
            elif any(functions_in(child)):
                yield from self._defined_in(module, child, (*scopes, Scope(module, child)))

    def _as_workflow(self, found: object) -> Iterator[Workflow]:
        if not isinstance(found, Definition) or found.kind is not Kind.WORKFLOW:
            return
        node: object = found.node
        if isinstance(node, ast.Call) and node.args:  # order = workflow(function)
            inner = self.names.resolve(node.args[0], found.module)
            node = inner.node if isinstance(inner, Definition) else None
        if isinstance(node, Function):
            yield Workflow(found, node, ())

    # -- rules

    def _check(self, function: Function, module: Module, scopes: Sequence[Scope], where: str) -> None:
        code = Code(self.names, module, scopes)

        def report(node: ast.AST, rule: str, what: str) -> None:
            self._report(module, node, rule, what, where)

        def follow(found: Definition) -> None:
            self._follow(found, code.scopes, where)

        try:
            WorkflowRules(code, report, follow).check(function)
        except RecursionError:
            report(function, "W001", "nested too deeply")

    def _follow(self, found: Definition, scopes: Sequence[Scope], where: str) -> None:
        node = found.node
        nested = any(node in scope.functions.values() for scope in scopes)
        if not isinstance(node, Function) or nested or id(node) in self._seen:
            return
        self._seen.add(id(node))
        if found.kind is Kind.WORKFLOW:
            where = f"workflow {found.name}"
        else:
            where = f"{found.name}, called by {where.rpartition('called by ')[2]}"
        self._check(node, found.module, (), where)

    def _check_activity(self, found: Definition, scopes: Sequence[Scope]) -> None:
        self.steps += 1
        if not isinstance(found.node, Function):
            return
        code = Code(self.names, found.module, scopes)
        where = f"{found.kind} {found.name}"
        check_activity(code, found.node, lambda node, rule, what: self._report(found.module, node, rule, what, where))

    def _report(self, module: Module, node: ast.AST, rule: str, what: str, where: str) -> None:
        if module.ignores(node, rule):
            return
        self._add(finding_at(node, module, rule, what, where))

    def _add(self, finding: Finding) -> None:
        self._found.setdefault((finding.file, finding.line, finding.column, finding.code), finding)


def finding_at(
    node: ast.AST, module: Module, rule: str, what: str, where: str = "", details: Sequence[str] = ()
) -> Finding:
    """A finding about a piece of a module's code."""
    return Finding(
        file=shown_path(module.path),
        line=getattr(node, "lineno", 1),
        column=getattr(node, "col_offset", 0) + 1,
        code=rule,
        what=what,
        where=where,
        details=tuple(details),
    )


def shown_path(path: Path) -> str:
    """From the current directory, as it would be typed."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except ValueError:
        return str(path)
