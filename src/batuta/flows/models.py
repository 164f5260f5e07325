"""The records of flows, with the fields and the words of their JSON: events, workflows, runs and what they did.

A tenant is a namespace: `tenant_id` is the name of the namespace. Ids are UUIDs as text.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Mapping
from datetime import datetime
from enum import StrEnum
from typing import Any, Final
from uuid import UUID, uuid5

from msgspec import UNSET, Raw, Struct, UnsetType, json

FLOW: Final = "flow"
"""The name of the workflow that interprets flows."""
WAIT: Final = "flow.wait"
"""The name of the workflow that waits for an event, as a child of a flow's run."""
EVENT_SIGNAL: Final = "flow.event"
"""Sent to runs of WAIT, with the Event. Its message id is that of the event."""
DECIDE: Final = "flow.decide"
"""The update by which a person decides an approval of a run, with a Decision."""
WORKFLOW_TAG: Final = "flow.workflow_id"
EVENT_TAG: Final = "flow.event_id"
NAME_TAG: Final = "flow.name"
VERSION_TAG: Final = "flow.version"
"""The tags of a flow's run, by which it is found."""
_SPACE: Final = UUID("6f2c1c0e-5f0b-5c8e-9a55-0f3c6d3b7a21")
"""The namespace of the UUIDs that are derived here. It must never change."""
_LARGE = "A-ZÀ-ÖØ-Þ"
_SMALL = rf"[^\W\d_{_LARGE}]"
_BETWEEN = re.compile(
    rf"(?<=[^\W_{_LARGE}])(?=[{_LARGE}])|(?<=[{_LARGE}])(?=[{_LARGE}](?!s(?!{_SMALL})){_SMALL})|[\W_]+"
)
"""Words of a type: `invoiceOverdue`, `URLChanged`, `URLsChanged`, `invoice-overdue`."""


class RunStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"


class DispatchStatus(StrEnum):
    PENDING = "PENDING"
    """No worker may take it yet."""
    DISPATCHED = "DISPATCHED"
    FAILED = "FAILED"
    """No live worker can take it. It goes on by itself when one comes."""


class StepStatus(StrEnum):
    PENDING = "PENDING"
    RUNNING = "RUNNING"
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    SKIPPED = "SKIPPED"
    RETRYING = "RETRYING"


class LogLevel(StrEnum):
    INFO = "info"
    WARN = "warn"
    ERROR = "error"


class Event(Struct, kw_only=True):
    """Something that happened, and that flows may begin with."""

    id: str
    tenant_id: str
    type: str
    """In snake_case: `invoice_overdue`."""
    payload: dict[str, Any]
    source: str
    """`api`, `webhook`, `internal`, ...: in lower case."""
    external_id: str | None = None
    """The sender's own id. A second event of the same source and id is not taken."""
    created_at: datetime


class Workflow(Struct, kw_only=True):
    """One version of a flow. After `published_at` its steps never change."""

    id: str
    tenant_id: str
    name: str
    description: str | None = None
    trigger_type: str
    """The type of the events that begin it; empty: none does."""
    version: int = 1
    is_active: bool = False
    published_at: datetime | None = None
    steps: list[Any]
    """As `flows.document` reads them."""
    trigger: Any = None
    """More about how it begins: filter, concurrency, schedule, topic."""
    created_at: datetime
    updated_at: datetime


class Run(Struct, kw_only=True):
    """A flow that was begun by an event."""

    id: str
    workflow_id: str
    event_id: str
    status: RunStatus
    dispatch_status: DispatchStatus
    context: dict[str, Any]
    """Its values so far, and `steps` with the output of each."""
    error: str | None = None
    reason: str | None = None
    """Why a run that is RUNNING does not go on: it waits, is paused or is parked."""
    started_at: datetime | None = None
    finished_at: datetime | None = None
    created_at: datetime
    updated_at: datetime


class StepRun(Struct, kw_only=True):
    """One step of a run."""

    id: str
    run_id: str
    step_key: str
    step_type: str
    index: int | None = None
    """Of its item of a list, from 0."""
    status: StepStatus
    input: Any = None
    output: Any = None
    error: str | None = None
    provider_ref: str | None = None
    """Of an action: `intent-{id}-attempt-{n}` before the call, and then what the other side calls it."""
    attempt: int = 1
    started_at: datetime | None = None
    finished_at: datetime | None = None
    created_at: datetime
    updated_at: datetime


class RunLog(Struct, kw_only=True):
    """One line about a run."""

    id: str
    run_id: str
    level: LogLevel
    message: str
    context: dict[str, Any] = {}
    created_at: datetime


class AuditLog(Struct, kw_only=True):
    """One change of one record."""

    id: str
    entity: str
    """`event`, `run`, `step_run`, `workflow`."""
    entity_id: str
    action: str
    """`created`, `status_changed`, `published`, `failed`."""
    details: dict[str, Any] = {}
    created_at: datetime


class Decision(Struct, kw_only=True):
    """A person's decision about an approval."""

    step: str
    """The key of the step."""
    approved: bool
    by: str = ""
    comment: str = ""
    data: Any = None
    number: int = 0
    """Which of several that wait at the same step, by the number of the step in its run. 0: the first one."""


class FlowState(Struct, kw_only=True, omit_defaults=True):
    """Where a run that continues as new goes on."""

    at: str
    """The key of the next step."""
    context: dict[str, Any] = {}
    steps: dict[str, Any] = {}
    """By key: `{"output": ...}`."""
    number: int = 0
    """How many steps it has begun."""
    heard: list[str] = []
    """Events that its steps have waited for."""


class FlowPart(Struct, kw_only=True):
    """A piece of a long list: a run of its own does the steps of a `for_each` for it."""

    step: str
    """The key of the `for_each`."""
    items: list[Any]
    offset: int
    """The place of the first item in the whole list."""
    context: dict[str, Any] = {}
    steps: dict[str, Any] = {}


class EarlierEvent(Struct, kw_only=True):
    """An event that a step waits for, and that may have come before the step began."""

    event: str
    field: str
    value: Any
    since: datetime
    heard: list[str] = []
    """It is none of these."""


class FlowRoom(Struct, kw_only=True):
    """Of which open runs a run lets so many come before it begins: those of its key that began earlier."""

    key: str
    limit: int
    cancels: bool = False
    """They are asked to end."""


class FlowStart(Struct, kw_only=True, omit_defaults=True):
    """The argument of a run of a flow: everything that it needs, so that a later version never touches it."""

    workflow_id: str
    name: str
    version: int
    steps: Raw
    """The published steps, as JSON."""
    event: Event
    depth: int = 0
    """How many flows it is below the one that was begun by an event."""
    state: FlowState | UnsetType = UNSET
    part: FlowPart | UnsetType = UNSET
    room: FlowRoom | UnsetType = UNSET
    """It waits until there is room among the runs of its key."""

    @property
    def is_first(self) -> bool:
        """Whether this is the beginning of a flow, and no part or continuation of one."""
        return self.state is UNSET and self.part is UNSET

    @property
    def tags(self) -> dict[str, str]:
        return {
            WORKFLOW_TAG: self.workflow_id,
            EVENT_TAG: self.event.id,
            NAME_TAG: self.name,
            VERSION_TAG: str(self.version),
        }


def run_id_of(workflow_id: str, event_id: str) -> str:
    """The id of the run of a workflow for an event: always the same, so that a second start finds the first."""
    return derived_id("run", workflow_id, event_id)


def step_run_id_of(activity_key: str) -> str:
    """The id of a step's run, from the key of its activity: the same over all attempts and crashes."""
    return derived_id("step", activity_key)


def wait_prefix(event_type: str, field: str, value: Any) -> str:
    """How the ids of the runs begin that wait for such an event: of a type, and with a value at a path of its payload
    (an empty path: any event of the type)."""
    wanted = _whole(value) if field else None
    said = json.encode([normalised_type(event_type), field, wanted], order="deterministic")
    return f"flow-wait:{hashlib.blake2b(said, digest_size=10).hexdigest()}:"


def _whole(value: Any) -> Any:
    """With whole numbers written alike: 1.0 is 1."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {key: _whole(part) for key, part in value.items()}
    return [_whole(part) for part in value] if isinstance(value, list) else value


def derived_id(*parts: str) -> str:
    """An id for a record that is computed, such as a line of the log: the same each time."""
    return str(uuid5(_SPACE, "\n".join(parts)))


def normalised_type(text: str) -> str:
    """The type of an event in snake_case: `InvoiceOverdue`, `invoice-overdue` and `Invoice overdue` are one."""
    whole = unicodedata.normalize("NFC", text)
    return "_".join(part for part in _BETWEEN.split(whole) if part).lower()


def normalised_source(text: str) -> str:
    return text.strip().lower()
