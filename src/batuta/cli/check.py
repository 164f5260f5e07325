"""`batuta check`: does workflow code keep the rules, its shape, and its journals?"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.definitions import by_code
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.lazy import FAILED, OK
from batuta.cli.common.options import CommonOptions, json_option, opened
from batuta.cli.replay import show_differences
from batuta.errors import InvalidInput
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.check import Check, Finding
    from batuta.verify.recorded_journals import Replayed


@click.command()
@click.argument("targets", metavar="MODULE|PATH...", nargs=-1, required=True)
@click.option(
    "--shapes",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Compare the shapes of workflows with FILE, such as workflows.lock.",
)
@click.option("--update", is_flag=True, help="Write the current shapes to the file.")
@click.option("--from", "url", metavar="URL", help="Also replay journals of this database; this imports the modules.")
@click.option(
    "--last",
    type=click.IntRange(min=1),
    default=100,
    show_default=True,
    metavar="N",
    help="With --from: the number of newest journals per workflow.",
)
@click.option(
    "--namespace", envvar="BATUTA_NAMESPACE", show_envvar=True, metavar="NAME", help="With --from.  [default: default]"
)
@click.option("--strict", is_flag=True, help="Also fail on warnings.")
@json_option
def check(
    targets: tuple[str, ...],
    file: Path | None,
    update: bool,
    url: str | None,
    last: int,
    namespace: str | None,
    strict: bool,
    as_json: bool,
) -> None:
    """Check the workflows of modules, packages, files or folders. Exits 1 when it finds an error.

    It only reads sources, and imports or runs nothing, unless --from asks for a replay. Add `# batuta: ignore[W101]` to
    a line to suppress W101 there.
    """
    from batuta.check import Check

    if update and file is None:
        raise InvalidInput("--update needs the file to write: --shapes workflows.lock")
    common = CommonOptions(url, namespace, as_json)
    checked = Check(targets)
    found = checked.findings()
    if not (checked.workflows or checked.steps or found):
        raise InvalidInput(f"there is no @workflow, @activity or @job in {', '.join(targets)}: nothing was checked")
    if file is not None:
        found += _shapes(checked, file, update=update)
    replayed = asyncio.run(_replayed(common, targets, last)) if url is not None else []
    bad = [one for one in replayed if one.verdict != "ok"]
    common.answer(
        _document(checked, found, len(replayed), bad),
        lambda console: _show(console, checked, found, replayed if url is not None else None, bad),
    )
    wrong = [one for one in found if strict or not one.rule.warning]
    raise SystemExit(FAILED if wrong or bad else OK)


def _shapes(checked: Check, file: Path, *, update: bool) -> list[Finding]:
    from batuta.check import compare, read_shapes, shapes_of, write_shapes

    shapes = shapes_of(checked)
    if update:
        write_shapes(file, shapes)
        return []
    return compare(file, read_shapes(file), shapes)


async def _replayed(common: CommonOptions, targets: Sequence[str], last: int) -> list[Replayed]:
    """The newest journals of each workflow that the modules have."""
    from batuta.client import run_filter
    from batuta.verify.recorded_journals import exported_runs, replay_exported

    async with AsyncExitStack() as stack:
        workflows = [workflow for target in targets for workflow in (await load_app(_module(target), stack)).workflows]
        code = by_code(list(dict.fromkeys(workflows)))
        store = await stack.enter_async_context(opened(common.store()))
        return [
            await replay_exported(code, exported)
            for name in sorted({workflow.name for workflow in workflows})
            async for exported in exported_runs(store, run_filter(workflow=name), last)
        ]


def _module(target: str) -> str:
    if "/" in target or target.endswith(".py"):
        raise InvalidInput(f"--from imports what it replays: give the module of {target!r}, not its file")
    return target


def _document(checked: Check, found: Sequence[Finding], replayed: int, bad: Sequence[Replayed]) -> dict[str, Any]:
    findings = [
        {
            "file": one.file,
            "line": one.line,
            "column": one.column,
            "code": one.code,
            "level": "warning" if one.rule.warning else "error",
            "what": one.what,
            "why": one.rule.title,
            "fix": one.rule.fix,
            "where": one.where,
            "details": one.details,
        }
        for one in found
    ]
    return {
        "files": checked.files,
        "workflows": len(checked.workflows),
        "findings": findings,
        "replayed": replayed,
        "runs": bad,
    }


def _show(
    console: Any, checked: Check, found: Sequence[Finding], replayed: Sequence[Replayed] | None, bad: list[Replayed]
) -> None:
    for one in found:
        console.print(str(one), soft_wrap=True)
        for line in one.details:
            console.print(f"    {line}", soft_wrap=True)
        console.print(f"    fix: {one.rule.fix}", soft_wrap=True)
    if replayed is not None:
        show_differences(console, replayed, bad)
    warnings = sum(one.rule.warning for one in found)
    errors = len(found) - warnings
    workflows, files = number_of(len(checked.workflows), "workflow"), number_of(checked.files, "file")
    console.print(f"{workflows} in {files}: {number_of(errors, 'error')}, {number_of(warnings, 'warning')}")
