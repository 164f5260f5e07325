"""`batuta audit`: what operators did, and whether the log of it is as it was written."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from batuta.cli import inputs
from batuta.cli.lazy import FAILED, OK, LazyGroup
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing
from batuta.journal.acts import Verb

if TYPE_CHECKING:
    from batuta.authoring.operating import AuditPage, AuditReport

audit = LazyGroup(
    "audit",
    {
        "list": ("batuta.cli.audit:list_acts", "What operators did, newest first."),
        "verify": ("batuta.cli.audit:verify", "Check that no row was changed, removed or put in."),
    },
    help="What operators did to runs, queues, schedules and dead letters.",
)


@click.command("list")
@click.option("--target", metavar="TEXT", help="The id of a run, or the name of a queue or schedule.")
@click.option("--actor", metavar="TEXT", help="Who did it.")
@click.option("--verb", type=click.Choice([str(verb) for verb in Verb]), help="What was done.")
@click.option("--since", metavar="TIME", help="ISO 8601.")
@click.option("--until", metavar="TIME", help="ISO 8601.")
@click.option("--limit", type=click.IntRange(1, 1000), default=50, show_default=True)
@click.option("--cursor", metavar="TEXT", help="Of the page before: gives the next one.")
@revealing
@placed
def list_acts(place: Place, /, since: str | None, until: str | None, **where: Any) -> None:
    """What operators did, newest first: who, what, when, why, and what was before and after."""
    times = {"since": inputs.moment(since, "--since"), "until": inputs.moment(until, "--until")}
    page = asyncio.run(_read(place, where | times))

    def human(console: Any) -> None:
        from batuta.cli.tables import audit_table

        console.print(audit_table(page.rows))
        if page.cursor is not None:
            click.echo(f"there are more: --cursor {page.cursor}", err=True)

    place.answer(page, human)


@click.command()
@click.option("--expect", metavar="NUMBER:HASH", help="What an earlier verify printed, and was kept elsewhere.")
@placed
def verify(place: Place, expect: str | None) -> None:
    """Read the whole log and check that no row was changed, removed or put in by hand. Exits 1 when one was.

    Whoever may write to the database can write the whole log anew, with other hashes. Keep what this prints in another
    place, and give it back with --expect: then that is found, too.
    """
    report = asyncio.run(_verify(place, expect))

    def human(_: Any) -> None:
        if report.problem:
            click.echo(f"the audit log is broken: {report.problem} ({report.rows} rows before it are sound)")
        else:
            click.echo(f"{report.rows} rows, all as they were written: {report.head}")

    place.answer(report, human)
    raise SystemExit(FAILED if report.problem else OK)


async def _read(place: Place, where: dict[str, Any]) -> AuditPage:
    async with place.client() as client:
        return await client.audit(**where)


async def _verify(place: Place, expect: str | None) -> AuditReport:
    async with place.client() as client:
        return await client.verify_audit(expect)
