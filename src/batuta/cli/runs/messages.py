"""`batuta runs signal`, `update`, `query` and `published`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Any

import click

from batuta.authoring.client.handle import Handle
from batuta.authoring.definitions import Workflow
from batuta.cli.common import inputs
from batuta.cli.common.app_loading import load_app
from batuta.cli.common.lazy import FAILED
from batuta.cli.common.options import CommonOptions, app_option, with_common_options
from batuta.cli.common.redaction import revealing, say, shown_json, shown_text
from batuta.cli.common.runs import ask_run, find_run
from batuta.errors import InvalidInput

_JSON = "JSON|@FILE|@-"


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("value", metavar=f"[{_JSON}]", required=False, default="null")
@click.option(
    "--message-id", metavar="TEXT", help="Your id for the message: a second one with this id is not delivered."
)
@with_common_options
def signal(common: CommonOptions, id: str, name: str, value: str, message_id: str | None) -> None:
    """Send the signal NAME to the run ID. It is durable when this returns; the run receives it once."""
    sent = inputs.read_json(value, "the value")

    async def send(run: Handle[Any]) -> str:
        await run.signal(name, sent, message_id=message_id)
        return str(run.run_id)

    document = {"id": id, "run_id": ask_run(common, id, send), "signal": name}
    common.tell(document, f"sent signal {name} to run {id}")


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("arguments", metavar=f"[{_JSON}]...", nargs=-1)
@click.option(
    "--update-id",
    metavar="TEXT",
    help="Your id for the request: the run handles it once and gives the same answer again.",
)
@click.option("--timeout", type=inputs.POSITIVE, metavar="DURATION", help="The longest wait for the answer.")
@revealing
@with_common_options
def update(
    common: CommonOptions, id: str, name: str, arguments: tuple[str, ...], update_id: str | None, timeout: float | None
) -> None:
    """Send the update NAME to the run ID, and print its answer.

    Exits 1 when it is rejected, fails or takes too long.
    """
    given = _read(arguments)
    try:
        answer = ask_run(common, id, lambda run: run.update(name, *given, update_id=update_id, timeout=timeout))
    except TimeoutError as error:
        say(f"error: {error}; the update is not withdrawn", err=True)
        raise SystemExit(FAILED) from None
    common.answer({"id": id, "update": name, "answer": answer}, lambda _: click.echo(shown_json(answer)))


@click.command()
@click.argument("id")
@click.argument("name")
@click.argument("arguments", metavar=f"[{_JSON}]...", nargs=-1)
@app_option("The code that answers the query.", required=True)
@revealing
@with_common_options
def query(common: CommonOptions, app: str, id: str, name: str, arguments: tuple[str, ...]) -> None:
    """Send the query NAME to the run ID. The code of --app answers it, from the run's journal."""
    answer = asyncio.run(_query(common, app, id, name, _read(arguments)))
    common.answer({"id": id, "query": name, "answer": answer}, lambda _: click.echo(shown_json(answer)))


async def _query(common: CommonOptions, target: str, id: str, name: str, arguments: Sequence[Any]) -> Any:
    async with AsyncExitStack() as stack:
        app = await load_app(target, stack)
        client = await stack.enter_async_context(common.client())
        run = await (await find_run(client, id)).describe()
        handle = await find_run(client, id, _code(target, app.workflows, run.workflow, run.version))
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
@with_common_options
def published(common: CommonOptions, id: str, name: str | None) -> None:
    """Show the published values of the run ID, or the value NAME."""
    found: Any = ask_run(common, id, lambda run: run.published() if name is None else run.published(name))
    if name is not None:
        common.answer({"id": id, "name": name, "value": found}, lambda _: click.echo(shown_json(found, name)))
        return

    def human(_: Any) -> None:
        for each, value in found.items():
            say(f"{shown_text(each)}  {shown_json(value, each)}")

    common.answer({"id": id, "published": found}, human)


def _read(arguments: Sequence[str]) -> list[Any]:
    return [inputs.read_json(text, f"argument {number}") for number, text in enumerate(arguments, start=1)]
