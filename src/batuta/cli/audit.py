"""`batuta audit`: list and verify the audit log."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from batuta.authoring.client.bulk_operations import AuditPage
from batuta.cli import output
from batuta.cli.common import inputs
from batuta.cli.common.lazy import FAILED, OK, LazyGroup
from batuta.cli.common.options import (
    CURSOR,
    LIMIT,
    SINCE,
    UNTIL,
    CommonOptions,
    opened,
    with_common_options,
    with_options,
)
from batuta.cli.common.redaction import revealing, say
from batuta.cli.common.runs import id_of
from batuta.journal.audit import Verb
from batuta.printable import number_of

audit = LazyGroup(
    "audit",
    {
        "list": ("batuta.cli.audit:list_acts", "List operator actions, newest first."),
        "verify": ("batuta.cli.audit:verify", "Check that no row was changed, removed or inserted."),
    },
    help="List and verify the audit log: operator actions on runs, queues, schedules and dead letters.",
)


@click.command("list")
@click.option("--target", metavar="TEXT", help="The id or run id of a run, or the name of a queue or schedule.")
@click.option("--actor", metavar="TEXT", help="Who did it.")
@click.option("--verb", type=click.Choice([str(verb) for verb in Verb]), help="What was done.")
@with_options(SINCE, UNTIL, LIMIT, CURSOR)
@revealing
@with_common_options
def list_acts(common: CommonOptions, /, since: str | None, until: str | None, **where: Any) -> None:
    """List operator actions, newest first: who, what, when, why, and the state before and after."""
    times = {"since": inputs.ago(since, "--since"), "until": inputs.ago(until, "--until")}
    page = asyncio.run(_read(common, where | times))
    common.show(page, lambda: output.tables.audit_table(page.rows), cursor=page.cursor)


@click.command()
@click.option("--expect", metavar="NUMBER:HASH", help="The output of an earlier verify, which you kept elsewhere.")
@with_common_options
def verify(common: CommonOptions, expect: str | None) -> None:
    """Check that no row of the audit log was changed, removed or inserted by hand. Exits 1 if one was.

    With a key (BATUTA_AUDIT_KEY, or the payload keys) an attacker without it cannot write a row that passes. Rows
    without a key can be rewritten, with matching hashes, by anybody who may write to the database, and rows at the end
    can be removed. To detect that, keep the output of this command elsewhere, and pass it later with --expect.
    """
    report = common.ask(lambda client: client.verify_audit(expect))

    def human(_: Any) -> None:
        if report.problem:
            before = number_of(report.rows, "row before it is", "rows before it are")
            say(f"the audit log is broken: {report.problem} ({before} sound)")
        else:
            say(f"{number_of(report.rows, 'row')}, all unchanged: {report.head}")
            if report.keyed < report.rows:
                without = f"{report.rows - report.keyed} of them have no key"
                say(
                    f"{without}: anybody who can write to the database could have forged them (set BATUTA_AUDIT_KEY)",
                    err=True,
                )

    common.answer(report, human)
    raise SystemExit(FAILED if report.problem else OK)


async def _read(common: CommonOptions, where: dict[str, Any]) -> AuditPage:
    if where["target"]:
        async with opened(common.store()) as store:
            where["target"] = await id_of(store, where["target"])
    async with common.client() as client:
        return await client.audit(**where)
