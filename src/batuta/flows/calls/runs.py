"""Runs of flows: started by hand, looked at, retried, cancelled, and the decisions that they wait for."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final, TypeVar
from uuid import UUID

from msgspec import Struct, json

from batuta.authoring.backend import Description
from batuta.authoring.services import FlowService
from batuta.durations import Duration
from batuta.errors import (
    FlowConflict,
    InvalidInput,
    PayloadSealed,
    StoreUnavailable,
    UnknownEvent,
    UnknownFlow,
    UnknownRun,
)
from batuta.flows.calls.catalog import Catalog, check_limit, no_cursor, uuid_or
from batuta.flows.calls.events import LONGEST_EXTERNAL_ID, Events
from batuta.flows.calls.reading import Client, read_run, with_parts
from batuta.flows.calls.triggers import Trigger, trigger_of
from batuta.flows.models import (
    DECIDE,
    EVENT_TAG,
    FLOW,
    NAME_TAG,
    WORKFLOW_TAG,
    Decision,
    Run,
    RunStatus,
    StepRun,
    StepStatus,
    derived_id,
    normalised_type,
    run_id_of,
    wait_prefix,
)
from batuta.flows.models import FlowStart as FlowStartArgument
from batuta.flows.views import STATES, flow_run_id, run_view
from batuta.flows.views import FlowRun as RunView
from batuta.ids import RunId
from batuta.journal.flows.records import EventRow, FlowRow, FlowRunFilter, NewEvent
from batuta.names import joined, shortened

APPROVAL: Final = "flow.approval"


class RunPage(Struct):
    """Some runs, newest first, and the cursor of the next page (None: that was the last). Runs that are part of others
    are left out, so that a page may be shorter than asked."""

    runs: list[RunView]
    cursor: str | None


class Started(Struct):
    """A run of a flow for an event."""

    run: Run
    is_new: bool
    """False: the event had begun it before."""


class Approval(Struct, kw_only=True):
    """A run that waits for a person."""

    run: Run
    name: str
    """Of the flow."""
    step: str
    step_run_id: str
    title: str
    data: Any
    since: datetime | None


T = TypeVar("T")
_Ids = list[str]
"""Named here: in the class `list` is a verb."""


class FlowRuns:
    """The runs of flows in one namespace: `client.flows.runs`."""

    def __init__(self, client: Client, backend: FlowService, catalog: Catalog, events: Events) -> None:
        self._client, self._backend, self._catalog, self._events = client, backend, catalog, events

    # -- starting

    async def start(
        self,
        workflow_id: object,
        event_id: object = None,
        *,
        payload: Mapping[str, Any] | None = None,
        source: str = "internal",
        external_id: str | None = None,
    ) -> Started:
        """Run a published flow for an event, once; without an event, for a new one with this payload, which starts
        nothing else; with an `external_id`, once for each of its source. Raises UnknownFlow, UnknownEvent,
        FlowConflict (it is a draft)."""
        if event_id is not None and payload is not None:
            raise InvalidInput("give event_id or payload: an event has its own payload")
        row = await self._catalog.row(workflow_id)
        if row.published_at is None:
            raise FlowConflict(f"flow {row.target} is a draft: publish it, then run it")
        trigger = trigger_of(row)
        if event_id is None:
            return await self._start_new(trigger, self._events.made(_type_of(row), payload, source, external_id))
        return await self._start_for(trigger, await self._events.row(event_id))

    async def begin(self, workflow_id: object, payload: Mapping[str, Any], source: str, external_id: str) -> str | None:
        """Begin a run for a new event, once for each external id of its source, as the flow's trigger says: its filter,
        its concurrency. The id of the run; None when it begins none."""
        row = await self._catalog.row(workflow_id)
        trigger = trigger_of(row)
        # An event of its own, whatever other flows of the topic begin: sent again, it begins no run that found no room.
        own_id = shortened(joined(external_id, row.name), LONGEST_EXTERNAL_ID)
        event = self._events.made(_type_of(row), payload, source, own_id)
        view = self._events.view(event)
        if not trigger.lets_in(view):
            return None
        asked = trigger.asks(view)
        new = NewEvent(event=event, starts=[self._events.start_of(asked)])
        accepted = await self._backend.accept(new, [asked.request])
        if accepted.is_stale:  # nothing is written: other events of its debounce key came all the time
            raise StoreUnavailable(f"the debounced runs of flow {row.name!r} change all the time: try again")
        where = FlowRunFilter(workflow_id=row.workflow_id, event_ids=(accepted.event.event_id,))
        links = await self._backend.store.flow_runs(where, limit=1)
        return run_id_of(str(row.workflow_id), str(accepted.event.event_id)) if links else None

    async def _start_for(self, trigger: Trigger, event: EventRow) -> Started:
        asked = trigger.asks(self._events.view(event), by_hand=True)
        link, is_new = await self._backend.store.start_flow_run(event.event_id, self._events.start_of(asked))
        return Started((await self.of_chain(link.chain_id)).run, is_new)

    async def _start_new(self, trigger: Trigger, event: EventRow) -> Started:
        asked = trigger.asks(self._events.view(event), by_hand=True)
        start = self._events.start_of(asked)
        accepted = await self._backend.accept(NewEvent(event=event, starts=[start]), [asked.request])
        if not accepted.is_new:  # this flow has begun for it, or another of the same topic
            return await self._start_for(trigger, accepted.event)
        return Started((await self.of_chain(start.run.run_id)).run, True)

    # -- looking

    async def _read(self, asked: Awaitable[Any]) -> RunView:
        """Without the first step of one that has not begun: lists do not show it."""
        return await read_run(self._client, await asked, self._first)

    async def _first(self, run: Description) -> RunId | None:
        """The first run of its chain."""
        event, flow = run.tags.get(EVENT_TAG, ""), run.tags.get(WORKFLOW_TAG, "")
        where = FlowRunFilter(workflow_id=UUID(flow), event_ids=(UUID(event),))
        found = await self._backend.store.flow_runs(where, limit=1)
        return found[0].chain_id if found else None

    async def _awaited(self, run: Description) -> FlowStartArgument | None:
        """What a run that has not begun will begin with. None: that cannot be read."""
        try:
            row = await self._catalog.row(run.tags.get(WORKFLOW_TAG, ""))
            event = await self._events.get(run.tags.get(EVENT_TAG, ""))
            trigger = trigger_of(row)
        except (UnknownFlow, UnknownEvent, PayloadSealed):
            return None
        asked = trigger.asks(event, by_hand=not run.key)
        [start] = json.decode(asked.request.input, type=tuple[FlowStartArgument])
        return start

    async def of_chain(self, chain_id: RunId) -> RunView:
        """The run that this one is the first of. Raises UnknownRun: its retention is over."""
        return await self._read(self._last(chain_id))

    async def _last(self, chain_id: RunId) -> Any:
        return await self._client.get((await self._client.get_run(chain_id)).id)

    async def get(self, run_id: object) -> RunView:
        """With steps, logs and audit. Raises UnknownRun, also for a run that is no flow."""
        handle = await self.handle(run_id)
        view = await read_run(self._client, handle, self._first, self._awaited, with_tries=True)
        return await with_parts(self._client, view, await handle.describe())

    async def handle(self, run_id: object) -> Any:
        """Raises UnknownRun."""
        known = uuid_or(run_id, UnknownRun)
        try:
            found = await self._client.get(str(known))
        except UnknownRun:  # one that another run has begun
            found = await self._last(known)
        described = await found.describe()
        if described.workflow != FLOW or EVENT_TAG not in described.tags:
            raise UnknownRun(str(run_id))
        return found

    async def list(
        self,
        *,
        status: RunStatus | None = None,
        workflow_id: object = None,
        event_id: object = None,
        cursor: str | None = None,
        limit: int = 20,
    ) -> RunPage:
        """Newest first."""
        check_limit(limit)
        if workflow_id is not None or event_id is not None:
            return await self._linked(status, workflow_id, event_id, cursor, limit)
        states: dict[str, Any] = {} if status is None else {"states": STATES[status]}
        page = await self._client.list(workflow=FLOW, kind="workflow", cursor=cursor, limit=limit, **states)
        ids = dict.fromkeys(run.id for run in page.runs if run.parent is None and EVENT_TAG in run.tags)
        views = await self._views([self._client.get(id) for id in ids])
        return RunPage([one for one in views if status in (None, one.run.status)], page.cursor)

    async def _linked(
        self, status: RunStatus | None, workflow_id: object, event_id: object, cursor: str | None, limit: int
    ) -> RunPage:
        flow = None if workflow_id is None else (await self._catalog.row(workflow_id)).workflow_id
        events = None if event_id is None else (uuid_or(event_id, UnknownEvent),)
        before = None if cursor is None else uuid_or(cursor, no_cursor)
        where = FlowRunFilter(workflow_id=flow, event_ids=events)
        links = await self._backend.store.flow_runs(where, before, limit + 1)
        page = links[:limit]
        views = await self._views([self._last(link.chain_id) for link in page])
        more = str(page[-1].chain_id) if len(links) > limit else None
        return RunPage([one for one in views if status in (None, one.run.status)], more)

    async def _views(self, asked: Sequence[Any]) -> Sequence[RunView]:
        """Those that are still there."""
        found = await asyncio.gather(*(_if_there(self._read(one)) for one in asked))
        return [one for one in found if one is not None]

    async def last(self, workflow_id: object, limit: int = 5) -> Sequence[Run]:
        """The last runs of a version, newest first, without what only their journals say."""
        where = FlowRunFilter(workflow_id=uuid_or(workflow_id, UnknownFlow))
        links = await self._backend.store.flow_runs(where, limit=limit)

        async def described(chain_id: RunId) -> Description:
            found: Description = await (await self._last(chain_id)).describe()
            return found

        found = await asyncio.gather(*(_if_there(described(link.chain_id)) for link in links))
        return [run_view(one) for one in found if one is not None]

    async def failed(self, *, cursor: str | None = None, limit: int = 20) -> RunPage:
        """Runs that failed and were not retried since, newest first."""
        return await self.list(status=RunStatus.FAILED, cursor=cursor, limit=limit)

    async def of_events(self, event_ids: Sequence[str]) -> dict[str, _Ids]:
        """The ids of the runs that each event has begun."""
        found: dict[str, _Ids] = {one: [] for one in event_ids}
        where = FlowRunFilter(event_ids=tuple(UUID(one) for one in event_ids))
        links = await self._backend.store.flow_runs(where, limit=1_000) if event_ids else []
        runs = await asyncio.gather(*(_if_there(self._client.get_run(link.chain_id)) for link in links))
        for link, run in zip(links, runs, strict=True):
            if run is not None:
                found[str(link.event_id)].append(str(run.id))
        return found

    # -- acting

    async def retry(self, run_id: object, *, reason: str = "") -> Run:
        """Go on from the step that failed: what was done before stays. Raises UnknownRun, NotParked, RunClosed."""
        await (await self.handle(run_id)).retry(reason)
        return (await self.get(run_id)).run

    async def cancel(self, run_id: object, *, reason: str = "") -> Run:
        """Ask it to end: compensations are done. Raises UnknownRun, RunClosed."""
        await (await self.handle(run_id)).cancel(reason)
        return (await self.get(run_id)).run

    async def approvals(self, *, cursor: str | None = None, limit: int = 50) -> tuple[Sequence[Approval], str | None]:
        """Waiting approvals, and the cursor of the next page."""
        check_limit(limit)
        page = await self._client.list(workflow=FLOW, kind="workflow", waiting_for=APPROVAL, cursor=cursor, limit=limit)
        views = await self._views([self._client.get_run(run.run_id) for run in page.runs])
        names = {flow_run_id(run): run.tags for run in page.runs}
        found = [
            _approval(view.run, names.get(view.run.id, {}), step)
            for view in views
            for step in view.steps
            if step.step_type == "approval" and step.status in (StepStatus.RUNNING, StepStatus.PENDING)
        ]
        return found, page.cursor

    async def waits(self, event_type: str, field: str = "", value: Any = None) -> Sequence[RunId]:
        """The open runs that wait for an event of that type, with that value at a path of its payload."""
        return await self._backend.store.open_runs(wait_prefix(normalised_type(event_type), field, value), 1_000)

    async def decide(
        self,
        run_id: object,
        step: str,
        approved: bool,
        *,
        step_run_id: str | None = None,
        by: str = "",
        comment: str = "",
        data: Any = None,
        timeout: Duration | None = None,
    ) -> bool:
        """Say what a person has decided about an approval: that of `step_run_id`, or the first one of the step that
        waits. False: it waits for no decision of that step.

        TimeoutError after `timeout` seconds: the decision is kept, and a worker takes it up later. Asking the same
        again waits for the same answer.
        """
        view = await self.get(run_id)
        waiting = (one.id for one in view.steps if one.step_key == step and _waits(one))
        asked = next((id for id in waiting if step_run_id in (None, id)), None)
        if asked is None:
            return False
        place, number = view.places[asked]
        decision = Decision(step=step, approved=approved, by=by, comment=comment, data=data, number=number)
        said = json.encode([asked, approved, by, comment, data], order="deterministic").decode()
        handle = await self.handle(place)
        return bool(await handle.update(DECIDE, decision, update_id=derived_id("decision", said), timeout=timeout))


async def _if_there(found: Awaitable[T]) -> T | None:
    """None: the run was deleted meanwhile."""
    try:
        return await found
    except UnknownRun:
        return None


def _waits(step: StepRun) -> bool:
    """For a person. One that has not begun would hear no decision."""
    return step.step_type == "approval" and step.started_at is not None and step.finished_at is None


def _type_of(row: FlowRow) -> str:
    return row.trigger_type or "run_requested"


def _approval(run: Run, tags: Mapping[str, str], step: StepRun) -> Approval:
    given = step.input if isinstance(step.input, Mapping) else {}
    return Approval(
        run=run,
        name=tags.get(NAME_TAG, ""),
        step=step.step_key,
        step_run_id=step.id,
        title=str(given.get("title") or step.step_key),
        data=given.get("data"),
        since=step.started_at or step.created_at,
    )
