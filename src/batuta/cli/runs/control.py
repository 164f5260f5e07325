"""`batuta runs pause`, `resume`, `cancel`, `terminate`, `retry` and `delete`: one run by its id, or many by filters."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import click

from batuta.authoring.client.handle import Handle
from batuta.cli.common.options import CommonOptions, with_common_options
from batuta.cli.common.runs import apply, ask_run, is_one, selecting
from batuta.errors import InvalidInput

R = TypeVar("R")


@click.command()
@selecting
@with_common_options
def pause(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Pause the run ID, or all that match: calls in flight finish, nothing new begins, nothing is lost."""
    done = f"run {id} will be paused when its activities in flight have ended"
    _request(common, "pause", id, reason, which, lambda run: run.pause(reason), done, f"run {id} is already paused")


@click.command()
@selecting
@with_common_options
def resume(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Resume the paused run ID, or all that match."""
    before = f"run {id} is not paused"
    _request(common, "resume", id, reason, which, lambda run: run.resume(reason), f"run {id} goes on", before)


@click.command()
@selecting
@click.option("--again", is_flag=True, help="Cancel again a run that ignored the first cancel or takes too long.")
@with_common_options
def cancel(common: CommonOptions, /, id: str | None, reason: str, again: bool, **which: Any) -> None:
    """Cancel the run ID, or all that match. Its code may clean up first, and may refuse."""
    if again and id is None:
        raise InvalidInput("--again is for one run: give its id")
    before = f"run {id} was already cancelled: use --again to cancel it once more"
    _request(
        common,
        "cancel",
        id,
        reason,
        which,
        lambda run: run.cancel(reason, again=again),
        f"asked run {id} to end",
        before,
    )


@click.command()
@selecting
@with_common_options
def terminate(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Terminate the run ID, or all that match, at once, without telling its code: nothing is cleaned up."""
    said = ({"state": "terminated"}, f"terminated run {id}")
    _operate(common, "terminate", id, reason, which, lambda run: run.terminate(reason), lambda _: said)


@click.command()
@selecting
@with_common_options
def retry(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Try the run ID again, or all that match: a parked run (needs_code, poisoned), also with the same code, or a
    failed one."""
    said = ({"requested": "retry"}, f"run {id} will be tried again")
    _operate(common, "retry", id, reason, which, lambda run: run.retry(reason), lambda _: said)


@click.command()
@selecting
@with_common_options
def delete(common: CommonOptions, /, id: str | None, reason: str, **which: Any) -> None:
    """Delete the closed run ID, or all that match, with its chain, its children and everything that belongs to them.

    A single run needs --yes, too, because a deletion is final.
    """
    if id is not None and not which["yes"]:
        raise InvalidInput(f"run {id!r} would be deleted for good: add --yes to delete it")

    def said(gone: int) -> tuple[dict[str, Any], str]:
        return {"deleted": gone}, f"deleted run {id}" + (f", and {gone - 1} that belong to it" if gone > 1 else "")

    _operate(common, "delete", id, reason, which, lambda run: run.delete(reason), said)


def _request(
    common: CommonOptions,
    verb: str,
    id: str | None,
    reason: str,
    which: dict[str, Any],
    do: Callable[[Handle[Any]], Awaitable[bool]],
    done: str,
    before: str,
) -> None:
    """`done`: what the run is asked for now; `before`: what is said of a run that was asked before."""

    def said(news: bool) -> tuple[dict[str, Any], str]:
        return {"requested": verb, "news": news}, done if news else before

    _operate(common, verb, id, reason, which, do, said)


def _operate(
    common: CommonOptions,
    verb: str,
    id: str | None,
    reason: str,
    which: dict[str, Any],
    do: Callable[[Handle[Any]], Awaitable[R]],
    said: Callable[[R], tuple[dict[str, Any], str]],
) -> None:
    """Do it to one run or to many. `said`: what is told of one, as JSON and for people."""
    if not is_one(id, which) or id is None:
        apply(common, verb, which, lambda selection: selection.apply(verb, reason))
        return

    async def work(run: Handle[Any]) -> tuple[R, str]:
        return await do(run), str(run.run_id)  # of a retry: of the run that goes on

    answer, run_id = ask_run(common, id, work)
    document, sentence = said(answer)
    common.tell({"id": id, "run_id": run_id} | document, sentence)
