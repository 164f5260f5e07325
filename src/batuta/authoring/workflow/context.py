"""The run as workflow code sees it. Everything here is the same in every replay."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, MutableMapping, Sequence
from contextvars import ContextVar
from datetime import datetime
from random import Random
from typing import Any, NoReturn, ParamSpec, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from batuta.authoring.call_options import ActivityOptions, check_seconds
from batuta.authoring.retry import Retry
from batuta.clock import as_datetime
from batuta.durations import Duration, in_seconds
from batuta.errors import Forbidden, InvalidInput, WorkerError, told
from batuta.ids import RunId
from batuta.journal.records import ParentPolicy
from batuta.serde import Codec, Decoder, decoder_for

_log = logging.getLogger("batuta.engine")

P = ParamSpec("P")
T = TypeVar("T")


class RunInfo(Struct, frozen=True):
    """Who and where this run is."""

    run_id: RunId
    id: str
    workflow: str
    queue: str
    namespace: str
    entries: int
    """Journal entries so far."""
    started_at: datetime
    version: str
    replaying: bool
    """For logs and metrics alone: code that behaves otherwise in replay is not deterministic."""
    attempt: int = 1
    """Counts the tries of a run that is retried."""
    trace: str = ""
    """The W3C `traceparent` of its start."""
    headers: Mapping[str, str] = {}
    """Headers that it was started with, for middleware."""
    continue_hint: bool = False
    """Whether to `continue_as_new`: the journal has 10,000 entries (or the workflow's limit), or the run is a day
    old."""
    parent_id: str | None = None
    """The id of the run that started this one as its child."""
    slot: datetime | None = None
    """The time that a schedule began it for, which may be long over; of a triggered run, when that was."""


class NamedTimers(Protocol):
    """The named timers of a run. Times are microseconds."""

    def wait(self, timer_id: str, fire_at: int) -> Coroutine[Any, Any, bool]: ...
    def cancel(self, timer_id: str) -> bool: ...


class Messages(Protocol):
    """The messages of a run, as its workflow code sees them through signals, updates and queries."""

    async def receive(self, name: str, decoder: Decoder, timeout: float | None) -> Any: ...
    def handle_signal(self, name: str, decoder: Decoder, fn: Callable[[Any], Any]) -> None: ...
    def handle_update(
        self, name: str, decoder: Decoder, fn: Callable[..., Any], validator: Callable[..., Any] | None
    ) -> None: ...
    async def handlers_done(self) -> None: ...
    def handle_query(self, name: str, decoder: Decoder, fn: Callable[..., Any]) -> None: ...


class ChildOptions(Struct, frozen=True, kw_only=True):
    """How a child is started. Times are seconds; None is no limit."""

    id: str | None = None
    queue: str | None = None
    """None: the parent's."""
    policy: ParentPolicy = ParentPolicy.CANCEL
    """The policy for when its parent closes."""
    timeout: float | None = None
    execution_timeout: float | None = None
    retry: Retry | None = None
    tags: Mapping[str, str] = {}
    memo: Any = None
    priority: int = 0
    delay: float = 0.0
    version: str | None = None
    """None: the definition's."""
    key: str = ""
    """What its queue's limits per key count by, and what the queue is fair between."""
    expires: float | None = None
    """It times out when no worker has begun it by then."""


class ChildRun(Protocol):
    """A child that the store has accepted, as the backend keeps it."""

    id: str

    def result(self) -> Coroutine[Any, Any, Any]: ...
    def cancel(self, reason: str) -> None: ...


class ChildRuntime(Protocol):
    """The children and messages of a run. Given by the backend."""

    def run_child(
        self, workflow: Any, args: tuple[Any, ...], options: ChildOptions, result: Any
    ) -> Coroutine[Any, Any, Any]: ...
    def start_child(
        self, workflow: Any, args: tuple[Any, ...], options: ChildOptions, result: Any
    ) -> Coroutine[Any, Any, ChildRun]: ...
    def send(
        self, id: str, name: str, value: Any, decoder: Decoder | None, message_id: str = ""
    ) -> Coroutine[Any, Any, None]: ...


class Compensations(Protocol):
    """The compensations of a run. Given by the backend."""

    def register(
        self,
        name: str,
        codec: Codec,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        options: ActivityOptions,
        undoes: str,
    ) -> int: ...
    def keep(self, seqs: Sequence[int]) -> None: ...
    def run(self, seqs: Sequence[int]) -> Coroutine[Any, Any, list[str]]: ...


class StepGuard(Protocol):
    """A saga, as the activities that are called in it see it."""

    def step(
        self, activity: Any, args: tuple[Any, ...], kwargs: dict[str, Any], call: Coroutine[Any, Any, T]
    ) -> Coroutine[Any, Any, T]: ...


class Runtime(Protocol):
    """A run, as its workflow code sees it through the functions below. Given by the backend."""

    made: list[Any]
    """Coroutines that its code got in this turn: a coroutine that it forgets to await would do nothing."""

    def call_activity(
        self,
        name: str,
        codec: Codec | None,
        decoder: Decoder,
        args: Any,
        kwargs: dict[str, Any],
        options: ActivityOptions,
    ) -> Coroutine[Any, Any, Any]: ...
    def now(self) -> int: ...
    def random(self) -> Random: ...
    def uuid(self) -> UUID: ...
    def info(self) -> RunInfo: ...
    def side_effect(self, make: Callable[[], Any], result: Decoder | None) -> Any: ...
    def log(self, emit: Callable[[], None]) -> None: ...
    @property
    def logged(self) -> dict[str, str]: ...
    def publish(self, name: str, value: Any) -> None: ...
    def messages(self) -> Messages: ...
    def kinship(self) -> ChildRuntime: ...
    def continue_as_new(self, args: tuple[Any, ...], version: str | None) -> NoReturn: ...
    def at_safe_point(self, args: tuple[Any, ...]) -> bool: ...
    def patched(self, id: str, *, deprecated: bool) -> bool: ...
    def compensations(self) -> Compensations: ...
    def timeout_left(self) -> float | None: ...
    def named_timers(self) -> NamedTimers: ...
    def wait_until(self, condition: Callable[[], Any], timeout: float | None) -> Coroutine[Any, Any, None]: ...


current_runtime: ContextVar[Runtime | None] = ContextVar("batuta_runtime", default=None)
"""Set in the context of a run's first task, and so in all that it starts."""


current_saga: ContextVar[StepGuard | None] = ContextVar("batuta_saga", default=None)
"""The innermost saga whose block the code is in."""


def noticed(fn: Callable[P, Coroutine[Any, Any, T]]) -> Callable[P, Coroutine[Any, Any, T]]:
    """For an async function that workflow code must await: a run that does not is parked."""

    @functools.wraps(fn)
    def made(*args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, T]:
        call, runtime = fn(*args, **kwargs), current_runtime.get()
        if runtime is not None:
            runtime.made.append(call)
        return call

    return made


def runtime_for(asked: str) -> Runtime:
    """The run that is asking. Raises WorkerError when `asked` is called elsewhere."""
    runtime = current_runtime.get()
    if runtime is None:
        raise WorkerError(f"{asked} was called outside a workflow: only workflow code that a worker runs can use it")
    return runtime


def refuse_in_workflow() -> None:
    """For what a client does. Raises Forbidden in workflow code: each replay would do it again."""
    if current_runtime.get() is not None:
        raise Forbidden(
            "workflow code used a client, which cannot be replayed: start a child, send a signal with `send`, or use "
            "the client in an activity"
        )


def now() -> datetime:
    """The time on the run's tape, UTC: when the input of this turn came."""
    runtime = current_runtime.get() or runtime_for("now()")
    return as_datetime(runtime.now())


def random() -> Random:
    """The run's own random numbers."""
    return runtime_for("random()").random()


def uuid() -> UUID:
    """A UUID of the run's own."""
    return runtime_for("uuid()").uuid()


def info() -> RunInfo:
    """Who and where this run is."""
    return runtime_for("info()").info()


@noticed
async def wait_until(condition: Callable[[], Any], timeout: Duration | None = None) -> None:
    """Wait until `condition()` is true: `await wait_until(lambda: len(items) > 2)`. It still holds when this returns.

    It is a plain function over state that handlers of signals and updates, or other tasks of the run, change. It is
    called now and after each input of the run, and only reads: it must not wait, act, or wake anything. Raises its
    errors, and TimeoutError after `timeout` seconds (a durable timer).
    """
    seconds = in_seconds(timeout)
    check_seconds("timeout", seconds)
    if not callable(condition):
        raise InvalidInput(f"wait_until() takes a function, such as `lambda: done`, and not {condition!r}")
    await runtime_for("wait_until()").wait_until(condition, seconds)


@noticed
async def side_effect(make: Callable[[], T], result: Any = None) -> T:
    """Call `make` once, live, and keep its value in the journal: a replay gives the value and does not call it.

    For quick things that are not deterministic (an environment variable, a feature flag). It must not block, and it
    can run again when the worker dies before the turn is durable: what touches the world belongs in an activity.
    `result` is the type to decode to.
    """
    decoder = None if result is None else decoder_for(result, "a side effect")
    value: T = runtime_for("side_effect()").side_effect(make, decoder)
    return value


@noticed
async def call(name: str, *arguments: Any, result: Any = None, options: ActivityOptions | None = None) -> Any:
    """An activity by its name. `result` is the type to decode to; plain JSON values without it."""
    decoder = decoder_for(Any if result is None else result, f"the result of activity {name!r}")
    runtime = runtime_for("call()")
    made = runtime.call_activity(name, None, decoder, arguments, {}, options or ActivityOptions())
    saga = current_saga.get()
    return await (made if saga is None else saga.step(None, arguments, {}, made))


def span_of(trace: str) -> dict[str, str]:
    """The span of a `traceparent`, for a log record."""
    parts = trace.split("-")
    return {"span_id": parts[2]} if len(parts) == 4 else {}


class WorkflowLogger(logging.LoggerAdapter[logging.Logger]):
    """Log lines of workflow code: they go out when their turn is durable, and never in replay."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        runtime = current_runtime.get()
        if runtime is None:
            super().log(level, msg, *args, **kwargs)
        elif self.isEnabledFor(level) and not (info := runtime.info()).replaying:
            where = runtime.logged | {"workflow": info.workflow} | span_of(info.trace)
            extra = where | (kwargs.pop("extra", None) or {})
            try:
                record = self._record(level, msg, args, extra, **kwargs)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001 - a bad log call must not change the workflow
                _log.warning("a log line of run %s could not be made: %s", info.id, told(error))
            else:
                runtime.log(lambda: self.logger.handle(record))

    def _record(
        self,
        level: int,
        msg: object,
        args: tuple[object, ...],
        extra: dict[str, Any],
        *,
        exc_info: Any = None,
        stack_info: bool = False,
        stacklevel: int = 1,
    ) -> logging.LogRecord:
        """Made now, where the caller and its error are known; sent when the turn is durable."""
        if isinstance(exc_info, BaseException):
            exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
        elif exc_info and not isinstance(exc_info, tuple):
            exc_info = sys.exc_info()
        path, line, function, stack = self.logger.findCaller(stack_info, stacklevel + 2)
        made = self.logger.makeRecord(
            self.logger.name, level, path, line, msg, args, exc_info or None, function, extra, stack
        )
        made.msg, made.args = made.getMessage(), None
        return made


logger = WorkflowLogger(logging.getLogger("batuta.workflow"), None)
"""For workflow code."""
