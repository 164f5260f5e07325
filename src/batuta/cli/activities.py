"""`batuta activities`: complete, fail and heartbeat activities that wait for an answer from outside."""

from __future__ import annotations

import click

from batuta.cli.common import inputs
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import CommonOptions, with_common_options
from batuta.errors import NonRetryable

activities = LazyGroup(
    "activities",
    {
        "complete": ("batuta.cli.activities:complete", "Give an activity its result."),
        "fail": ("batuta.cli.activities:fail", "Fail an attempt of an activity."),
        "heartbeat": ("batuta.cli.activities:heartbeat", "Report that an activity is alive."),
    },
    help="Complete, fail and heartbeat activities from outside, by token.",
)


@click.command()
@click.argument("token", metavar="TOKEN|@FILE|@-")
@click.argument("value", metavar="[JSON|@FILE|@-]", required=False)
@with_common_options
def complete(common: CommonOptions, token: str, value: str | None) -> None:
    """Complete the attempt of TOKEN with a result: JSON, or null without it."""
    result = None if value is None else inputs.read_json(value, "the result")

    token = inputs.read_token(token)
    common.ask(lambda client: client.complete(token, result))
    common.tell({"token": token, "sent": "complete"}, "completed")


@click.command()
@click.argument("token", metavar="TOKEN|@FILE|@-")
@click.argument("message", default="failed from outside")
@click.option("--no-retry", is_flag=True, help="Do not retry, whatever the activity's policy is.")
@with_common_options
def fail(common: CommonOptions, token: str, message: str, no_retry: bool) -> None:
    """Fail the attempt of TOKEN with MESSAGE. It is retried by its policy."""
    token = inputs.read_token(token)
    common.ask(lambda client: client.fail(token, NonRetryable(message) if no_retry else message))
    common.tell({"token": token, "sent": "fail"}, "failed")


@click.command()
@click.argument("token", metavar="TOKEN|@FILE|@-")
@click.argument("details", metavar="[JSON|@FILE|@-]", required=False)
@with_common_options
def heartbeat(common: CommonOptions, token: str, details: str | None) -> None:
    """Report that the attempt of TOKEN is alive. The next attempt gets DETAILS."""
    read = None if details is None else inputs.read_json(details, "the details")

    token = inputs.read_token(token)
    common.ask(lambda client: client.heartbeat(token, read))
    common.tell({"token": token, "sent": "heartbeat"}, "noted")
