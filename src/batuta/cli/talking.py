"""`batuta runs signal`, `update`, `query` and `published`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any

import click

from batuta.cli import inputs
from batuta.cli.lazy import FAILED
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing, say, shown_json, shown_text
from batuta.errors import InvalidInput

if TYPE_CHECKING:
    from batuta.authoring.definitions import Workflow
    from batuta.authoring.handle import Handle

_JSON = "JSON|@FILE|@-"


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("value", metavar=f"[{_JSON}]", required=False, default="null")
@click.option("--message-id", metavar="TEXT", help="Your name for it: a second one of that name is not delivered.")
@placed
def signal(place: Place, id: str, name: str, value: str, message_id: str | None) -> None:
    """Send the signal NAME to the run ID. It is durable when this returns; the run receives it once."""
    run_id = asyncio.run(_signal(place, id, name, inputs.read_json(value, "the value"), message_id))
    document = {"id": id, "run_id": run_id, "signal": name}
    place.answer(document, lambda _: say(f"sent signal {name} to run {id}"))


async def _signal(place: Place, id: str, name: str, value: Any, message_id: str | None) -> str:
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        await handle.signal(name, value, message_id=message_id)
        return str(handle.run_id)


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("arguments", metavar=f"[{_JSON}]...", nargs=-1)
@click.option("--update-id", metavar="TEXT", help="Your name for it: it is done once, and answered whenever asked.")
@click.option("--timeout", type=click.FloatRange(min=0, min_open=True), metavar="SECONDS", help="How long to wait.")
@revealing
@placed
def update(
    place: Place, id: str, name: str, arguments: tuple[str, ...], update_id: str | None, timeout: float | None
) -> None:
    """Ask the run ID for the update NAME, and print its answer. Exit 1 when it is rejected, fails or takes too long."""
    try:
        answer = asyncio.run(_update(place, id, name, _read(arguments), update_id, timeout))
    except TimeoutError:
        click.echo(f"error: no answer within {timeout:g} s; the update is not withdrawn", err=True)
        raise SystemExit(FAILED) from None
    place.answer({"id": id, "update": name, "answer": answer}, lambda _: click.echo(shown_json(answer)))


async def _update(
    place: Place, id: str, name: str, arguments: Sequence[Any], update_id: str | None, timeout: float | None
) -> Any:
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        return await handle.update(name, *arguments, update_id=update_id, timeout=timeout)


@click.command()
@click.argument("target", metavar="MODULE[:ATTR]")
@click.argument("id")
@click.argument("name")
@click.argument("arguments", metavar=f"[{_JSON}]...", nargs=-1)
@revealing
@placed
def query(place: Place, target: str, id: str, name: str, arguments: tuple[str, ...]) -> None:
    """Ask the run ID the query NAME, with the code that a worker of MODULE[:ATTR] would have."""
    answer = asyncio.run(_query(place, target, id, name, _read(arguments)))
    place.answer({"id": id, "query": name, "answer": answer}, lambda _: click.echo(shown_json(answer)))


async def _query(place: Place, target: str, id: str, name: str, arguments: Sequence[Any]) -> Any:
    from batuta.cli.loading import load_app

    async with AsyncExitStack() as stack:
        app = await load_app(target, stack)
        client = await stack.enter_async_context(place.client())
        run = await (await client.get(id)).describe()
        handle: Handle[Any] = await client.get(id, _code(target, app.workflows, run.workflow, run.version))
        return await handle.query(name, *arguments)


def _code(target: str, workflows: Sequence[Workflow[..., Any]], name: str, version: str) -> Workflow[..., Any]:
    named = [one for one in workflows if one.name == name]
    if not named:
        raise InvalidInput(f"{target!r} has no workflow {name!r}, which the run is of")
    return next((one for one in named if one.version == version), named[-1])


@click.command()
@click.argument("id")
@click.argument("name", required=False)
@revealing
@placed
def published(place: Place, id: str, name: str | None) -> None:
    """What the run ID has published: all of it, or the value NAME."""
    found = asyncio.run(_published(place, id, name))
    if name is not None:
        place.answer({"id": id, "name": name, "value": found}, lambda _: click.echo(shown_json(found, name)))
        return

    def human(_: Any) -> None:
        for each, value in found.items():
            click.echo(f"{shown_text(each)}  {shown_json(value, each)}")

    place.answer({"id": id, "published": found}, human)


async def _published(place: Place, id: str, name: str | None) -> Any:
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        return await handle.published() if name is None else await handle.published(name)


def _read(arguments: Sequence[str]) -> list[Any]:
    return [inputs.read_json(text, f"argument {number}") for number, text in enumerate(arguments, start=1)]
