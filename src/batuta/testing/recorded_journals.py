"""Recorded journals as tests: does today's code still replay them?"""

from __future__ import annotations

import asyncio
import glob
import os
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import msgspec

from batuta.app import App
from batuta.authoring.client.handle import Handle
from batuta.authoring.definitions import Workflow, by_code
from batuta.engine.backend.native import NativeBackend
from batuta.errors import InvalidInput
from batuta.journal.export import Exported, read_exported
from batuta.testing.crashes import apart
from batuta.verify.recorded_journals import Replayed, export_run, replay_exported

_SHOWN = 5


async def record(handle: Handle[Any], path: str | os.PathLike[str]) -> Path:
    """Write the current journal of a run to a file: for `assert_replays` and `batuta replay`.

    Of a chain, only this run's. Folders are created. The file contains the original values of the journal.
    """
    backend = handle._backend
    if not isinstance(backend, NativeBackend):
        raise InvalidInput(f"the journal of {handle!r} is not in a store of batuta")
    exported = await export_run(backend._store, handle.run_id)
    return _write(exported, Path(path))


def _write(exported: Exported, file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(msgspec.json.format(msgspec.json.encode(exported), indent=1) + b"\n")
    return file


def assert_replays(
    code: Workflow[..., Any] | App | ModuleType | Sequence[Workflow[..., Any]], *files: str | os.PathLike[str]
) -> int:
    """Replay each journal in these files with the code, step by step. Returns how many there are.

    `files` may hold wildcards: `assert_replays(order, "tests/journals/*.json")`. `code` is a workflow, several of them,
    an App or a module. Nothing is executed. The AssertionError shows where code and journal differ; a missing file is
    one, too.
    """
    workflows = by_code(_workflows(code))
    journals = [one for file in _found(files) for one in _read(file)]

    async def replay_all() -> list[Replayed]:
        return [await replay_exported(workflows, exported) for _, exported in journals]

    results = apart(lambda: asyncio.run(replay_all()))
    bad = [(file, one) for (file, _), one in zip(journals, results, strict=True) if one.verdict != "ok"]
    if bad:
        shown = "".join(f"\n  {file}: {_what(one)}" for file, one in bad[:_SHOWN])
        more = f"\n  and {len(bad) - _SHOWN} more" if len(bad) > _SHOWN else ""
        raise AssertionError(f"{len(bad)} of {len(results)} journals are not replayed by this code:{shown}{more}")
    return len(results)


def _workflows(code: object) -> Sequence[Workflow[..., Any]]:
    match code:
        case Workflow():
            return [code]
        case App():
            return code.workflows
        case ModuleType():
            return App.of_module(code).workflows
        case _:
            return list(cast("Sequence[Workflow[..., Any]]", code))


def _found(files: Sequence[str | os.PathLike[str]]) -> list[str]:
    found: list[str] = []
    for pattern in files:
        matching = sorted(glob.glob(os.fspath(pattern), recursive=True))
        if not matching:
            raise AssertionError(f"there is no recorded journal {os.fspath(pattern)!r} (seen from {os.getcwd()})")
        found += matching
    if not found:
        raise AssertionError("no recorded journals were named: nothing is tested")
    return list(dict.fromkeys(found))


def _read(file: str) -> list[tuple[str, Exported]]:
    return [(file, exported) for exported in read_exported(Path(file).read_bytes(), file)]


def _what(one: Replayed) -> str:
    if one.verdict == "no code":
        version = f" version {one.version}" if one.version else ""
        return f"run {one.id!r} is of workflow {one.workflow!r}{version}, which was not given"
    return f"run {one.id!r} of {one.workflow!r}: {one.difference}"
