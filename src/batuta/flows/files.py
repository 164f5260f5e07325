"""Flows in files, and their tests: what an event does to a flow, step by step, with doubles for the outside world.

A flow is a file such as `reminder.json`. Its tests are beside it, in `reminder.test.json`:

    {"flow": "reminder.json", "tests": [{
        "name": "a large invoice is reminded of",
        "payload": {"amount": 2500},
        "doubles": {"notify": {"output": {"status": 200}}},
        "expect": {"path": ["large", "notify", "done"], "status": "COMPLETED", "outputs": {"notify": {"status": 200}}}
    }]}
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from batuta.errors import InvalidInput
from batuta.flows.document import FlowDocument
from batuta.flows.faults import Fault
from batuta.flows.models import RunStatus
from batuta.flows.rehearsal import Double, Rehearsal, rehearse
from batuta.flows.validation import check_document

TESTS: Final = ".test.json"


class Expected(Struct, kw_only=True, forbid_unknown_fields=True):
    """The expected outcome. Fields that are not given are not compared."""

    path: list[str] | UnsetType = UNSET
    """The keys of the steps that were done, in order."""
    status: RunStatus = RunStatus.COMPLETED
    error: str = ""
    """A part of the error."""
    outputs: dict[str, Any] = {}
    """By keys of steps."""
    context: dict[str, Any] = {}
    """Values of the context, by name."""


class FlowTest(Struct, kw_only=True, forbid_unknown_fields=True):
    """One test of a flow."""

    name: str
    payload: dict[str, Any] = {}
    doubles: dict[str, Double] = {}
    expect: Expected


class TestFile(Struct, kw_only=True, forbid_unknown_fields=True):
    """The tests of one flow."""

    __test__ = False

    flow: str
    """The file of the flow, beside this one."""
    tests: list[FlowTest]


class FlowCase(Struct):
    """A test, and where it stands."""

    file: Path
    flow: Path
    test: FlowTest

    def __str__(self) -> str:
        return f"{self.file.name}: {self.test.name}"

    async def problems(self) -> list[str]:
        """Differences between the outcome and the expected one; empty: none."""
        document, faults = read_flow(self.flow)
        if document is None:
            return [f"{self.flow}: {fault}" for fault in faults]
        try:
            found = await rehearse(document.steps, self.test.payload, self.test.doubles)
        except InvalidInput as error:  # of its doubles
            return [str(error)]
        return compared(self.test.expect, found)

    async def check(self) -> None:
        """Raises AssertionError with all differences: for pytest."""
        found = await self.problems()
        if found:
            raise AssertionError("\n".join(found))


def read_flow(file: Path) -> tuple[FlowDocument | None, list[Fault]]:
    """The flow of a file, or everything that is wrong with it."""
    try:
        return check_document(_read(file))
    except InvalidInput as error:
        return None, [Fault("", str(error))]


def read_document(file: Path) -> dict[str, Any]:
    """The flow of a file as it is written there, which is sound. Raises InvalidInput: it cannot be read."""
    found: dict[str, Any] = msgspec.json.decode(_read(file))
    return found


def flow_files(places: Iterable[str | Path]) -> list[Path]:
    """Files of flows: those named, and all `*.json` in folders, but for tests. Raises InvalidInput: there are none."""
    found = [file for file in _files(places) if not file.name.endswith(TESTS)]
    if not found:
        raise InvalidInput("there is no file of a flow (*.json) in the given places")
    return found


def flow_cases(places: Iterable[str | Path] | str | Path) -> list[FlowCase]:
    """All tests in `*.test.json` of these files and folders, for `pytest.mark.parametrize`. Raises InvalidInput."""
    given = [places] if isinstance(places, str | Path) else places
    return [case for file in _files(given) if file.name.endswith(TESTS) for case in _cases(file)]


def _cases(file: Path) -> list[FlowCase]:
    try:
        found = msgspec.json.decode(_read(file), type=TestFile)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise InvalidInput(f"{file} is no file of flow tests: {error}") from None
    return [FlowCase(file, file.parent / found.flow, test) for test in found.tests]


def _files(places: Iterable[str | Path]) -> list[Path]:
    found: list[Path] = []
    for place in map(Path, places):
        if place.is_dir():
            found += sorted(file for file in place.rglob("*.json") if not file.is_dir())
        elif place.exists():
            found.append(place)
        else:
            raise InvalidInput(f"there is no file or folder {str(place)!r}")
    return found


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes().removeprefix(BOM_UTF8)
    except OSError as error:
        raise InvalidInput(f"{str(file)!r} cannot be read: {error.strerror}") from None


def compared(wanted: Expected, found: Rehearsal) -> list[str]:
    """The differences, in words."""
    told: list[str] = []
    if found.status is not wanted.status:
        told.append(f"status is {found.status}, not {wanted.status}" + (f": {found.error}" if found.error else ""))
    if not isinstance(wanted.path, UnsetType) and found.path != wanted.path:
        told.append(f"path is {' > '.join(found.path)}, not {' > '.join(wanted.path)}")
    if wanted.error and wanted.error not in (found.error or ""):
        told.append(f"error is {found.error!r}, without {wanted.error!r}")
    outputs = {step.key: step.output for step in found.steps}
    for key, output in wanted.outputs.items():
        if key not in outputs:
            told.append(f"step {key} was not reached")
        elif outputs[key] != output:
            told.append(f"output of {key} is {_text(outputs[key])}, not {_text(output)}")
    for name, value in wanted.context.items():
        if found.context.get(name, UNSET) != value:
            told.append(f"context.{name} is {_text(found.context.get(name))}, not {_text(value)}")
    return told


def _text(value: Any) -> str:
    return msgspec.json.encode(value).decode()
