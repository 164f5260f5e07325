"""Reads a run of a flow: every run of its chain, with journal and attempts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final, Protocol

import msgspec
from msgspec import UNSET

from batuta.authoring.backend import Description, JournalLine
from batuta.flows.models import FlowStart, FlowState
from batuta.flows.views import FlowRun, Link, flow_run
from batuta.ids import RunId

MOST_RUNS: Final = 100
"""Of one chain: the first ones and what follows them."""


class Client(Protocol):
    """The part of a client that finds runs."""

    async def get_run(self, run_id: Any, workflow: None = None) -> Any: ...


async def read_run(client: Client, handle: Any, first: Callable[[Description], Awaitable[RunId | None]]) -> FlowRun:
    """The whole run that this is the last run of. A retry has the journal of the run before it, as far as it is kept;
    a run that continued as new has its own alone. `first`: finds the first run of its chain."""
    last = await _link(handle)
    if not _goes_on(last.journal):
        return flow_run([last])
    links: list[Link] = []
    following = await first(last.description)
    while following is not None and len(links) < MOST_RUNS:
        one = await client.get_run(following)
        links.append(await _link(one))
        following = (await one.timeline()).continued_as
    return flow_run(links or [last])


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
