"""The run that a command means: every command takes its id or its run id."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

from batuta.authoring.client.handle import Handle
from batuta.authoring.definitions import Workflow
from batuta.authoring.jobs import Job
from batuta.errors import InvalidInput, UnknownRun
from batuta.ids import RunId
from batuta.journal.store import Store

if TYPE_CHECKING:
    from batuta.cli.common.target import CommonOptions
    from batuta.client import Batuta

R = TypeVar("R")


async def id_of(store: Store, target: str) -> str:
    """The id under which the audit log names a run that is given by its id or run id; else `target` itself."""
    with suppress(UnknownRun):
        return (await store.get(target)).id
    with suppress(UnknownRun, ValueError):
        return (await store.get_run(RunId(target))).id
    return target


def ask_run(common: CommonOptions, id: str, work: Callable[[Handle[Any]], Awaitable[R]], *, exact: bool = False) -> R:
    """The result of work with the run of an id or run id."""

    async def ask(client: Batuta) -> R:
        return await work(await find_run(client, id, exact=exact))

    return common.ask(ask)


async def find_run(
    client: Batuta, id: str, code: Workflow[..., Any] | Job[..., Any] | None = None, *, exact: bool = False
) -> Handle[Any]:
    """The last run of the id or, if there is none, the run of that run id. `exact`: only the latter."""
    if exact:
        return await client.get_run(id, code)
    try:
        return await client.get(id, code)
    except UnknownRun:
        with suppress(UnknownRun, InvalidInput):
            return await client.get_run(id, code)
        raise
