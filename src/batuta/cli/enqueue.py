"""`batuta jobs enqueue`."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from batuta.cli.common import inputs
from batuta.cli.common.lazy import OK
from batuta.cli.common.options import duration_option
from batuta.cli.common.redaction import revealing
from batuta.cli.common.target import CommonOptions, with_common_options
from batuta.cli.runs.start import state_of, tell_run, wait_for_end
from batuta.journal.records import IfExists


@click.command()
@click.argument("name")
@click.option(
    "--input",
    "-i",
    "text",
    metavar="JSON|@FILE|@-",
    help="The arguments, as an array; any other value is the only argument.",
)
@click.option("--id", "id", metavar="ID", help="Your id for the job.  [default: its run id]")
@click.option(
    "--if-exists", type=click.Choice([str(one) for one in IfExists]), help="With --id: what to do when the id is taken."
)
@click.option("--queue", "-q", metavar="NAME", help="[default: default]")
@click.option("--priority", type=int, metavar="N", help="Higher goes first.  [default: 0]")
@duration_option("--delay", "Do not begin before this time has passed.")
@click.option("--at", metavar="TIME", help="Do not begin before this time (ISO 8601).")
@click.option("--unique", metavar="KEY", help="Return the waiting or running job of this name and key, if any.")
@duration_option("--unique-for", "With --unique: also return a job enqueued within this time.")
@duration_option("--debounce", "With --unique: begin only after this time without another call.")
@duration_option("--debounce-limit", "With --debounce: the longest delay.")
@click.option("--key", metavar="TEXT", help="The key for limits per key and fairness of the queue.")
@duration_option("--expires", "Time out if no worker has taken it by then.")
@duration_option("--timeout", "Limit for one attempt.")
@duration_option("--total-timeout", "Limit for all attempts together.")
@duration_option("--heartbeat", "Fail an attempt without a heartbeat for this long.")
@click.option("--tag", "tags", multiple=True, metavar="KEY=VALUE", help="Repeatable.")
@click.option("--memo", metavar="JSON|@FILE", help="A small JSON value kept with the job.")
@click.option("--wait", is_flag=True, help="Wait until it ends; exit 1 unless it completes.")
@duration_option("--wait-timeout", "The longest wait.")
@revealing
@with_common_options
def enqueue(
    common: CommonOptions, /, name: str, text: str | None, wait: bool, wait_timeout: float | None, **more: Any
) -> None:
    """Enqueue the job NAME. It is durable when this returns.

    The worker uses the options of the job's definition (retry, timeout, ...). This command only knows the name, so give
    the queue, priority and expiry here.
    """
    arguments = inputs.arguments(text)
    more["tags"] = inputs.tags(more["tags"]) or None
    more["memo"] = None if more["memo"] is None else inputs.read_json(more["memo"], "--memo")
    more["at"] = inputs.moment(more["at"], "--at")
    options = {key: value for key, value in more.items() if value is not None}
    seconds = wait_timeout if wait or wait_timeout is not None else 0.0
    document, code = asyncio.run(_enqueue(common, name, arguments, options, seconds))
    common.answer(document, lambda _: tell_run(document, "job"))
    raise SystemExit(code)


async def _enqueue(
    common: CommonOptions, name: str, arguments: list[Any], options: dict[str, Any], seconds: float | None
) -> tuple[dict[str, Any], int]:
    """The document and the exit code. `seconds`: how long to wait; 0 is not at all, None is for ever."""
    async with common.client(migrate=True) as client:
        handle = await client.enqueue(name, *arguments, **options)
        document: dict[str, Any] = {"id": handle.id, "run_id": str(handle.run_id), "job": name}
        document["is_new"] = handle.is_new
        if seconds == 0.0:
            return {**document, **await state_of(handle)}, OK
        return await wait_for_end(handle, document, seconds)
