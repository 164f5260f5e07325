"""Reads a run of a flow: every run of its chain, with journal and attempts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from batuta.authoring.backend import Description, JournalLine
from batuta.errors import UnknownRun
from batuta.flows.models import FLOW, FlowStart, FlowState
from batuta.flows.views import FlowRun, Link, flow_run, has_begun, is_long, joined, told_in_order
from batuta.ids import RunId

MOST_PARTS: Final = 10
"""Runs of a long list whose steps are shown, the last ones."""
MOST_TRIES: Final = 20
"""Of a run that was retried, whose logs are shown, the last ones."""
MOST_RUNS: Final = 100
"""Of one chain: the first ones and what follows them."""


class Client(Protocol):
    """The part of a client that finds runs."""

    async def get_run(self, run_id: Any, workflow: None = None) -> Any: ...
    async def list(self, /, **where: Any) -> Any: ...


async def read_run(
    client: Client,
    handle: Any,
    first: Callable[[Description], Awaitable[RunId | None]],
    awaited: Callable[[Description], Awaitable[FlowStart | None]] | None = None,
) -> FlowRun:
    """The whole run that this is the last run of. A retry has the journal of the run before it, as far as it is kept;
    a run that continued as new has its own alone. `first`: finds the first run of its chain; `awaited`: what a run
    begins with that has not begun."""
    last = await _link(handle)
    if not has_begun(last.journal):
        return flow_run([last], None if awaited is None else await awaited(last.description))
    if not _goes_on(last.journal):
        return flow_run([last])
    links: list[Link] = []
    following = await first(last.description)
    while following is not None and len(links) < MOST_RUNS:
        one = await client.get_run(following)
        links.append(await _link(one))
        following = (await one.timeline()).continued_as
    return flow_run(links or [last])


async def with_parts(client: Client, view: FlowRun, run_ids: Sequence[RunId]) -> FlowRun:
    """The same with the steps that runs of their own did for long lists, the last of them. `run_ids`: of its chain."""
    if not any(is_long(step) for step in view.steps):
        return view
    parts: list[FlowRun] = []
    for run_id in run_ids:
        page = await client.list(workflow=FLOW, parent=run_id, limit=MOST_PARTS)
        for run in page.runs:
            part = flow_run([await _link(await client.get_run(run.run_id))])
            if part.start is not None and part.start.part is not UNSET:
                parts.append(part)
    return joined(view, parts)


async def with_tries(client: Client, view: FlowRun, handle: Any) -> FlowRun:
    """The same with what was said about the tries before this one, as far as they are kept."""
    described, tries = await handle.describe(), [view]
    while described.forked_from is not None and len(tries) < MOST_TRIES:
        try:
            one = await client.get_run(described.forked_from)
            found = await one.timeline()
            if found.id != described.id:
                break  # a copy of another run
            described = _as_it_was(described, found)
            tries.append(flow_run([Link(described, await one.journal(), await one.attempts())]))
        except UnknownRun:
            break
    return told_in_order(tries[::-1])


def _as_it_was(later: Description, found: Any) -> Description:
    """The run of this timeline: its description is that of the last try."""
    return msgspec.structs.replace(
        later,
        run_id=found.run_id,
        state=found.state,
        reason="",
        created_at=found.created_at,
        closed_at=found.closed_at,
        forked_from=found.forked_from,
    )


async def _link(handle: Any) -> Link:
    return Link(await handle.describe(), await handle.journal(), await handle.attempts())


def _goes_on(journal: Sequence[JournalLine]) -> bool:
    """Whether another run of its chain was before it."""
    value = next((line.body.value for line in journal if line.body.start is not UNSET), UNSET)
    if value is UNSET:
        return False
    try:
        [start] = msgspec.json.decode(value, type=tuple[FlowStart])
    except msgspec.MsgspecError:
        return False
    return isinstance(start.state, FlowState)
