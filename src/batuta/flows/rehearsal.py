"""Rehearses a flow on an event: every step with its input and output, and nothing is called, kept or waited for.

For the editor's dry run, and for tests of flows: doubles say what a step would give.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, UnsetType

from batuta.errors import BatutaError, InvalidInput
from batuta.flows.document import StepBase
from batuta.flows.host import ActionRequest, AiRequest, ApprovalRequest, Mark
from batuta.flows.interpreter import Interpreter
from batuta.flows.models import Event, FlowStart, RunStatus, StepStatus
from batuta.flows.program import FlowFailed, Prepared, prepare
from batuta.flows.secrets import MARK, with_text

MOST_STEPS: Final = 5_000
_LONGEST: Final = 10.0
"""Seconds."""
_TOO_LONG: Final = f"the rehearsal took over {_LONGEST:g} s"
_MOST_SHOWN: Final = 16 * 1024 * 1024
"""Characters of JSON."""
_TOLD: Final = frozenset({"failed", "cancelled", "skipped"})
"""Marks that a rehearsal keeps, however long it took."""
_ENDS: Final = {
    "completed": StepStatus.COMPLETED,
    "failed": StepStatus.FAILED,
    "skipped": StepStatus.SKIPPED,
    "cancelled": StepStatus.SKIPPED,
}
_WHEN: Final = datetime(2026, 1, 1, tzinfo=UTC)


class Double(Struct, kw_only=True, forbid_unknown_fields=True):
    """The result of a step in a rehearsal: one of these."""

    output: Any = UNSET
    error: str = ""
    """It fails with this message."""
    timeout: bool = False
    """Of `wait_event` and `approval`: nothing came in time."""


class RehearsedStep(Struct, kw_only=True):
    """One step of a rehearsal."""

    key: str
    type: str
    status: StepStatus
    input: Any = None
    output: Any = None
    error: str | None = None
    request: Any = None
    """The request of an action, with the names of its secrets."""
    to: str | None = None
    """The step that it named as the next."""
    index: int | None = None


class Rehearsal(Struct, kw_only=True):
    """A flow's path for an event."""

    status: RunStatus
    error: str | None = None
    steps: list[RehearsedStep]
    context: dict[str, Any]
    undone: list[str] = []
    """Compensations that would be done, in order."""

    @property
    def path(self) -> list[str]:
        """The keys of the steps that were done, in order."""
        return [one.key for one in self.steps if one.status is not StepStatus.SKIPPED]


async def rehearse(
    steps: Sequence[StepBase],
    payload: Mapping[str, Any] | Event,
    doubles: Mapping[str, Double] | None = None,
    *,
    now: datetime | None = None,
) -> Rehearsal:
    """Do the steps for an event, or for one with this payload. `doubles`: by keys of steps. Steps without one: actions
    are dry runs, models fall back, waits and delays end at once, persons approve. Raises InvalidInput for steps that
    were not checked."""
    program = prepare(steps)
    unknown = sorted(set(doubles or {}) - set(program.by_key))
    if unknown:
        raise InvalidInput(f"doubles for steps that are not there: {', '.join(unknown)}")
    event = payload if isinstance(payload, Event) else _event(dict(payload), now or _WHEN)
    host = _Host(dict(doubles or {}), now or event.created_at)
    start = FlowStart(workflow_id="", name="", version=0, steps=msgspec.Raw(b"[]"), event=event)
    error: str | None = None
    context: dict[str, Any] = {}
    try:
        async with asyncio.timeout(_LONGEST):
            context = await Interpreter(program, host, MOST_STEPS).run(start, msgspec.to_builtins(event))
    except TimeoutError:
        error = _TOO_LONG
    except BatutaError as failed:
        error = str(failed)
    status = RunStatus.COMPLETED if error is None else RunStatus.FAILED
    return Rehearsal(status=status, error=error, steps=host.steps, context=context or host.context, undone=host.undone)


def _event(payload: dict[str, Any], now: datetime) -> Event:
    return Event(
        id="00000000-0000-0000-0000-000000000000",
        tenant_id="",
        type="rehearsal",
        payload=payload,
        source="internal",
        created_at=now,
    )


class _Host:
    """Does nothing, and notes everything."""

    def __init__(self, doubles: dict[str, Double], now: datetime) -> None:
        self.number = 0
        self.steps: list[RehearsedStep] = []
        self.context: dict[str, Any] = {}
        self.undone: list[str] = []
        self._doubles, self._now = doubles, now
        self._by_number: dict[int, RehearsedStep] = {}
        self._left, self._until = _MOST_SHOWN, asyncio.get_running_loop().time() + _LONGEST

    def _shows(self, value: Any) -> None:
        """Raises FlowFailed: it is too much, or took too long. A step that does not wait gives way to no timer."""
        self._left -= len(msgspec.json.encode(value))
        if self._left < 0:
            raise FlowFailed(f"the rehearsal shows more than {_MOST_SHOWN:,} characters")
        if asyncio.get_running_loop().time() > self._until:
            raise FlowFailed(_TOO_LONG)

    async def mark(self, make: Callable[[], Mark]) -> dict[str, Any]:
        mark = make()
        if mark.flow not in _TOLD:
            self._shows(mark)
        step = self._by_number.get(mark.n)
        if step is None:
            step = RehearsedStep(key=mark.step, type=mark.type, status=StepStatus.RUNNING, index=mark.index)
            self._by_number[mark.n] = step
            self.steps.append(step)
        if mark.input is not UNSET:
            step.input = mark.input
        if mark.output is not UNSET:
            step.output = mark.output
        step.to, step.error = mark.to or step.to, mark.error or step.error
        if not isinstance(mark.context, UnsetType) and mark.index is None:
            self.context.update(mark.context)
        step.status = _ENDS.get(mark.flow, step.status)
        found: dict[str, Any] = msgspec.to_builtins(mark)
        return found

    def _gives(self, one: Prepared, otherwise: Any) -> Any:
        """The double's result, or the default of a step without one; noted as the output of the last step."""
        double = self._doubles.get(one.key)
        if double is not None and double.error:
            raise FlowFailed(double.error)
        if double is not None and double.timeout:
            return None
        output = otherwise if double is None or double.output is UNSET else double.output
        self._shows(output)
        self.steps[-1].output, self.steps[-1].status = output, StepStatus.COMPLETED
        return output

    async def act(self, one: Prepared, request: ActionRequest) -> Any:
        sent = _shown(request)
        self._shows(sent)
        self.steps[-1].request = sent
        return self._gives(one, {"dryRun": True, "actionType": request.action_type})

    async def ask(self, one: Prepared, request: AiRequest) -> Any:
        return self._gives(one, {"fallbackUsed": True, "fallback": request.fallback, "data": request.input})

    async def call(self, one: Prepared, name: str, args: list[Any], queue: str) -> Any:
        return self._gives(one, {"dryRun": True, "activity": name})

    async def sleep(self, one: Prepared, seconds: float) -> None:
        await asyncio.sleep(0)

    def now(self) -> datetime:
        return self._now

    async def wait_event(self, one: Prepared, event: str, field: str, value: Any) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._gives(one, {"dryRun": True, "type": event})
        return found

    async def approve(self, one: Prepared, request: ApprovalRequest, number: int) -> dict[str, Any] | None:
        found: dict[str, Any] | None = self._gives(one, {"approved": True, "dryRun": True})
        return found

    async def sub_flow(self, one: Prepared, name: str, version: int | None, payload: Any) -> Any:
        return self._gives(one, {"dryRun": True, "workflow": name})

    async def part(self, one: Prepared, items: list[Any], offset: int, context: Any, steps: Any) -> None:
        return None

    def undo(self, one: Prepared, request: ActionRequest) -> None:
        if (scope := _scope.get()) is not None:
            scope.keys.append(one.key)

    def undoes(self) -> list[Any]:
        return []

    def scope(self) -> AbstractAsyncContextManager[Any]:
        return _Scope(self.undone)

    def is_apart(self) -> bool:
        return True

    def turn_back(self, at: str, context: dict[str, Any], steps: dict[str, Any]) -> None:
        """A rehearsal has no journal that could grow."""


class _Scope:
    """Notes what would be undone."""

    def __init__(self, undone: list[str]) -> None:
        self.keys: list[str] = []
        self._undone = undone

    async def __aenter__(self) -> None:
        self._outer = _scope.get()
        self._token = _scope.set(self)

    async def __aexit__(self, kind: object, *error: object) -> None:
        _scope.reset(self._token)
        if kind is not None:
            self._undone += reversed(self.keys)
        elif self._outer is not None:
            self._outer.keys += self.keys


_scope: Final[ContextVar[_Scope | None]] = ContextVar("batuta_rehearsed_scope", default=None)


def _shown(request: ActionRequest) -> dict[str, Any]:
    """The request as it would be sent. Secrets are shown by their names."""
    sent: dict[str, Any] = {name: value for name, value in request.request.items() if value not in ("", {})}
    for gap in request.gaps:
        text = "".join(piece if isinstance(piece, str) else f"{MARK}{'/'.join(piece)}" for piece in gap.pieces)
        sent = with_text(sent, gap.path, text)
    more = {"method": request.method if request.request.get("url") or request.gaps else "", "topic": request.topic}
    more |= {"workflow": request.workflow, "id": request.id, "signal": request.signal}
    return {name: value for name, value in more.items() if value} | sent
