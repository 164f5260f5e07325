"""`batuta runs pause`, `resume`, `cancel`, `terminate`, `retry` and `delete`: one run by its id, or many by filters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.place import Place, placed
from batuta.cli.redacting import say
from batuta.cli.selecting import apply, is_one, selecting
from batuta.errors import InvalidInput

if TYPE_CHECKING:
    from batuta.authoring.handle import Handle


@click.command()
@selecting
@placed
def pause(place: Place, /, id: str | None, reason: str, **which: Any) -> None:
    """Hold the run ID, or all that match: what is in flight comes to its end, nothing new begins, nothing is lost."""
    _operate(place, "pause", id, reason, which, lambda run: run.pause(reason), _said_pause)


@click.command()
@selecting
@placed
def resume(place: Place, /, id: str | None, reason: str, **which: Any) -> None:
    """Let the paused run ID, or all that match, go on."""
    _operate(place, "resume", id, reason, which, lambda run: run.resume(reason), _said_resume)


@click.command()
@selecting
@click.option("--again", is_flag=True, help="Ask a run that was asked before, and went on or takes too long.")
@placed
def cancel(place: Place, /, id: str | None, reason: str, again: bool, **which: Any) -> None:
    """Ask the run ID, or all that match, to end. Its code may clean up first, and may refuse."""
    if again and id is None:
        raise InvalidInput("--again is for one run: give its id")
    _operate(place, "cancel", id, reason, which, lambda run: run.cancel(reason, again=again), _said_cancel)


@click.command()
@selecting
@placed
def terminate(place: Place, /, id: str | None, reason: str, **which: Any) -> None:
    """End the run ID, or all that match, at once. Its code is not told: nothing is cleaned up."""
    _operate(place, "terminate", id, reason, which, lambda run: run.terminate(reason), _said_terminate)


@click.command()
@selecting
@placed
def retry(place: Place, /, id: str | None, reason: str, **which: Any) -> None:
    """Let the parked run ID (needs_code, poisoned), or all that match, be tried again, by the same code, too."""
    _operate(place, "retry", id, reason, which, lambda run: run.retry(reason), _said_retry)


@click.command()
@selecting
@placed
def delete(place: Place, /, id: str | None, reason: str, **which: Any) -> None:
    """Delete the closed run ID, or all that match, with its chain, its children and all that belongs to them.

    One run needs --yes, too: it cannot be brought back.
    """
    if id is not None and not which["yes"]:
        raise InvalidInput(f"run {id!r} would be gone for ever: say --yes to delete it")
    _operate(place, "delete", id, reason, which, lambda run: run.delete(reason), _said_delete)


Said = tuple[dict[str, Any], str]
"""What is printed: as JSON, and for people."""


def _operate(
    place: Place,
    verb: str,
    id: str | None,
    reason: str,
    which: dict[str, Any],
    do: Callable[[Handle[Any]], Awaitable[Any]],
    said: Callable[[str, Any], Said],
) -> None:
    if not is_one(id, which) or id is None:
        apply(place, verb, which, lambda selection: selection.apply(verb, reason))
        return
    run_id, answer = asyncio.run(_do(place, id, do))
    document, sentence = said(id, answer)
    place.answer({"id": id, "run_id": run_id} | document, lambda _: say(sentence))


async def _do(place: Place, id: str, do: Callable[[Handle[Any]], Awaitable[Any]]) -> tuple[str, Any]:
    async with place.client() as client:
        handle: Handle[Any] = await client.get(id)
        answer = await do(handle)
        return str(handle.run_id), answer  # of a retry: of the run that goes on


def _said_pause(id: str, news: bool) -> Said:
    text = f"run {id} is held, as soon as what is in flight has ended" if news else f"run {id} is held already"
    return {"requested": "pause", "news": news}, text


def _said_resume(id: str, news: bool) -> Said:
    return {"requested": "resume", "news": news}, f"run {id} goes on" if news else f"run {id} is not held"


def _said_cancel(id: str, news: bool) -> Said:
    before = f"run {id} was asked to end before, and hears it once: --again asks it once more"
    return {"requested": "cancel", "news": news}, f"asked run {id} to end" if news else before


def _said_terminate(id: str, _: None) -> Said:
    return {"state": "terminated"}, f"terminated run {id}"


def _said_retry(id: str, _: object) -> Said:
    return {"requested": "retry"}, f"run {id} will be tried again"


def _said_delete(id: str, gone: int) -> Said:
    return {"deleted": gone}, f"deleted run {id}" + (f", and {gone - 1} that belong to it" if gone > 1 else "")
