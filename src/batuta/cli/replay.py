"""`batuta replay`: do recorded journals still fit the code?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.definitions import by_code
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.lazy import FAILED, OK
from batuta.cli.common.options import CommonOptions, app_option, opened, with_common_options
from batuta.cli.common.redaction import revealing
from batuta.errors import InvalidInput
from batuta.journal.export import Exported, read_exported
from batuta.journal.states import OPEN

if TYPE_CHECKING:
    from batuta.verify.recorded_journals import Replayed

_SHOWN = 50


@click.command()
@app_option("The code to replay with.", required=True)
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--name", metavar="NAME", help="Only runs of this workflow.")
@click.option("--open", "only_open", is_flag=True, help="Only open runs, which the code must replay.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="Only this many newest runs.")
@revealing
@with_common_options
def replay(
    common: CommonOptions, app: str, files: tuple[Path, ...], name: str | None, only_open: bool, limit: int | None
) -> None:
    """Replay journals with the workflows of a module. Exits 1 when one does not fit.

    Journals come from FILES (`batuta runs journal ID --export` makes them) or, without FILES, from the database. It
    executes and writes nothing.
    """
    if only_open and files:
        raise InvalidInput("--open cannot be combined with FILES: a file does not say whether its run is still open")
    results = asyncio.run(_replay(common, app, files, name, only_open, limit))
    bad = [one for one in results if one.verdict != "ok"]
    document = {"replayed": len(results), "ok": len(results) - len(bad), "runs": bad}
    common.answer(document, lambda console: show_differences(console, results, bad))
    raise SystemExit(FAILED if bad else OK)


async def _replay(
    common: CommonOptions,
    target: str,
    files: tuple[Path, ...],
    workflow: str | None,
    only_open: bool,
    limit: int | None,
) -> list[Replayed]:
    from batuta.verify.recorded_journals import replay_exported

    async with AsyncExitStack() as stack:
        code = by_code((await load_app(target, stack)).workflows)
        found = _from_files(files) if files else _from_store(common, stack, workflow, only_open, limit)
        return [
            await replay_exported(code, exported)
            async for exported in found
            if workflow is None or exported.workflow == workflow
        ]


async def _from_files(files: tuple[Path, ...]) -> AsyncIterator[Exported]:
    for file in files:
        for exported in read_exported(file.read_bytes(), str(file)):
            yield exported


async def _from_store(
    common: CommonOptions, stack: AsyncExitStack, workflow: str | None, only_open: bool, limit: int | None
) -> AsyncIterator[Exported]:
    from batuta.client import run_filter
    from batuta.verify.recorded_journals import exported_runs

    store = await stack.enter_async_context(opened(common.store()))
    where = run_filter(workflow=workflow, states=sorted(OPEN) if only_open else ())
    async for exported in exported_runs(store, where, limit):
        yield exported


def show_differences(console: Any, results: Sequence[Replayed], bad: Sequence[Replayed]) -> None:
    """The journals that do not fit, and how many did."""
    for one in bad[:_SHOWN]:
        version = f" version {one.version}" if one.version else ""
        console.print(f"{one.verdict}: run {one.id} ({one.run_id}), workflow {one.workflow}{version}")
        if one.difference:
            console.print(f"  {one.difference}")
    if len(bad) > _SHOWN:
        console.print(f"... and {len(bad) - _SHOWN} more; --json lists them all")
    console.print(f"{len(results)} journals replayed, {len(results) - len(bad)} ok")
