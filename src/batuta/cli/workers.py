"""`batuta workers`: host, queues, code and last heartbeat of workers."""

from __future__ import annotations

import click
import msgspec

from batuta.cli import output
from batuta.cli.common.options import CommonOptions, with_common_options
from batuta.errors import InvalidInput


@click.command()
@click.option("--code", "with_code", is_flag=True, help="Show all workflows, jobs and activities of each worker.")
@click.option("--schema", metavar="NAME", help="Show what one workflow or job takes, as JSON schemas.")
@with_common_options
def workers(common: CommonOptions, with_code: bool, schema: str | None) -> None:
    """List the workers of the namespace. A worker is live while its lease lasts; each heartbeat renews it."""
    if schema is not None:
        _show_schema(common, schema)
        return
    found = common.ask(lambda client: client.workers.list())
    note = "" if found else "no worker runs: start one with `batuta worker --app MODULE`"
    common.show({"workers": found}, lambda: output.status.workers_table(found, everything=with_code), note=note)


def _show_schema(common: CommonOptions, name: str) -> None:
    found = [one for one in common.ask(lambda client: client.workers.schemas()) if one.name == name]
    if not found:
        raise InvalidInput(f"no worker has published workflow or job {name!r}: start one that has it")
    common.tell({"schemas": found}, msgspec.json.format(msgspec.json.encode(found)).decode())
