"""`batuta runs cancel`, `terminate` and `retry`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.place import Place, placed

if TYPE_CHECKING:
    from batuta.authoring.handle import Handle


@click.command()
@click.argument("id")
@click.option("--reason", default="", help="Kept in the journal, and given to the run's code.")
@click.option("--again", is_flag=True, help="Ask a run that was asked before, and went on or takes too long.")
@placed
def cancel(place: Place, id: str, reason: str, again: bool) -> None:
    """Ask the run ID to end. Its code may clean up first, and may refuse."""
    run_id, news = asyncio.run(_cancel(place, id, reason, again=again))
    document = {"id": id, "run_id": run_id, "requested": "cancel", "news": news}
    before = f"run {id} was asked to end before, and hears it once: --again asks it once more"
    place.answer(document, lambda _: click.echo(f"asked run {id} to end" if news else before))


@click.command()
@click.argument("id")
@click.option("--reason", default="", help="Kept in the journal.")
@placed
def terminate(place: Place, id: str, reason: str) -> None:
    """End the run ID at once. Its code is not told: nothing is cleaned up."""
    run_id = asyncio.run(_terminate(place, id, reason))
    document = {"id": id, "run_id": run_id, "state": "terminated"}
    place.answer(document, lambda _: click.echo(f"terminated run {id}"))


@click.command()
@click.argument("id")
@placed
def retry(place: Place, id: str) -> None:
    """Let the parked run ID (needs_code, poisoned) be tried again, by the same code, too."""
    run_id = asyncio.run(_retry(place, id))
    document = {"id": id, "run_id": run_id, "requested": "retry"}
    place.answer(document, lambda _: click.echo(f"run {id} will be tried again"))


async def _retry(place: Place, id: str) -> str:
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        await handle.retry()
        return str(handle.run_id)


async def _cancel(place: Place, id: str, reason: str, *, again: bool) -> tuple[str, bool]:
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        return str(handle.run_id), await handle.cancel(reason, again=again)


async def _terminate(place: Place, id: str, reason: str) -> str:
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        await handle.terminate(reason)
        return str(handle.run_id)
