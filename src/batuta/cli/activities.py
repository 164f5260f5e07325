"""`batuta activities`: complete, fail and heartbeat those that wait for an answer from outside."""

from __future__ import annotations

import asyncio

import click

from batuta.cli import inputs
from batuta.cli.lazy import LazyGroup
from batuta.cli.place import Place, placed

activities = LazyGroup(
    "activities",
    {
        "complete": ("batuta.cli.activities:complete", "Give an activity its result."),
        "fail": ("batuta.cli.activities:fail", "Have an activity's attempt fail."),
        "heartbeat": ("batuta.cli.activities:heartbeat", "Say that an activity is alive."),
    },
    help="Complete, fail and heartbeat activities from outside, by token.",
)


@click.command()
@click.argument("token")
@click.argument("value", metavar="[JSON|@FILE|@-]", required=False)
@placed
def complete(place: Place, token: str, value: str | None) -> None:
    """Give the activity whose attempt TOKEN names its result: JSON, null without it."""
    result = None if value is None else inputs.read_json(value, "the result")

    async def send() -> None:
        async with place.client() as client:
            await client.complete(token, result)

    asyncio.run(send())
    place.answer({"token": token, "sent": "complete"}, lambda _: click.echo("completed"))


@click.command()
@click.argument("token")
@click.argument("message", default="failed from outside")
@click.option("--no-retry", is_flag=True, help="Do not try again, whatever the activity's policy says.")
@placed
def fail(place: Place, token: str, message: str, no_retry: bool) -> None:
    """Have the attempt that TOKEN names fail with MESSAGE; it is tried again as its policy says."""
    from batuta.errors import NonRetryable

    async def send() -> None:
        async with place.client() as client:
            await client.fail(token, NonRetryable(message) if no_retry else message)

    asyncio.run(send())
    place.answer({"token": token, "sent": "fail"}, lambda _: click.echo("failed"))


@click.command()
@click.argument("token")
@click.argument("details", metavar="[JSON|@FILE|@-]", required=False)
@placed
def heartbeat(place: Place, token: str, details: str | None) -> None:
    """Say that the attempt that TOKEN names is alive; DETAILS are for its next attempt."""
    read = None if details is None else inputs.read_json(details, "the details")

    async def send() -> None:
        async with place.client() as client:
            await client.heartbeat(token, read)

    asyncio.run(send())
    place.answer({"token": token, "sent": "heartbeat"}, lambda _: click.echo("noted"))
