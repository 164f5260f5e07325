"""`batuta runs list`, `show`, `journal`, `timeline` and `diff`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.client.documents import run_document
from batuta.authoring.history.diff import Diff
from batuta.cli import output
from batuta.cli.common.options import (
    CURSOR,
    LIMIT,
    CommonOptions,
    opened,
    print_json,
    with_common_options,
    with_options,
)
from batuta.cli.common.redaction import redactor, revealing
from batuta.cli.common.runs import FILTERS, KIND, WAITING_FOR, ask_run, find_run, read_page, show_count, show_run
from batuta.errors import InvalidInput
from batuta.journal.export import Exported

if TYPE_CHECKING:
    from rich.console import Console

    from batuta.client import Batuta


@click.command("list")
@with_options(KIND, *FILTERS, WAITING_FOR, LIMIT, CURSOR)
@revealing
@with_common_options
def list_runs(common: CommonOptions, /, **where: Any) -> None:
    """List runs, newest first."""
    page = read_page(common, where)
    common.show(page, lambda: output.tables.runs_table(page.runs), cursor=page.cursor)


@click.command()
@with_options(KIND, *FILTERS)
@with_common_options
def count(common: CommonOptions, /, **where: Any) -> None:
    """Count runs that match the filters."""
    show_count(common, where)


@click.command()
@click.argument("id")
@revealing
@with_common_options
def show(common: CommonOptions, id: str) -> None:
    """Show the run ID: input, state, what it waits for, published values, and its result or error.

    ID is an id (the last run begun under it) or a run id.
    """
    run, _, more = ask_run(common, id, run_document)

    show_run(common, run, more, "workflow")


@click.command()
@click.argument("id")
@click.option("--export", is_flag=True, help="Print the rows as JSON, for `batuta replay`.")
@click.option("--full", is_flag=True, help="Do not cut values and errors.")
@revealing
@with_common_options
def journal(common: CommonOptions, id: str, export: bool, full: bool) -> None:
    """Show the journal of the run ID: the input of each turn, and its commands."""
    if export:
        if redactor() is not None:
            raise InvalidInput("--export prints unredacted rows, and redaction is on: add --reveal")
        print_json(asyncio.run(_export(common, id)))
        return
    lines = ask_run(common, id, lambda run: run.journal())

    common.show({"id": id, "entries": lines}, lambda: output.tables.journal_view(lines, full=full))


_exact = click.option("--exact", is_flag=True, help="Take ids as run ids: exactly that run, not the last run of an id.")
_all = click.option("--all", "everything", is_flag=True, help="Show every step.")


@click.command()
@click.argument("id")
@_exact
@_all
@revealing
@with_common_options
def timeline(common: CommonOptions, id: str, exact: bool, everything: bool) -> None:
    """Show where the time of the run ID went: what it waited for, what it did, every attempt. ID may be a run id."""
    found = ask_run(common, id, lambda run: run.timeline(), exact=exact)

    def human(console: Console) -> None:
        console.print(output.timelines.timeline_view(found, console, everything=everything))

    common.answer(found, human)


@click.command()
@click.argument("left", metavar="A")
@click.argument("right", metavar="B", required=False)
@_exact
@_all
@revealing
@with_common_options
def diff(common: CommonOptions, left: str, right: str | None, exact: bool, everything: bool) -> None:
    """Compare the runs A and B of one workflow, step by step: which steps are the same, where they differ, how each
    went on.

    Without B, compare A with the run that it was made from, by a retry, reset or fork. Both may be run ids.
    """

    async def compare(client: Batuta) -> Diff:
        one = await find_run(client, left, exact=exact)
        return await (one.diff() if right is None else (await find_run(client, right, exact=exact)).diff(one))

    found = common.ask(compare)

    common.show(found, lambda: output.timelines.diff_view(found, everything=everything))


async def _export(common: CommonOptions, id: str) -> Exported:
    from batuta.verify.recorded_journals import export_run

    async with common.client() as client:
        run_id = (await find_run(client, id)).run_id
    async with opened(common.store()) as store:
        return await export_run(store, run_id)
