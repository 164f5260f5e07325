"""Events: accepted once, with the runs that they start in the same transaction."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from batuta.authoring.services import FlowService
from batuta.clock import SystemClock
from batuta.errors import InvalidInput, PayloadSealed, RunClosed, StoreUnavailable, UnknownEvent, UnknownRun
from batuta.flows.calls.catalog import WAITS, check_limit, no_cursor, uuid_or
from batuta.flows.calls.reading import Client
from batuta.flows.calls.triggers import Asked, Trigger, trigger_of
from batuta.flows.models import EVENT_SIGNAL, Event, normalised_source, normalised_type, wait_prefix
from batuta.flows.rows import event_view, payload_of
from batuta.flows.values import MISSING, look_up, parse_path
from batuta.ids import RunId, new_run_id
from batuta.journal.flows.records import EventFilter, EventRow, FlowStart, NewEvent
from batuta.serde import encode

LONGEST_TYPE, LONGEST_SOURCE, LONGEST_EXTERNAL_ID = 200, 100, 300
_TRIES = 8
_TYPES_KEPT = 1_000
_MOST_LISTED = 8 * 1024 * 1024
"""Characters of the payloads of a page."""
_MOST_WAITING = 10_000
"""Runs that one event wakes."""


class Sent(Struct, kw_only=True):
    """An event that came in."""

    event: Event
    is_new: bool
    """False: it is the first one of its source and external id."""


class EventPage(Struct):
    """Some events, newest first, and the cursor of the next page (None: that was the last)."""

    events: list[Event]
    cursor: str | None


class Events:
    """The events of one namespace: `client.flows.events`."""

    def __init__(self, client: Client, backend: FlowService, max_payload: int) -> None:
        self._client, self._backend, self._max_payload = client, backend, max_payload
        self._triggers: OrderedDict[str, list[Trigger]] = OrderedDict()
        """Active flows by type. The store compares them when an event is written."""
        self._clock = SystemClock()

    async def send(
        self,
        type: str,
        payload: Mapping[str, Any] | None = None,
        *,
        source: str = "api",
        external_id: str | None = None,
    ) -> Sent:
        """Accept an event, and start each active flow of its type whose filter lets it in, in one transaction.

        `type` becomes snake_case, `source` lower case. With an `external_id` that this source has used before, it is
        that event, and nothing is started. Raises InvalidInput, QuotaExceeded, StoreUnavailable.
        """
        return await self._accept(self.made(type, payload, source, external_id))

    async def replay(self, event_id: object) -> Sent:
        """Send an event once more, as a new one with the same payload: it starts what is active now. Raises
        UnknownEvent."""
        first = await self.row(event_id)
        payload_of(first)
        again = replace(
            first,
            event_id=new_run_id(),
            external_id=None,
            replay_of=first.replay_of or first.event_id,
            created_at=self._clock.now(),
        )
        return await self._accept(again)

    def made(
        self,
        type: object,
        payload: object,
        source: object,
        external_id: object = None,
    ) -> EventRow:
        """An event in its normal form, not accepted yet. Raises InvalidInput."""
        kind = normalised_type(_text("type", type, 1_000))
        if not kind:
            raise InvalidInput("type is empty: say what happened, such as invoice_overdue")
        if payload is not None and not isinstance(payload, Mapping):
            raise InvalidInput("payload must be an object")
        origin = normalised_source(_text("source", source, 1_000)) or "api"
        name = None if external_id is None else _text("external_id", external_id, LONGEST_EXTERNAL_ID)
        return EventRow(
            event_id=new_run_id(),
            type=_text("type", kind, LONGEST_TYPE),
            source=_text("source", origin, LONGEST_SOURCE),
            external_id=name or None,
            payload=encode(dict(payload or {}), "the payload of the event", self._max_payload).decode(),
            created_at=self._clock.now(),
        )

    async def _accept(self, row: EventRow) -> Sent:
        for _ in range(_TRIES):
            triggers = await self._active(row.type)
            event = self.view(row)
            asked = [one.asks(event) for one in triggers if one.lets_in(event)]
            made = NewEvent(
                event=row,
                flows=[one.row.workflow_id for one in triggers],
                starts=[self.start_of(one) for one in asked],
            )
            accepted = await self._backend.accept(made, [one.request for one in asked])
            if not accepted.is_stale:
                event = self.view(accepted.event)
                await self._wake(event, is_new=accepted.is_new)
                return Sent(event=event, is_new=accepted.is_new)
            self._triggers.pop(row.type, None)
        raise StoreUnavailable(f"the flows that events of type {row.type!r} start change all the time: try again")

    def start_of(self, asked: Asked) -> FlowStart:
        """A start that the store keeps, made of one that is asked for."""
        run = self._backend.new_run(asked.request, debounce=asked.debounce, debounce_limit=asked.debounce_limit)
        return FlowStart(asked.workflow_id, run, asked.room)

    async def _active(self, kind: str) -> list[Trigger]:
        known = self._triggers.get(kind)
        if known is None:
            known = [trigger_of(row) for row in await self._backend.store.active_flows(kind)]
            self._triggers[kind] = known
            if len(self._triggers) > _TYPES_KEPT:
                self._triggers.popitem(last=False)
        return known

    async def _wake(self, event: Event, *, is_new: bool) -> None:
        """Tell the runs that wait for it. A message has the event's id: a repeat of the event, which may heal what was
        not told at first, is not read twice."""
        for one in await self._backend.store.documents(f"{WAITS}{event.type}"):
            field = one.key.removeprefix("=")
            value = look_up(event.payload, parse_path(field)) if field else None
            if value is MISSING:
                continue
            prefix = wait_prefix(event.type, field, value)
            for run_id in await self._backend.store.open_runs(prefix, _MOST_WAITING):
                await self._tell(run_id, event, is_new=is_new)

    async def _tell(self, run_id: RunId, event: Event, *, is_new: bool) -> None:
        try:
            run = await self._client.get_run(run_id)
            if not is_new and (await run.describe()).created_at > event.created_at:
                return  # it did not wait yet when the event came
            await run.signal(EVENT_SIGNAL, event, message_id=event.id)
        except (RunClosed, UnknownRun):
            return

    # -- looking

    async def row(self, event_id: object) -> EventRow:
        """Raises UnknownEvent."""
        found = await self._backend.store.event(uuid_or(event_id, UnknownEvent))
        if found is None:
            raise UnknownEvent(event_id)
        return found

    async def get(self, event_id: object) -> Event:
        """Raises UnknownEvent."""
        return self.view(await self.row(event_id))

    async def list(
        self,
        *,
        type: str | None = None,
        source: str | None = None,
        external_id: str | None = None,
        cursor: str | None = None,
        limit: int = 50,
    ) -> EventPage:
        """Newest first. A page with large payloads is shorter than asked."""
        check_limit(limit)
        kind = None if type is None else normalised_type(type)
        origin = None if source is None else normalised_source(source)
        where = EventFilter(type=kind, source=origin, external_id=external_id)
        before = None if cursor is None else uuid_or(cursor, no_cursor)
        rows = await self._backend.store.events(where, before, limit + 1)
        sizes = accumulate(len(row.payload) for row in rows[:limit])
        page = rows[: max(1, sum(1 for size in sizes if size <= _MOST_LISTED))]
        more = str(page[-1].event_id) if len(rows) > len(page) else None
        return EventPage([self._listed(row) for row in page], more)

    def view(self, row: EventRow) -> Event:
        """Raises PayloadSealed."""
        return event_view(row, self._backend.namespace, payload_of(row))

    def _listed(self, row: EventRow) -> Event:
        """For lists: the payload of one that cannot be read says why."""
        try:
            return self.view(row)
        except PayloadSealed as error:
            return event_view(row, self._backend.namespace, {"unreadable": str(error)})


def _text(name: str, given: object, longest: int) -> str:
    if not isinstance(given, str):
        raise InvalidInput(f"{name} must be a text")
    if len(given) > longest:
        raise InvalidInput(f"{name} has {len(given):,} characters: at most {longest:,}")
    if "\0" in given or not given.isprintable():
        raise InvalidInput(f"{name} holds characters that cannot be shown")
    return given
