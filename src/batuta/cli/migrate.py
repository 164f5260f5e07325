"""`batuta migrate`: the schema of the database."""

from __future__ import annotations

import asyncio

import click

from batuta.cli.common.options import CommonOptions, with_common_options
from batuta.cli.common.redaction import say


@click.command()
@click.option("--plan", is_flag=True, help="Only print what would be done.")
@with_common_options
def migrate(common: CommonOptions, plan: bool) -> None:
    """Create the tables, or bring them up to date. You can run it twice, and from two places at once."""
    names = asyncio.run(_migrate(common, plan))
    verb = "would apply" if plan else "applied"

    def human(_console: object) -> None:
        for name in names:
            say(f"{verb} {name}")
        if not names:
            say("the database is up to date")

    common.answer({"plan": plan, "migrations": names}, human)


async def _migrate(common: CommonOptions, plan: bool) -> list[str]:
    store = common.store()
    try:
        return await store.migrate(plan=plan, repair=True)
    finally:
        await store.close()
