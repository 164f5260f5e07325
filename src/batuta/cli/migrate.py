"""`batuta migrate`: the schema of the database."""

from __future__ import annotations

import asyncio

import click

from batuta.cli.place import Place, placed


@click.command()
@click.option("--plan", is_flag=True, help="Say what would be done, and do nothing.")
@placed
def migrate(place: Place, plan: bool) -> None:
    """Create the tables, or bring them up to date. Safe to run twice, and from two places at once."""
    names = asyncio.run(_migrate(place, plan))
    verb = "would apply" if plan else "applied"

    def human(_console: object) -> None:
        for name in names:
            click.echo(f"{verb} {name}")
        if not names:
            click.echo("the database is up to date")

    place.answer({"plan": plan, "migrations": names}, human)


async def _migrate(place: Place, plan: bool) -> list[str]:
    store = place.store()
    try:
        return await store.migrate(plan=plan)
    finally:
        await store.close()
