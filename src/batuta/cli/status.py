"""`batuta status`: workers, queues, and what needs a person, on one screen."""

from __future__ import annotations

import click

from batuta.authoring.client.documents import read_status
from batuta.cli import output
from batuta.cli.common.options import CommonOptions, with_common_options


@click.command()
@click.option(
    "--tries",
    type=click.IntRange(1, 1_000_000),
    default=5,
    show_default=True,
    metavar="N",
    help="Also count runs with an activity that failed more than N times.",
)
@with_common_options
def status(common: CommonOptions, tries: int) -> None:
    """Show workers, queues and what needs a person: parked, paused and retrying runs, and dead letters."""
    found = common.ask(lambda client: read_status(client, tries))
    common.show(found.document(), lambda: output.status.status_view(found, common.namespace))
