"""`batuta runs list`, `show` and `journal`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.listing import filtered, show_page
from batuta.cli.place import Place, placed, print_json
from batuta.cli.redacting import redactor, revealing
from batuta.errors import InvalidInput, PayloadSealed, RunNotCompleted
from batuta.journal.records import RunKind
from batuta.journal.states import CLOSED, RunState

if TYPE_CHECKING:
    from batuta.authoring.backend import Description, JournalLine
    from batuta.authoring.handle import Handle
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


async def _export(place: Place, id: str) -> Exported:
    from batuta.verify.replaying import export_run

    store = place.store()
    await store.open()
    try:
        return await export_run(store, (await store.get(id)).run_id)
    finally:
        await store.close()
