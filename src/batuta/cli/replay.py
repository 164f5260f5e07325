"""`batuta replay`: do recorded journals still fit the code?"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.lazy import FAILED, OK
from batuta.cli.loading import load_app
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing

if TYPE_CHECKING:
    from batuta.journal.exported import Exported
    from batuta.verify.replaying import Replayed

_SHOWN = 50


@click.command()
@click.argument("target", metavar="MODULE[:ATTR]")
@click.argument("files", nargs=-1, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--workflow", metavar="NAME", help="Only runs of this workflow.")
@click.option("--limit", type=click.IntRange(min=1), metavar="N", help="At most that many runs, the newest.")
@revealing
@placed
def replay(place: Place, target: str, files: tuple[Path, ...], workflow: str | None, limit: int | None) -> None:
    """Replay journals against the workflows of a module. Exits 1 when one of them does not fit.

    Journals come from FILES (`batuta runs journal ID --export` makes them) or, without any, from the database. Nothing
    is executed and nothing is written.
    """
    results = asyncio.run(_replay(place, target, files, workflow, limit))
    bad = [one for one in results if one.verdict != "ok"]
    document = {"replayed": len(results), "ok": len(results) - len(bad), "runs": bad}
    place.answer(document, lambda console: show_differences(console, results, bad))
    raise SystemExit(FAILED if bad else OK)


async def _replay(
    place: Place, target: str, files: tuple[Path, ...], workflow: str | None, limit: int | None
) -> list[Replayed]:
    from batuta.authoring.definitions import by_code
    from batuta.verify.replaying import replay_exported

    async with AsyncExitStack() as stack:
        code = by_code((await load_app(target, stack)).workflows)
        found = _from_files(files) if files else _from_store(place, stack, workflow, limit)
        return [
            await replay_exported(code, exported)
            async for exported in found
            if workflow is None or exported.workflow == workflow
        ]


async def _from_files(files: tuple[Path, ...]) -> AsyncIterator[Exported]:
    from batuta.journal.exported import read_exported

    for file in files:
        for exported in read_exported(file.read_bytes(), str(file)):
            yield exported


async def _from_store(
    place: Place, stack: AsyncExitStack, workflow: str | None, limit: int | None
) -> AsyncIterator[Exported]:
    from batuta.client import run_filter
    from batuta.verify.replaying import exported_runs

    store = place.store()
    stack.push_async_callback(store.close)
    await store.open()
    async for exported in exported_runs(store, run_filter(workflow=workflow), limit):
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
