"""`batuta status`: workers, queues, and what needs a person, on one screen."""

from __future__ import annotations

from typing import Any

import click

from batuta.cli.common.target import CommonOptions, with_common_options


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
    from batuta.authoring.client.documents import read_status

    found = common.ask(lambda client: read_status(client, tries))

    def human(console: Any) -> None:
        from batuta.cli.output.status import status_view

        console.print(status_view(found, common.namespace))

    common.answer(found.document(), human)
