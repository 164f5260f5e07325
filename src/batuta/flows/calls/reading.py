"""Reads a run of a flow: every run of its chain, with journal and attempts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from batuta.authoring.backend import Description, JournalLine
from batuta.bus.subscriptions import Subscription
from batuta.errors import UnknownRun
from batuta.flows.models import FLOW, FlowStart, FlowState
from batuta.flows.views import FlowRun, Link, flow_run, has_begun, is_long, joined, told_in_order
from batuta.ids import RunId

MOST_PARTS: Final = 10
"""Runs of a long list whose steps are shown, the last ones."""
MOST_TRIES: Final = 20
"""Of a run that was retried, whose logs are shown, the last ones."""
MOST_RUNS: Final = 100
"""Of one chain: the last ones, and the first one."""
_PAGE, _MOST_PAGES = 1_000, 20


class Client(Protocol):
    """The part of a client that flows use."""

    @property
    def bus(self) -> Any: ...
    @property
    def flows(self) -> Any: ...
    async def get(self, id: str, workflow: None = None) -> Any: ...
    async def get_run(self, run_id: Any, workflow: None = None) -> Any: ...
    async def list(self, /, **where: Any) -> Any: ...
    def worker(self, **parts: Any) -> Any: ...
    async def audit(self, *, target: str | None = None, limit: int = 50) -> Any: ...
    async def limit_queue(self, name: str, /, **limits: Any) -> None: ...
    async def keep_for(self, subscription: Subscription) -> None: ...


async def read_run(
    client: Client,
    handle: Any,
    first: Callable[[Description], Awaitable[RunId | None]],
    awaited: Callable[[Description], Awaitable[FlowStart | None]] | None = None,
    *,
    with_tries: bool = False,
) -> FlowRun:
    """The whole run that this is the last run of. A retry has the journal of the run before it, as far as it is kept;
    a run that continued as new has its own alone. `first`: finds the first run of its chain; `awaited`: what a run
    begins with that has not begun. `with_tries`: with what was said about the tries before this one."""
    last = await _link(handle)
    if not has_begun(last.journal):
        return flow_run([last], None if awaited is None else await awaited(last.description))
    goes_on = _goes_on(last.journal)
    if not goes_on and (last.description.forked_from is None or not with_tries):
        return flow_run([last])
    links = await (_links(client, last, await first(last.description)) if goes_on else _tries(client, last))
    origins = [link.description.forked_from for link in links]
    tries = [_until(links[: place + 1]) for place, link in enumerate(links[:-1]) if link.description.run_id in origins]
    views = [flow_run(one) for one in [*(tries[-MOST_TRIES:] if with_tries else ()), _until(links)]]
    return told_in_order(views) if with_tries else views[-1]


async def _tries(client: Client, last: Link) -> list[Link]:
    """The tries before this one, as far as they are kept, the oldest first; and this one."""
    links = [last]
    while (origin := links[0].description.forked_from) is not None and len(links) <= MOST_TRIES:
        try:
            handle = await client.get_run(origin)
            if handle.id != last.description.id:
                break  # a copy of another run
            links.insert(0, await _past(handle, last.description))
        except UnknownRun:
            break
    return links


async def _links(client: Client, last: Link, first: RunId | None) -> list[Link]:
    """All runs of its id, the oldest first: those that continued, and the tries of each."""
    described = last.description
    ids = [run_id for run_id in await _runs(client, described, MOST_RUNS) if run_id != described.run_id][::-1]
    if first is not None and first not in (*ids, described.run_id):
        ids.insert(0, first)
    links: list[Link] = []
    for run_id in ids:
        with suppress(UnknownRun):  # it is deleted meanwhile
            links.append(await _past(await client.get_run(run_id), described))
    return [*links, last]


def _until(links: Sequence[Link]) -> list[Link]:
    """Those that the last one goes on from: without the tries that were retried."""
    origins = {link.description.forked_from for link in links}
    return [link for link in links if link.description.run_id not in origins]


async def with_parts(client: Client, view: FlowRun, last: Description) -> FlowRun:
    """The same with the steps that runs of their own did for long lists, the last of them: for any run of its id."""
    if not any(is_long(step) for step in view.steps):
        return view
    parts: dict[tuple[str, int], FlowRun] = {}
    for parent in await _runs(client, last, MOST_TRIES):
        page = await client.list(workflow=FLOW, parent=parent, limit=MOST_PARTS)
        for run in page.runs if len(parts) < MOST_PARTS else ():
            part = flow_run([await _link(await client.get_run(run.run_id))])
            if part.start is not None and part.start.part is not UNSET:
                parts.setdefault((part.start.part.step, part.start.part.offset), part)
    return joined(view, parts)


async def _runs(client: Client, last: Description, most: int) -> list[RunId]:
    """The last runs of its id, newest first. Pages also have the runs that they began: their ids begin with it."""
    found, cursor = [last.run_id], None
    for _ in range(_MOST_PAGES):
        page = await client.list(workflow=last.workflow, id_prefix=last.id, limit=_PAGE, cursor=cursor)
        found += [run.run_id for run in page.runs if run.id == last.id and run.run_id not in found]
        cursor = page.cursor
        if cursor is None or len(found) >= most:
            break
    return found[:most]


async def _link(handle: Any) -> Link:
    return Link(await handle.describe(), await handle.journal(), await handle.attempts())


async def _past(handle: Any, later: Description) -> Link:
    """A run that another one went on from: its description and its attempts would be those of the last run."""
    found = await handle.timeline()
    description = msgspec.structs.replace(
        later,
        run_id=found.run_id,
        state=found.state,
        reason="",
        created_at=found.created_at,
        closed_at=found.closed_at,
        forked_from=found.forked_from,
    )
    attempts = [attempt for step in found.steps for attempt in step.attempts]
    return Link(description, await handle.journal(), attempts)


def _goes_on(journal: Sequence[JournalLine]) -> bool:
    """Whether another run of its chain was before it."""
    value = next((line.body.value for line in journal if line.body.start is not UNSET), UNSET)
    if value is UNSET:
        return False
    try:
        [start] = msgspec.json.decode(value, type=tuple[FlowStart])
    except (msgspec.MsgspecError, RecursionError):
        return False
    return isinstance(start.state, FlowState)
