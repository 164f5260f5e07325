"""The runs that an event starts: one of each active flow of its type whose filter lets it in."""

from __future__ import annotations

from functools import lru_cache
from typing import Any
from uuid import UUID

from msgspec import Raw, Struct, json, to_builtins

from batuta.authoring.backend import StartRequest
from batuta.errors import BatutaError
from batuta.flows.conditions import Condition, compile_condition
from batuta.flows.document import Concurrency, Debounce, FlowDocument
from batuta.flows.expressions import Value, as_text, compile_template
from batuta.flows.models import FLOW, Event, FlowRoom, FlowStart, run_id_of
from batuta.flows.program import seconds_of
from batuta.flows.rows import document_of
from batuta.journal.entries import FLOW_HEADER
from batuta.journal.flows.records import FlowRow
from batuta.names import LONGEST_ID, joined, readable, shortened

_LONGEST_KEY = 200
_ANY = 2**31 - 1
_OF_FLOWS = "%flow:"
"""How debounce keys of flows begin. Those of jobs have no such `%`: it would be written otherwise."""
KEPT = 1_024
"""Prepared flows in memory."""


class Asked(Struct):
    """The start of a flow for an event."""

    workflow_id: UUID
    request: StartRequest
    debounce: str = ""
    debounce_limit: float = 0.0
    room: int | None = None
    """Not begun while so many runs of its key are open. None: they are not counted."""


class Trigger(Struct, eq=False):
    """A published flow, ready to be started."""

    row: FlowRow
    steps: Raw
    filter: Condition | None
    concurrency: tuple[Concurrency, Value] | None
    debounce: tuple[Debounce, Value] | None

    def lets_in(self, event: Event) -> bool:
        return self.filter is None or self.filter(_scope(event))

    def asks(self, event: Event, *, by_hand: bool = False) -> Asked:
        """The run to start. `by_hand`: at once, whatever its trigger says of several."""
        row = self.row
        start = FlowStart(
            workflow_id=str(row.workflow_id),
            name=row.name,
            version=row.version,
            steps=self.steps,
            event=event,
        )
        request = StartRequest(
            workflow=FLOW,
            input=json.encode([start]),
            id=run_id_of(start.workflow_id, event.id),
            tags=start.tags,
            headers={FLOW_HEADER: row.name},
        )
        asked = Asked(row.workflow_id, request)
        if by_hand:
            return asked
        if self.concurrency is not None:
            config, value = self.concurrency
            request.key = shortened(joined(row.name, _key(value, event)), _LONGEST_KEY)
            asked.room = rooms_of(config)
            if config.overlap == "queue":
                request.queue = queue_of(config.limit)
            elif config.overlap in ("buffer", "cancel"):
                start.room = FlowRoom(key=request.key, limit=config.limit, cancels=config.overlap == "cancel")
                request.input = json.encode([start])
        if self.debounce is not None:
            waiting, value = self.debounce
            asked.debounce = shortened(_OF_FLOWS + joined(row.name, _key(value, event)), LONGEST_ID)
            request.delay = seconds_of(waiting.wait) or 0.0
            asked.debounce_limit = seconds_of(waiting.longest) or 0.0
        return asked


def queue_of(limit: int) -> str:
    """The queue of runs of which there may be so many at once for a key: its `key_concurrency` is the limit."""
    return f"flows-{limit}"


def rooms_of(config: Concurrency) -> int | None:
    """How many runs of a key may be open, so that one more begins. None: they are not counted.

    With `buffer` one more waits. With `cancel` any number does: each asks those before it to end."""
    return {"skip": config.limit, "buffer": config.limit + 1, "cancel": _ANY}.get(config.overlap)


@lru_cache(maxsize=KEPT)
def _parts_of(text: str) -> tuple[Any, ...]:
    """The parts of a published document, which never changes."""
    document = json.decode(text, type=FlowDocument)
    steps = Raw(json.encode(json.decode(text)["steps"]))
    trigger = document.trigger
    if trigger is None:
        return steps, None, None, None
    return (
        steps,
        None if trigger.filter is None else compile_condition(trigger.filter),
        trigger.concurrency and (trigger.concurrency, compile_template(trigger.concurrency.key)),
        trigger.debounce and (trigger.debounce, compile_template(trigger.debounce.key)),
    )


def trigger_of(row: FlowRow) -> Trigger:
    """Raises PayloadSealed."""
    return Trigger(row, *_parts_of(document_of(row)))


def _scope(event: Event) -> dict[str, Any]:
    return {"event": to_builtins(event), "context": {}, "steps": {}}


def _key(value: Value, event: Event) -> str:
    """The key of an event, as every store can keep it; empty when it has none."""
    try:
        return readable(as_text(value(_scope(event))))
    except BatutaError:
        return ""
