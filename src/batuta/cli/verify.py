"""`batuta verify`: does the database keep its promises?"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.lazy import FAILED, OK
from batuta.cli.loading import load_app
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing

if TYPE_CHECKING:
    from batuta.verify import Report

_SHOWN = 50


@click.command()
@click.option("--module", "target", metavar="MODULE[:ATTR]", help="Replay the runs of its workflows, too (I7).")
@click.option(
    "--patience",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    metavar="SECONDS",
    help="How long live workers may take to recover the runs of dead ones.",
)
@revealing
@placed
def verify(place: Place, target: str | None, patience: float) -> None:
    """Read every run and journal, and check what is promised of them. Exits 1 when something does not hold.

    It only reads, and may run beside live workers.
    """
    report = asyncio.run(_verify(place, target, patience))
    document = {
        "holds": report.holds,
        "runs": report.runs,
        "checked": report.checked,
        "found": report.found,
        "violations": report.violations,
        "stranded": report.stranded,
        "sealed": report.sealed,
    }
    place.answer(document, lambda console: show_report(console, report))
    raise SystemExit(OK if report.holds else FAILED)


async def _verify(place: Place, target: str | None, patience: float) -> Report:
    from batuta.verify import verify as check

    async with AsyncExitStack() as stack:
        app = await load_app(target, stack) if target else None
        store = place.store()
        stack.push_async_callback(store.close)
        await store.open()
        return await check(store, app.workflows if app else (), patience=patience)


def show_report(console: Any, report: Report) -> None:
    """The table of invariants, then what does not hold."""
    from batuta.cli.tables import table
    from batuta.verify import INVARIANTS

    made = table("", "invariant", "checked", "violations")
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
        console.print(f"{report.sealed} runs were not read: their keys, or codecs, are not here (BATUTA_KEYS)")
    for run in report.stranded[:_SHOWN]:
        console.print(f"nobody takes run {run.id} ({run.run_id}): {run.why}")
    if len(report.stranded) > _SHOWN:
        console.print(f"... nor {len(report.stranded) - _SHOWN} more")
