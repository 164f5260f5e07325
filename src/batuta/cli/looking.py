"""`batuta runs list`, `show`, `journal`, `timeline` and `diff`."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.listing import filtered, show_page
from batuta.cli.place import Place, placed, print_json
from batuta.cli.redacting import redactor, revealing
from batuta.errors import InvalidInput, PayloadSealed, RunNotCompleted, UnknownRun
from batuta.journal.records import RunKind
from batuta.journal.states import CLOSED, RunState

if TYPE_CHECKING:
    from batuta.authoring.backend import Description, JournalLine
    from batuta.authoring.diffs import Diff
    from batuta.authoring.handle import Handle
    from batuta.authoring.timeline import Timeline
    from batuta.client import Batuta
    from batuta.journal.exported import Exported


@click.command("list")
@click.option("--workflow", metavar="NAME")
@click.option(
    "--kind", type=click.Choice([*map(str, RunKind), "any"]), default=str(RunKind.WORKFLOW), show_default=True
)
@filtered
@revealing
@placed
def list_runs(place: Place, /, tags: tuple[str, ...], **where: Any) -> None:
    """Runs, newest first."""
    show_page(place, "runs_table", tags, where)


@click.command()
@click.argument("id")
@revealing
@placed
def show(place: Place, id: str) -> None:
    """The run ID: the last one begun under that id."""
    run, ending = asyncio.run(_show(place, id))

    def human(console: Any) -> None:
        from batuta.cli.tables import attempts_table, run_table

        console.print(run_table(run, ending))
        if run.attempts:
            console.print(attempts_table(run.attempts, is_open=run.closed_at is None))

    import msgspec

    place.answer({**msgspec.to_builtins(run), **ending}, human)


async def _show(place: Place, id: str) -> tuple[Description, dict[str, Any]]:
    """The run, and what it ended with if it is closed."""
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        run = await handle.describe()
        if run.state not in CLOSED or run.state is RunState.CONTINUED:
            return run, {}
        try:
            return run, {"result": await handle.result()}
        except (RunNotCompleted, PayloadSealed) as error:
            return run, {"error": str(error)}


@click.command()
@click.argument("id")
@click.option("--export", is_flag=True, help="The rows themselves, as JSON: for `batuta replay`.")
@revealing
@placed
def journal(place: Place, id: str, export: bool) -> None:
    """Every entry of the run ID: the input of each turn, and the commands it issued."""
    if export:
        if redactor() is not None:
            raise InvalidInput(
                "--export gives the rows as they are, and BATUTA_REDACT would hide a part of them: say --reveal as well"
            )
        print_json(asyncio.run(_export(place, id)))
        return
    lines = asyncio.run(_journal(place, id))

    def human(console: Any) -> None:
        from batuta.cli.tables import journal_table

        console.print(journal_table(lines))

    place.answer({"id": id, "entries": lines}, human)


async def _journal(place: Place, id: str) -> list[JournalLine]:
    async with place.client() as client:
        return await (await client.get(id)).journal()


_exact = click.option("--exact", is_flag=True, help="Ids are run ids: exactly that run, not the last one of an id.")


@click.command()
@click.argument("id")
@_exact
@revealing
@placed
def timeline(place: Place, id: str, exact: bool) -> None:
    """Where the time of the run ID went: what it waited for, what it did, every attempt. ID may be a run id."""
    found = asyncio.run(_timeline(place, id, exact))

    def human(console: Any) -> None:
        from batuta.cli.bars import timeline_view

        console.print(timeline_view(found, console))

    place.answer(found, human)


async def _timeline(place: Place, id: str, exact: bool) -> Timeline:
    async with place.client() as client:
        return await (await _one(client, id, exact)).timeline()


@click.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B", required=False)
@_exact
@revealing
@placed
def diff(place: Place, left: str, right: str | None, exact: bool) -> None:
    """Compare the runs A and B of one workflow, step by step: what is the same, where they part, and how each went on.
    Without B: the run that A was made from, by a retry, reset or fork, with A. Both may be run ids."""
    found = asyncio.run(_diff(place, left, right, exact))

    def human(console: Any) -> None:
        from batuta.cli.bars import diff_view

        console.print(diff_view(found))

    place.answer(found, human)


async def _diff(place: Place, left: str, right: str | None, exact: bool) -> Diff:
    async with place.client() as client:
        one = await _one(client, left, exact)
        return await (one.diff() if right is None else (await _one(client, right, exact)).diff(one))


async def _one(client: Batuta, id: str, exact: bool) -> Handle[Any]:
    """The run of the id or, if there is none, that of the run id."""
    if exact:
        return await client.get_run(id)
    try:
        return await client.get(id)
    except UnknownRun:
        with suppress(UnknownRun, InvalidInput):
            return await client.get_run(id)
        raise


async def _export(place: Place, id: str) -> Exported:
    from batuta.verify.replaying import export_run

    store = place.store()
    await store.open()
    try:
        return await export_run(store, (await store.get(id)).run_id)
    finally:
        await store.close()
