"""The one workflow that runs all flows, and the parts that a worker needs for it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any, Final, cast
from uuid import UUID

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from batuta.authoring.activity.attempt import activity_info, current_attempt
from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.definitions import Workflow, activity
from batuta.authoring.gates import Gate
from batuta.authoring.retry import Retry
from batuta.authoring.workflow.children import run_child, send, start_child
from batuta.authoring.workflow.context import call, current_saga, info, now, runtime_for, side_effect, uuid
from batuta.authoring.workflow.continue_as_new import continue_as_new
from batuta.authoring.workflow.messages import Signal, Update
from batuta.authoring.workflow.patches import patched
from batuta.authoring.workflow.sagas import saga
from batuta.clock import as_datetime
from batuta.errors import BatutaError, InvalidInput, RunClosed, RunNotCompleted, UnknownRun
from batuta.flows.actions import Actions, Publish
from batuta.flows.ai import AiEndpoint
from batuta.flows.host import ActionRequest, AiRequest, ApprovalRequest, Mark
from batuta.flows.interpreter import Interpreter
from batuta.flows.models import (
    DECIDE,
    EVENT_SIGNAL,
    FLOW,
    WAIT,
    Decision,
    EarlierEvent,
    Event,
    FlowPart,
    FlowRoom,
    FlowStart,
    FlowState,
    normalised_type,
    wait_prefix,
)
from batuta.flows.models import Workflow as FlowRecord
from batuta.flows.program import FlowFailed, Prepared, Program, program_of
from batuta.flows.rows import event_view, payload_of, workflow_view
from batuta.flows.secrets import Secrets
from batuta.flows.values import look_up, parse_path, same
from batuta.journal.flows.records import EventFilter, FlowFilter
from batuta.journal.flows.store import FlowStore
from batuta.journal.records import Message, MessageKind
from batuta.serde import decoder_for
from batuta.webhooks.addresses import AddressPolicy
from batuta.webhooks.client import HttpLimits

DEEPEST: Final = 10
"""Flows that run flows."""
_ANYTHING: Final = decoder_for(Any, "the result of a step")
_encode: Final = msgspec.json.Encoder().encode
_EVENT: Final[Signal[dict[str, Any]]] = Signal(EVENT_SIGNAL, dict[str, Any])
_DECIDE: Final[Update[..., bool]] = Update(DECIDE, bool)

_PAGE_HEARD: Final = 50
_PAGES_HEARD: Final = 200
"""A wait_event looks through so many pages of earlier events."""
_MOST_HEARD: Final = 1_000
_FOR_EVER: Final = ActivityOptions(retry=Retry(attempts=0, first=0.25, factor=1.5, longest=60))

Loader = Callable[[str, int | None], Awaitable[FlowRecord | None]]
"""Gives the published flow of a name, and of a version or the newest. None: there is none."""


class LoadedFlow(Struct, kw_only=True):
    """A flow that another one runs."""

    workflow_id: str
    name: str
    version: int
    steps: Raw


class FlowWaits(BatutaError):
    """There is no room for a run yet."""


class DurableHost:
    """The steps of a durable run."""

    def __init__(self, start: FlowStart, program: Program, flow: Workflow[..., Any], gates: Mapping[str, Gate]) -> None:
        self.number = 0
        self._runtime = runtime_for("a flow")
        self._start, self._flow, self._gates, self._program = start, flow, gates, program
        self._scopes: list[_Scope] = []
        self._is_apart: bool | None = None
        self._heard = start.state.heard if isinstance(start.state, FlowState) else []
        self._asked: dict[str, dict[int, asyncio.Future[Decision]]] = {}
        """By the key of a step, and by its number: there may be several of one key, for items of a list."""
        if program.asks:
            _DECIDE.handle(self._decide, validator=self._may_decide)

    async def mark(self, make: Callable[[], Mark]) -> dict[str, Any]:
        found: Any = await side_effect(lambda: Raw(_encode(make())))
        return cast(dict[str, Any], found)

    def now(self) -> datetime:
        return now()

    # -- calls

    async def act(self, one: Prepared, request: ActionRequest) -> Any:
        if request.action_type == "start_run":
            child = await start_child(request.workflow, *request.args, policy="abandon", id=request.id or None)
            return {"id": child.id}
        if request.action_type == "signal_run":
            await send(request.id, request.signal, request.request["body"])
            return {"id": request.id}
        found = await self.call_activity(one, "flow.action", request)
        return found["output"]

    async def ask(self, one: Prepared, request: AiRequest) -> Any:
        return await self.call_activity(one, "flow.ai_task", request)

    async def call(self, one: Prepared, name: str, args: list[Any], queue: str) -> Any:
        return await self.call_activity(one, name, *args, queue=queue)

    async def call_activity(self, one: Prepared, name: str, *args: Any, queue: str = "") -> Any:
        """What `call` does, without making a decoder each time."""
        made = self._runtime.call_activity(name, None, _ANYTHING, args, {}, self._options(one, queue))
        scope = self._current()
        return await (made if scope is None else scope.saga.step(None, args, {}, made))

    def _options(self, one: Prepared, queue: str = "") -> ActivityOptions:
        names = tuple(one.step.gates)
        if not names:
            return _options(one.retry, one.timeout, queue)
        unknown = [name for name in names if name not in self._gates]
        if unknown:
            known = ", ".join(self._gates) or "none"
            raise FlowFailed(f"this worker has no gate {', '.join(unknown)}; it has: {known}")
        return _options(one.retry, one.timeout, queue).merged({"gates": [self._gates[name] for name in names]})

    # -- waiting

    async def sleep(self, one: Prepared, seconds: float) -> None:
        if seconds:
            await asyncio.sleep(seconds)

    async def wait_event(self, one: Prepared, event: str, field: str, value: Any) -> dict[str, Any] | None:
        id = f"{wait_prefix(event, field, value)}{uuid()}"
        earlier: list[EarlierEvent] = []
        if field and patched("wait_event hears earlier events"):
            since, heard = self._start.event.created_at, [self._start.event.id, *self._heard]
            earlier.append(EarlierEvent(event=event, field=field, value=value, since=since, heard=heard))
        found: dict[str, Any] | None = await run_child(flow_wait, one.timeout, *earlier, id=id)
        if found is not None and field:
            self._heard = [*self._heard, found["id"]][-_MOST_HEARD:]
        return found

    async def approve(self, one: Prepared, request: ApprovalRequest, number: int) -> dict[str, Any] | None:
        decided: asyncio.Future[Decision] = asyncio.get_running_loop().create_future()
        waiting = self._asked.setdefault(one.key, {})
        waiting[number] = decided
        by_token = asyncio.ensure_future(self._ask_by_token(one, request))
        try:
            async with asyncio.timeout(one.timeout):
                await asyncio.wait({by_token, decided}, return_when=asyncio.FIRST_COMPLETED)
        except TimeoutError:
            return None
        finally:
            waiting.pop(number, None)
            if not by_token.done():
                by_token.cancel()
        return _decision(decided.result() if decided.done() else by_token.result())

    async def _ask_by_token(self, one: Prepared, request: ApprovalRequest) -> Any:
        current_saga.set(None)  # of this task alone: a saga would wait for an answer that never comes
        return await call("flow.approval", request, options=ActivityOptions(retry=one.retry))

    def _may_decide(self, decision: Decision) -> None:
        waiting = self._asked.get(decision.step, {})
        if not waiting or decision.number not in (0, *waiting):
            raise InvalidInput(f"no approval {decision.step!r} waits in this run: it was decided, or has not begun")

    async def _decide(self, decision: Decision) -> bool:
        waiting = self._asked.get(decision.step, {})
        decided = waiting.pop(decision.number or next(iter(waiting), 0), None)
        if decided is None:
            raise InvalidInput(f"the approval {decision.step!r} was decided already")
        decided.set_result(decision)
        return True

    # -- other runs

    async def sub_flow(self, one: Prepared, name: str, version: int | None, payload: Any) -> Any:
        if self._start.depth >= DEEPEST:
            raise FlowFailed(f"flows that run flows, more than {DEEPEST} levels")
        options = ActivityOptions(retry=one.retry)
        loaded: LoadedFlow = await call("flow.load", name, version, result=LoadedFlow, options=options)
        event = replace(
            self._start.event, id=str(uuid()), type="sub_flow", source="internal", payload=payload, created_at=now()
        )
        start = FlowStart(
            workflow_id=loaded.workflow_id,
            name=loaded.name,
            version=loaded.version,
            steps=loaded.steps,
            event=event,
            depth=self._start.depth + 1,
        )
        return await self._child(start, one.timeout)

    async def part(self, one: Prepared, items: list[Any], offset: int, context: Any, steps: Any) -> list[Any] | None:
        part = FlowPart(step=one.key, items=items, offset=offset, context=context, steps=steps)
        found = await self._child(replace(self._start, part=part, state=msgspec.UNSET), None)
        for key, request in found.get("undo", ()):
            self.undo(self._program.by_key[key], msgspec.convert(request, ActionRequest))
        results: list[Any] = found["results"]
        return results

    async def _child(self, start: FlowStart, timeout: float | None) -> Any:
        try:
            return await run_child(self._flow, start, tags=start.tags, timeout=timeout)
        except RunNotCompleted as error:
            said = str(error.__cause__ or error)
            raise FlowFailed(f"flow {start.name!r} {error.state.replace('_', ' ')}: {said}"[:2_000]) from error

    # -- compensations

    def undo(self, one: Prepared, request: ActionRequest) -> None:
        scope = self._current()
        if scope is None:
            raise FlowFailed(f"the compensation {one.key!r} belongs to no block")
        options = self._options(one)
        scope.saga(Actions.act.with_options(retry=options.retry, timeout=options.timeout), request)
        scope.requests.append((one.key, request))

    def undoes(self) -> list[Any]:
        scope = self._current()
        found: list[Any] = msgspec.to_builtins([] if scope is None else scope.requests)
        return found

    def scope(self) -> AbstractAsyncContextManager[Any]:
        return _Scope(None if self.is_apart() else self._scopes)

    def is_apart(self) -> bool:
        if self._is_apart is None:
            self._is_apart = patched("blocks have compensations of their own")
        return self._is_apart

    def _current(self) -> _Scope | None:
        """The scope of this branch; in runs from before that was told apart, the one that has begun last."""
        if self._is_apart is False:
            return self._scopes[-1] if self._scopes else None
        return _scope.get()

    def turn_back(self, at: str, context: dict[str, Any], steps: dict[str, Any]) -> None:
        if info().continue_hint and self._current() is None:
            state = FlowState(at=at, context=context, steps=steps, number=self.number, heard=self._heard)
            continue_as_new(replace(self._start, state=state))


class _Scope:
    """A saga, and the requests of its compensations. Branches that run at the same time have their own, unless there
    is one list for all of the run."""

    def __init__(self, all_of_run: list[_Scope] | None) -> None:
        self._all_of_run = all_of_run
        self.saga, self.requests = saga(), list[tuple[str, ActionRequest]]()

    async def __aenter__(self) -> None:
        await self.saga.__aenter__()
        self._outer = _scope.get()
        self._token = _scope.set(self)
        if self._all_of_run is not None:
            self._all_of_run.append(self)

    async def __aexit__(self, kind: type[BaseException] | None, *error: Any) -> None:  # noqa: PYI036 - passed on
        if self._all_of_run is not None:
            self._all_of_run.remove(self)
        with suppress(ValueError):  # the run leaves memory: its code is closed from outside
            _scope.reset(self._token)
        if kind is None and self._outer is not None:
            self._outer.requests += self.requests
        await self.saga.__aexit__(kind, *error)


_scope: Final[ContextVar[_Scope | None]] = ContextVar("batuta_flow_scope", default=None)


@lru_cache(maxsize=1_024)
def _options(retry: Any, timeout: float | None, queue: str) -> ActivityOptions:
    return ActivityOptions(retry=retry, timeout=timeout, queue=queue or None)


def _decision(given: Any) -> dict[str, Any]:
    """A person's decision, by token or update. Raises FlowFailed."""
    found = msgspec.to_builtins(given)
    if not isinstance(found, dict) or not isinstance(found.get("approved"), bool):
        raise FlowFailed('a decision must be an object such as {"approved": true}')
    return {name: found.get(name) for name in ("approved", "by", "comment", "data")}


async def _wait(timeout: float | None, earlier: EarlierEvent | None = None) -> dict[str, Any] | None:
    """Wait for an event, or find it among those that came before; None when it does not come in time. It is found or
    told: this run is there before it looks."""
    if earlier is not None:
        found: dict[str, Any] | None = await call("flow.heard", earlier, result=Any, options=_FOR_EVER)
        if found is not None:
            return found
    try:
        return await _EVENT.wait(timeout)
    except TimeoutError:
        return None


flow_wait: Final[Workflow[..., dict[str, Any] | None]] = Workflow(_wait, WAIT)


def make_flow(gates: Mapping[str, Gate] | None = None) -> Workflow[[FlowStart], dict[str, Any]]:
    """The workflow that runs flows, with the gates that their steps may name."""
    known = dict(gates or {})

    async def run_flow(start: FlowStart) -> dict[str, Any]:
        if start.room is not msgspec.UNSET and start.is_first:
            await call("flow.room", start.room, options=_FOR_EVER)
        program = program_of(bytes(start.steps))
        host = DurableHost(start, program, made, known)
        return await Interpreter(program, host).run(start, msgspec.to_builtins(start.event))

    made: Workflow[[FlowStart], dict[str, Any]] = Workflow(run_flow, FLOW, fails=[FlowFailed], dead_letter=True)
    return made


flow: Final = make_flow()
"""For clients: `client.start(flow, FlowStart(...))`. Workers get theirs from `Flows`."""


async def _in_the_store(name: str, version: int | None) -> FlowRecord | None:
    """The flow in the store of the worker that asks."""
    store, where = current_attempt("a sub_flow").store(), FlowFilter(name=name, published=True)
    rows = await store.flows(where, None if version is None else (name, version + 1), 1)
    row = next((row for row in rows if row.name == name and version in (None, row.version)), None)
    return None if row is None else workflow_view(row, "")


async def _since(store: FlowStore, wanted: EarlierEvent) -> datetime:
    """When the run's event came, by the store's clock, as for the events that it may hear. The sender's may differ."""
    begun = None
    with suppress(ValueError):  # ids of the caller's own
        begun = await store.event(UUID(wanted.heard[0])) if wanted.heard else None
    return wanted.since if begun is None else as_datetime(begun.created_at)


class Flows:
    """The parts of a worker that runs flows: `client.worker(**Flows().parts())`, or `App(**Flows().parts())`.

    `activities`: for `python` steps. `gates`: by the names that steps give. `policy` says which addresses actions may
    call; private ones are refused otherwise. `ai`: where models are asked; without it `ai_task` uses its fallback.
    `workflows_of`: finds published flows for `sub_flow`, in the place of the store. `publish`: in the place of the bus.
    """

    def __init__(
        self,
        *,
        activities: list[object] | tuple[object, ...] = (),
        gates: Mapping[str, Gate] | None = None,
        policy: AddressPolicy | None = None,
        limits: HttpLimits | None = None,
        secrets: Secrets | None = None,
        ai: AiEndpoint | None = None,
        publish: Publish | None = None,
        workflows_of: Loader | None = None,
    ) -> None:
        self.workflow = make_flow(gates)
        self._activities = activities
        self._workflows_of = workflows_of
        self._actions = Actions(policy=policy, limits=limits, secrets=secrets, ai=ai, publish=publish)

    @activity(name="flow.load")
    async def load(self, name: str, version: int | None) -> LoadedFlow:
        """The published flow that a `sub_flow` names."""
        find = self._workflows_of or _in_the_store
        found = await find(name, version)
        if found is None or found.published_at is None:
            which = f"{name!r}" if version is None else f"{name!r} version {version}"
            raise InvalidInput(f"there is no published flow {which}: publish it, and retry the run")
        return LoadedFlow(
            workflow_id=found.id, name=found.name, version=found.version, steps=Raw(msgspec.json.encode(found.steps))
        )

    @activity(name="flow.heard")
    async def heard(self, wanted: EarlierEvent) -> Event | None:
        """The first event since then that is as wanted, among the newest of its type."""
        store, path = current_attempt("a wait_event").store(), parse_path(wanted.field)
        known, found, before = set(wanted.heard), None, None
        since = await _since(store, wanted)
        for _ in range(_PAGES_HEARD):
            rows = await store.events(EventFilter(type=normalised_type(wanted.event)), before, _PAGE_HEARD)
            for row in rows:
                if as_datetime(row.created_at) < since:
                    return found
                if row.sealed or str(row.event_id) in known:
                    continue
                payload = payload_of(row)
                if same(look_up(payload, path), wanted.value):
                    found = event_view(row, store.namespace, payload)
            if len(rows) < _PAGE_HEARD:
                break
            before = rows[-1].event_id
        return found

    @activity(name="flow.room")
    async def room(self, room: FlowRoom) -> None:
        """Fails until fewer runs of the key than its limit, that began before this one, are open."""
        store, own = current_attempt("a flow's room").store(), activity_info().run_id
        before = await store.counted_runs(room.key)
        before = before[: before.index(own)] if own in before else before
        over = before[: max(0, len(before) - room.limit + 1)]
        for run_id in over if room.cancels else ():
            reason = "another event of its key came"
            with suppress(RunClosed, UnknownRun):
                await store.send(run_id, Message(message_id=f"cancel:{run_id}", kind=MessageKind.CANCEL, name=reason))
            await store.end_unbegun([run_id], reason)
        if over:
            raise FlowWaits(f"{len(over)} runs of its key began before and have not ended")

    def parts(self) -> dict[str, Any]:
        """The arguments of `worker` and of `App`."""
        return {"workflows": [self.workflow, flow_wait], "activities": [self, self._actions, *self._activities]}

    async def close(self) -> None:
        await self._actions.close()
