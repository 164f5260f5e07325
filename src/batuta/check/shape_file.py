"""The file of shapes: what workflows looked like when somebody last said that it was right."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from batuta.authoring.definitions import code_of
from batuta.check.checker import Check, Workflow, finding_at
from batuta.check.findings import Finding
from batuta.check.name_resolution import Names, text_of
from batuta.check.shape_diff import difference, is_gated, patches
from batuta.check.shapes import Shape, digest, shape_of
from batuta.errors import InvalidInput


class Locked(Struct, frozen=True):
    """One workflow in the file. The digest is for the eye: one short word that changes with the shape."""

    digest: str
    shape: Shape


class _File(Struct):
    workflows: dict[str, Locked]
    batuta: int = 1


class Shaped:
    """A workflow with its shape of today."""

    def __init__(self, workflow: Workflow, shape: Shape) -> None:
        self.workflow, self.shape = workflow, shape
        made = workflow.definition
        self.name = made.known_as()
        self.code = code_of(self.name, text_of(made.option("version"), made.module) or "")


def shapes_of(check: Check) -> dict[str, Shaped]:
    """By name and version. Namesakes are told apart by their module and function."""
    found = [Shaped(workflow, _shape_of(workflow, check.names)) for workflow in check.workflows]
    often = Counter(shaped.code for shaped in found)
    kept: dict[str, Shaped] = {}
    for shaped in found:
        if often[shaped.code] > 1:
            shaped.code += f" ({shaped.workflow.module.name}.{shaped.workflow.function.name})"
        code, number = shaped.code, 1
        while shaped.code in kept:
            number += 1
            shaped.code = f"{code} {number}"
        kept[shaped.code] = shaped
    return kept


def _shape_of(workflow: Workflow, names: Names) -> Shape:
    try:
        return shape_of(workflow, names)
    except RecursionError:
        raise InvalidInput(f"workflow {workflow.definition.name!r} is nested too deeply to have a shape") from None


def read_shapes(file: Path) -> dict[str, Locked]:
    """Raises InvalidInput."""
    try:
        read = msgspec.json.decode(file.read_bytes(), type=_File)
        for locked in read.workflows.values():
            patches(locked.shape)
    except FileNotFoundError:
        raise InvalidInput(f"there is no {file}: --update writes it") from None
    except (OSError, msgspec.DecodeError, SyntaxError, AttributeError, TypeError) as error:
        raise InvalidInput(f"{file} is not a file of shapes: {error}") from error
    if read.batuta != 1:
        raise InvalidInput(f"{file} was written by another version of Batuta ({read.batuta})")
    return read.workflows


def write_shapes(file: Path, shapes: Mapping[str, Shaped]) -> None:
    """Write the file again. Raises InvalidInput when it cannot be written."""
    locked = {code: Locked(digest(shapes[code].shape), shapes[code].shape) for code in sorted(shapes)}
    text = json.dumps({"batuta": 1, "workflows": msgspec.to_builtins(locked)}, indent=1, ensure_ascii=False)
    try:
        file.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"{file} cannot be written: {error}") from error


def compare(file: Path, locked: Mapping[str, Locked], shapes: Mapping[str, Shaped]) -> list[Finding]:
    """Differences between the file and the code."""
    return sorted([*_changed(locked, shapes), *_gone(file, locked, shapes)])


def _changed(locked: Mapping[str, Locked], shapes: Mapping[str, Shaped]) -> Iterator[Finding]:
    for code, shaped in shapes.items():
        before = locked.get(code)
        if before is None:
            yield _finding(shaped, "W603", f"workflow {code} is new", ())
        elif before.shape != shaped.shape:
            details = difference(before.shape, shaped.shape)
            if is_gated(before.shape, shaped.shape):
                yield _finding(shaped, "W603", f"workflow {code} has a change that is gated", details)
            else:
                yield _finding(shaped, "W601", f"workflow {code}", details)


def _gone(file: Path, locked: Mapping[str, Locked], shapes: Mapping[str, Shaped]) -> Iterator[Finding]:
    """Another version is a gate: runs of the old one wait for a worker that has it."""
    names = {shaped.name for shaped in shapes.values()}
    for code in locked:
        if code not in shapes:
            rule = "W603" if code.partition("@")[0] in names else "W602"
            what = f"workflow {code}" if rule == "W602" else f"workflow {code} has another version now"
            yield Finding(file=str(file), line=1, column=1, code=rule, what=what, where="")


def _finding(shaped: Shaped, rule: str, what: str, details: Sequence[str]) -> Finding:
    return finding_at(shaped.workflow.function, shaped.workflow.module, rule, what, details=details)
