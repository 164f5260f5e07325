"""`batuta runs pause`, `resume`, `cancel`, `terminate`, `retry` and `delete`: one run by its id, or many by filters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import click

from batuta.cli.common.redaction import say
from batuta.cli.common.run_lookup import ask_run
from batuta.cli.common.selection import apply, is_one, selecting
from batuta.cli.common.target import CommonOptions, with_common_options
from batuta.errors import InvalidInput

if TYPE_CHECKING:
    from batuta.authoring.client.handle import Handle


@click.command()
@selecting
@with_common_options
def pause(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Pause the run ID, or all that match: calls in flight finish, nothing new begins, nothing is lost."""
    _operate(common, "pause", id, reason, which, lambda run: run.pause(reason), _said_pause)


@click.command()
@selecting
@with_common_options
def resume(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Resume the paused run ID, or all that match."""
    _operate(common, "resume", id, reason, which, lambda run: run.resume(reason), _said_resume)


@click.command()
@selecting
@click.option("--again", is_flag=True, help="Cancel again a run that ignored the first cancel or takes too long.")
@with_common_options
def cancel(common: CommonOptions, /, id: str | None, reason: str, again: bool, **which: Any) -> None:
    """Cancel the run ID, or all that match. Its code may clean up first, and may refuse."""
    if again and id is None:
        raise InvalidInput("--again is for one run: give its id")
    _operate(common, "cancel", id, reason, which, lambda run: run.cancel(reason, again=again), _said_cancel)


@click.command()
@selecting
@with_common_options
def terminate(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Terminate the run ID, or all that match, at once, without telling its code: nothing is cleaned up."""
    _operate(common, "terminate", id, reason, which, lambda run: run.terminate(reason), _said_terminate)


@click.command()
@selecting
@with_common_options
def retry(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Try the run ID again, or all that match: a parked run (needs_code, poisoned), also with the same code, or a
    failed one."""
    _operate(common, "retry", id, reason, which, lambda run: run.retry(reason), _said_retry)


@click.command()
@selecting
@with_common_options
def delete(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Delete the closed run ID, or all that match, with its chain, its children and everything that belongs to them.

    A single run needs --yes, too, because a deletion is final.
    """
    if id is not None and not which["yes"]:
        raise InvalidInput(f"run {id!r} would be deleted for good: add --yes to delete it")
    _operate(common, "delete", id, reason, which, lambda run: run.delete(reason), _said_delete)


Said = tuple[dict[str, Any], str]
"""The output: as JSON, and for people."""


def _operate(
    common: CommonOptions,
    verb: str,
    id: str | None,
    reason: str,
    which: dict[str, Any],
    do: Callable[[Handle[Any]], Awaitable[Any]],
    said: Callable[[str, Any], Said],
) -> None:
    if not is_one(id, which) or id is None:
        apply(common, verb, which, lambda selection: selection.apply(verb, reason))
        return

    async def work(run: Handle[Any]) -> tuple[Any, str]:
        return await do(run), str(run.run_id)  # of a retry: of the run that goes on

    answer, run_id = ask_run(common, id, work)
    document, sentence = said(id, answer)
    common.answer({"id": id, "run_id": run_id} | document, lambda _: say(sentence))


def _said_pause(id: str, news: bool) -> Said:
    text = (
        f"run {id} will be paused when its activities in flight have ended" if news else f"run {id} is already paused"
    )
    return {"requested": "pause", "news": news}, text


def _said_resume(id: str, news: bool) -> Said:
    return {"requested": "resume", "news": news}, f"run {id} goes on" if news else f"run {id} is not paused"


def _said_cancel(id: str, news: bool) -> Said:
    before = f"run {id} was already cancelled: use --again to cancel it once more"
    return {"requested": "cancel", "news": news}, f"asked run {id} to end" if news else before


def _said_terminate(id: str, _: None) -> Said:
    return {"state": "terminated"}, f"terminated run {id}"


def _said_retry(id: str, _: object) -> Said:
    return {"requested": "retry"}, f"run {id} will be tried again"


def _said_delete(id: str, gone: int) -> Said:
    return {"deleted": gone}, f"deleted run {id}" + (f", and {gone - 1} that belong to it" if gone > 1 else "")
