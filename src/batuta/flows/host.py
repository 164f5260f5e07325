"""The outside world of steps. One host is a durable run, another a rehearsal."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any, Literal, Protocol

from msgspec import UNSET, Struct, UnsetType

from batuta.flows.program import Prepared
from batuta.flows.secrets import Gap

Phase = Literal["started", "completed", "skipped", "failed", "cancelled", "wrote"]


class Mark(Struct, omit_defaults=True, gc=False):
    """A line in the journal about a step. Readers of journals know a flow's run by these."""

    flow: Phase
    n: int
    """Counts the steps of a run, as they begin."""
    step: str
    type: str
    input: Any = UNSET
    """Where it is not the payload of the event."""
    output: Any = UNSET
    to: str = ""
    """The step that it names as the next."""
    branch: bool | None = None
    """Of a condition that names it."""
    call: str = ""
    """The activity, timer or child that begins with this mark."""
    context: dict[str, Any] | UnsetType = UNSET
    """What it put into the context."""
    error: str = ""
    block: int = 0
    """The number of the step that it is inside of."""
    index: int | None = None
    """The place of its item."""


class ActionRequest(Struct, kw_only=True, omit_defaults=True):
    """An action, ready but for its secrets."""

    step: str
    action_type: str
    request: dict[str, Any]
    """`url`, `headers`, `sign`, and `body` if something is sent."""
    gaps: list[Gap] = []
    method: str = "POST"
    expect: list[int] = []
    response: dict[str, str] = {}
    topic: str = ""
    message_key: str = ""
    message_type: str = ""
    workflow: str = ""
    args: list[Any] = []
    id: str = ""
    signal: str = ""


class AiRequest(Struct, kw_only=True, omit_defaults=True):
    """A question to a model."""

    step: str
    input: Any
    fallback: Any
    prompt: str = ""
    system: str = ""
    schema: dict[str, Any] | None = None
    url: str = ""
    gaps: list[Gap] = []
    model: str = ""
    max_tokens: int = 2_000
    budget: float = 30.0
    temperature: float | None = None


class ApprovalRequest(Struct, kw_only=True, omit_defaults=True):
    """A question to a person."""

    step: str
    title: str = ""
    data: Any = None
    notify: dict[str, Any] | None = None
    gaps: list[Gap] = []


class Host(Protocol):
    """Given by what runs a flow. `one` is the step that asks."""

    number: int
    """Of the last step that has begun."""

    async def mark(self, make: Callable[[], Mark]) -> dict[str, Any]:
        """Keep a mark: what `make` gives, or gave when this was done first."""
        ...

    async def act(self, one: Prepared, request: ActionRequest) -> Any: ...
    async def ask(self, one: Prepared, request: AiRequest) -> Any: ...
    async def call(self, one: Prepared, name: str, args: list[Any], queue: str) -> Any: ...
    async def sleep(self, one: Prepared, seconds: float) -> None: ...
    def now(self) -> datetime: ...

    async def wait_event(self, one: Prepared, event: str, field: str, value: Any) -> dict[str, Any] | None:
        """None: it did not come in time."""
        ...

    async def approve(self, one: Prepared, request: ApprovalRequest, number: int) -> dict[str, Any] | None:
        """None: the time for a decision is over. `number`: of the step."""
        ...

    async def sub_flow(self, one: Prepared, name: str, version: int | None, payload: Any) -> Any: ...
    async def part(self, one: Prepared, items: list[Any], offset: int, context: Any, steps: Any) -> list[Any] | None:
        """Do a `for_each` for some items elsewhere: what was collected. None: do it here."""
        ...

    def undo(self, one: Prepared, request: ActionRequest) -> None:
        """Do this if the flow fails from here on."""
        ...

    def undoes(self) -> list[Any]:
        """What was given to `undo` in this scope so far, by keys of steps."""
        ...

    def scope(self) -> Any:
        """An async context manager: compensations of its block are done when that fails."""
        ...

    def is_apart(self) -> bool:
        """Whether blocks beside each other have compensations and errors of their own, and parts of long lists
        compensations: not in runs that began when they had not."""
        ...

    def turn_back(self, at: str, context: dict[str, Any], steps: dict[str, Any]) -> None:
        """The run goes back to a step: it may continue as new from there."""
        ...
