"""`batuta queues`: what waits and runs in them, their limits, pause and resume."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.lazy import LazyGroup
from batuta.cli.place import Place, placed
from batuta.errors import InvalidInput, UnknownQueue

if TYPE_CHECKING:
    from batuta.authoring.queues import QueueInfo
    from batuta.client import Batuta

queues = LazyGroup(
    "queues",
    {
        "limit": ("batuta.cli.queues:limit", "Set limits that hold for all workers together."),
        "list": ("batuta.cli.queues:list_queues", "Every queue: what waits, what runs, its limits."),
        "pause": ("batuta.cli.queues:pause", "Let nothing more begin from a queue."),
        "resume": ("batuta.cli.queues:resume", "Let a paused queue go on."),
        "show": ("batuta.cli.queues:show", "One queue."),
    },
    help="List, show, limit, pause and resume queues.",
)

_NONE = "none"


@click.command("list")
@placed
def list_queues(place: Place) -> None:
    """Every queue that was limited or paused, or that has open runs or workers."""
    found = asyncio.run(_queues(place))

    def human(console: Any) -> None:
        from batuta.cli.tables import queues_table

        console.print(queues_table(found))

    place.answer({"queues": [_document(queue) for queue in found]}, human)


@click.command()
@click.argument("name")
@placed
def show(place: Place, name: str) -> None:
    """The queue NAME."""
    _answer(place, asyncio.run(_queue(place, name)))


@click.command()
@click.argument("name")
@click.option("--concurrency", metavar="N|none", help="Runs at once.")
@click.option("--key-concurrency", metavar="N|none", help="The same for each key.")
@click.option("--rate", metavar="RATE|none", help="Runs that begin in any period, such as 100/min.")
@click.option("--key-rate", metavar="RATE|none", help="The same for each key.")
@placed
def limit(place: Place, /, name: str, **given: str | None) -> None:
    """Set limits of the queue NAME; those that are left out stay, `none` takes one away.

    They hold for all workers together, from the next run that is taken on. A worker that declares limits for the queue
    in its code sets them again when it starts.
    """
    limits: dict[str, Any] = {option: _limit(option, text) for option, text in given.items() if text is not None}
    if not limits:
        raise InvalidInput("nothing to set: give --concurrency, --key-concurrency, --rate or --key-rate")
    _answer(place, asyncio.run(_change(place, name, "limit_queue", **limits)))


@click.command()
@click.argument("name")
@click.option("--note", default="", help="Why; shown with the queue.")
@placed
def pause(place: Place, name: str, note: str) -> None:
    """Let no worker begin anything more from the queue NAME. What is running goes on."""
    _answer(place, asyncio.run(_change(place, name, "pause_queue", note=note)))


@click.command()
@click.argument("name")
@placed
def resume(place: Place, name: str) -> None:
    """Let the paused queue NAME go on."""
    _answer(place, asyncio.run(_change(place, name, "resume_queue", is_known=True)))


def _limit(option: str, text: str) -> str | int | None:
    if text.lower() == _NONE:
        return None
    if option.endswith("rate"):
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"--{option.replace('_', '-')} {text!r} must be a whole number, or {_NONE}") from None


async def _queues(place: Place) -> Sequence[QueueInfo]:
    async with place.client() as client:
        return await client.queues()


async def _queue(place: Place, name: str) -> QueueInfo:
    async with place.client() as client:
        return await _find(client, name)


async def _find(client: Batuta, name: str) -> QueueInfo:
    for found in await client.queues():
        if found.name == name:
            return found
    raise UnknownQueue(name)


async def _change(place: Place, name: str, verb: str, *, is_known: bool = False, **values: Any) -> QueueInfo:
    # No tables are made: in a database that nobody works on, a pause would hold nobody back.
    async with place.client() as client:
        if is_known:
            await _find(client, name)
        await getattr(client, verb)(name, **values)
        try:
            return await _find(client, name)
        except UnknownQueue:  # it is empty, and has no limits any more
            from batuta.engine.queues import queue_info
            from batuta.journal.queues import QueueView

            return queue_info(QueueView(name=name))


def _answer(place: Place, found: QueueInfo) -> None:
    def human(console: Any) -> None:
        from batuta.cli.tables import queue_table

        console.print(queue_table(found))

    place.answer(_document(found), human)


def _document(queue: QueueInfo) -> dict[str, Any]:
    """As JSON: a rate is written as it is typed."""
    import msgspec

    document: dict[str, Any] = msgspec.to_builtins(queue)
    for name in ("rate", "key_rate"):
        rate = getattr(queue, name)
        document[name] = None if rate is None else str(rate)
    return document
