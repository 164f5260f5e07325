"""`batuta jobs enqueue`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from batuta.cli import inputs
from batuta.cli.lazy import OK
from batuta.cli.place import Place, placed
from batuta.cli.redacting import revealing
from batuta.cli.starting import tell_run, wait_for_end


@click.command()
@click.argument("name")
@click.option("--input", "-i", "text", metavar="JSON|@FILE|@-", help="An array is the arguments; else the only one.")
@click.option("--id", "id", metavar="ID", help="Your name for it.  [default: its run id]")
@click.option("--queue", "-q", metavar="NAME", help="[default: default]")
@click.option("--priority", type=int, metavar="N", help="Higher goes first.  [default: 0]")
@click.option("--delay", type=float, metavar="SECONDS", help="Not to be begun before.")
@click.option("--at", metavar="TIME", help="The same, as a time: ISO 8601.")
@click.option("--unique", metavar="KEY", help="Not when one of this name and key is waiting or running.")
@click.option("--unique-for", type=float, metavar="SECONDS", help="Nor when one was enqueued so short a time ago.")
@click.option("--debounce", type=float, metavar="SECONDS", help="With --unique: wait for the last such call.")
@click.option("--debounce-limit", type=float, metavar="SECONDS", help="For so long at most.")
@click.option("--key", metavar="TEXT", help="What the queue's limits per key count by, and is fair between.")
@click.option("--expires", type=float, metavar="SECONDS", help="It times out unless it was begun by then.")
@click.option("--timeout", type=float, metavar="SECONDS", help="For an attempt.")
@click.option("--total-timeout", type=float, metavar="SECONDS", help="For all of its attempts.")
@click.option("--heartbeat", type=float, metavar="SECONDS", help="An attempt that is silent for longer fails.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--memo", metavar="JSON|@FILE", help="A small note kept with it.")
@click.option("--wait", is_flag=True, help="Wait for its end; exit 1 unless it completes.")
@click.option("--wait-timeout", type=click.FloatRange(min=0), metavar="SECONDS", help="How long to wait at most.")
@revealing
@placed
def enqueue(place: Place, /, name: str, text: str | None, wait: bool, wait_timeout: float | None, **more: Any) -> None:
    """Have a worker execute the job NAME. It is durable when this returns.

    The options of its definition (retry, timeout, ...) are used by the worker; its queue, priority and expiry are not
    known here, where only the name is.
    """
    arguments = inputs.arguments(text)
    more["tags"] = inputs.tags(more["tags"]) or None
    more["memo"] = None if more["memo"] is None else inputs.read_json(more["memo"], "--memo")
    more["at"] = inputs.moment(more["at"], "--at")
    options = {key: value for key, value in more.items() if value is not None}
    seconds = wait_timeout if wait or wait_timeout is not None else 0.0
    document, code = asyncio.run(_enqueue(place, name, arguments, options, seconds))
    place.answer(document, lambda _: tell_run(document, "job"))
    raise SystemExit(code)


async def _enqueue(
    place: Place, name: str, arguments: list[Any], options: dict[str, Any], seconds: float | None
) -> tuple[dict[str, Any], int]:
    """The document and the exit code. `seconds`: how long to wait; 0 is not at all, None is for ever."""
    async with place.client(migrate=True) as client:
        handle = await client.enqueue(name, *arguments, **options)
        document: dict[str, Any] = {"id": handle.id, "run_id": str(handle.run_id), "job": name}
        if seconds == 0.0:
            document["state"] = str((await handle.describe()).state)
            return document, OK
        return await wait_for_end(handle, document, seconds)
