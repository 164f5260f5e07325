"""`batuta verify`: does the database keep its promises?"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from batuta.cli import output
from batuta.cli.common import inputs
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.lazy import FAILED, OK
from batuta.cli.common.options import CommonOptions, app_option, opened, with_common_options
from batuta.cli.common.redaction import revealing
from batuta.printable import number_of

if TYPE_CHECKING:
    from batuta.verify import Report

_SHOWN = 50


@click.command()
@app_option("Also replay the runs of these workflows (I7).")
@click.option(
    "--patience",
    type=inputs.DURATION,
    default="30s",
    show_default=True,
    metavar="DURATION",
    help="How long live workers may take to recover the runs of dead ones.",
)
@revealing
@with_common_options
def verify(common: CommonOptions, app: str | None, patience: float) -> None:
    """Read every run and journal, and check that the promises hold. Exits 1 when a check fails.

    It only reads, and may run beside live workers.
    """
    report = asyncio.run(_verify(common, app, patience))
    document = {
        "holds": report.holds,
        "runs": report.runs,
        "checked": report.checked,
        "found": report.found,
        "violations": report.violations,
        "stranded": report.stranded,
        "sealed": report.sealed,
    }
    common.answer(document, lambda console: show_report(console, report))
    raise SystemExit(OK if report.holds else FAILED)


async def _verify(common: CommonOptions, target: str | None, patience: float) -> Report:
    from batuta.verify import verify as check

    async with AsyncExitStack() as stack:
        app = await load_app(target, stack) if target else None
        store = await stack.enter_async_context(opened(common.store()))
        return await check(store, app.workflows if app else (), patience=patience)


def show_report(console: Any, report: Report) -> None:
    """The table of invariants, then what does not hold."""
    from batuta.verify import INVARIANTS

    made = output.tables.table("", "invariant", "checked", "violations")
    for name, sentence in INVARIANTS.items():
        skipped = name == "I7" and not report.checked[name]
        made.add_row(name, sentence, "-" if skipped else str(report.checked[name]), str(report.found[name]))
    console.print(made)
    for one in report.violations[:_SHOWN]:
        console.print(f"{one.invariant}  run {one.id} ({one.run_id}): {one.what}")
    total = sum(report.found.values())
    if total > _SHOWN:
        console.print(f"... and {total - _SHOWN} more; --json lists a thousand")
    if report.sealed:
        unread = number_of(report.sealed, "run was", "runs were")
        console.print(f"{unread} not read: keys or codecs are missing here (BATUTA_KEYS)")
    for run in report.stranded[:_SHOWN]:
        console.print(f"no worker takes run {run.id} ({run.run_id}): {run.why}")
    if len(report.stranded) > _SHOWN:
        console.print(f"... and {len(report.stranded) - _SHOWN} more")
