"""`batuta queues`: what waits and runs in them, their limits, pause and resume."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batuta.authoring.client.documents import queue_document
from batuta.cli import output
from batuta.cli.common.lazy import LazyGroup
from batuta.cli.common.options import REASON, CommonOptions, with_common_options, with_options
from batuta.errors import InvalidInput, UnknownQueue
from batuta.journal.queues import LIMITS, QueueInfo, is_rate, limit_help

if TYPE_CHECKING:
    from batuta.client import Batuta

queues = LazyGroup(
    "queues",
    {
        "limit": ("batuta.cli.queues:limit", "Set limits for all workers together."),
        "list": ("batuta.cli.queues:list_queues", "List queues: waiting and running work, limits."),
        "pause": ("batuta.cli.queues:pause", "Pause a queue: workers begin nothing more from it."),
        "resume": ("batuta.cli.queues:resume", "Resume a paused queue."),
        "show": ("batuta.cli.queues:show", "One queue."),
    },
    help="List, show, limit, pause and resume queues.",
)

_NONE = "none"


def _option(limit: str) -> str:
    return f"--{limit.replace('_', '-')}"


_limit_options = with_options(
    *(
        click.option(_option(name), metavar="RATE|none" if is_rate(name) else "N|none", help=told)
        for name, told in limit_help().items()
    )
)


@click.command("list")
@with_common_options
def list_queues(common: CommonOptions) -> None:
    """List queues that have limits, are paused, or have open runs or workers."""
    found = common.ask(lambda client: client.queues())
    document = {"queues": [queue_document(queue) for queue in found]}
    common.show(document, lambda: output.tables.queues_table(found))


@click.command()
@click.argument("name")
@with_common_options
def show(common: CommonOptions, name: str) -> None:
    """Show the queue NAME."""
    _answer(common, common.ask(lambda client: _find(client, name)))


@click.command()
@click.argument("name")
@_limit_options
@REASON
@with_common_options
def limit(common: CommonOptions, /, name: str, reason: str, **given: str | None) -> None:
    """Set limits of the queue NAME. Limits that you leave out stay; `none` removes one.

    They apply to all workers together, from the next claim on. A worker that declares limits for the queue in its code
    sets them again when it starts.
    """
    limits: dict[str, Any] = {option: _limit(option, text) for option, text in given.items() if text is not None}
    if not limits:
        raise InvalidInput(f"nothing to set: give one of {', '.join(map(_option, LIMITS))}")
    _answer(common, _change(common.because(reason), name, "limit_queue", **limits))


@click.command()
@click.argument("name")
@REASON
@with_common_options
def pause(common: CommonOptions, name: str, reason: str) -> None:
    """Pause the queue NAME: workers begin nothing more from it. Running work goes on."""
    _answer(common, _change(common, name, "pause_queue", reason=reason))


@click.command()
@click.argument("name")
@REASON
@with_common_options
def resume(common: CommonOptions, name: str, reason: str) -> None:
    """Resume the paused queue NAME."""
    _answer(common, _change(common.because(reason), name, "resume_queue", is_known=True))


def _limit(option: str, text: str) -> str | int | None:
    if text.lower() == _NONE:
        return None
    if is_rate(option):
        return text
    try:
        return int(text)
    except ValueError:
        raise InvalidInput(f"{_option(option)} {text!r} must be a whole number, or {_NONE}") from None


async def _find(client: Batuta, name: str) -> QueueInfo:
    for found in await client.queues():
        if found.name == name:
            return found
    raise UnknownQueue(name)


def _change(common: CommonOptions, name: str, verb: str, *, is_known: bool = False, **values: Any) -> QueueInfo:
    async def change(client: Batuta) -> QueueInfo:
        if is_known:
            await _find(client, name)
        await getattr(client, verb)(name, **values)
        try:
            return await _find(client, name)
        except UnknownQueue:  # it is empty, and no longer has limits
            return QueueInfo(name)

    # Create no tables: in a database without workers, a pause has no effect.
    return common.ask(change)


def _answer(common: CommonOptions, found: QueueInfo) -> None:
    common.show(queue_document(found), lambda: output.tables.queue_table(found))
