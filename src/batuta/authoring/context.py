"""What workflow code may ask of its run. Everything here is the same in every replay."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Coroutine, Mapping, MutableMapping
from contextvars import ContextVar
from datetime import UTC, datetime, timedelta
from random import Random
from typing import TYPE_CHECKING, Any, Protocol, TypeVar
from uuid import UUID

from msgspec import Struct

from batuta.authoring.options import ActivityOptions
from batuta.errors import WorkerError
from batuta.ids import RunId
from batuta.serde import Codec, Decoder, decoder_for

if TYPE_CHECKING:
    from batuta.authoring.children import Kinship

_log = logging.getLogger("batuta.engine")

T = TypeVar("T")

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXACT = 1 << 52  # in the year 2112


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
    """The W3C `traceparent` of whoever started it."""
    headers: Mapping[str, str] = {}
    """What it was started with besides its arguments, for middleware."""
    continue_hint: bool = False
    """It is time to `continue_as_new`: the journal has 10,000 entries (or what the workflow says), or the run is a day
    old."""


class NamedTimers(Protocol):
    """The named timers of a run. Times are microseconds."""

    def wait(self, timer_id: str, fire_at: int) -> Coroutine[Any, Any, bool]: ...
    def cancel(self, timer_id: str) -> bool: ...


class Messages(Protocol):
    """What a run receives, as its workflow code sees it through signals, updates and queries."""

    async def receive(self, name: str, decoder: Decoder, timeout: float | None) -> Any: ...
    def handle_signal(self, name: str, decoder: Decoder, fn: Callable[[Any], Any]) -> None: ...
    def handle_update(
        self, name: str, decoder: Decoder, fn: Callable[..., Any], validator: Callable[..., Any] | None
    ) -> None: ...
    async def handlers_done(self) -> None: ...
    def handle_query(self, name: str, decoder: Decoder, fn: Callable[..., Any]) -> None: ...


class Runtime(Protocol):
    """A run, as its workflow code sees it through the functions below. Given by the backend."""

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
    def publish(self, name: str, value: Any) -> None: ...
    def messages(self) -> Messages: ...
    def kinship(self) -> Kinship: ...
    def patched(self, id: str, *, deprecated: bool) -> bool: ...
    def named_timers(self) -> NamedTimers: ...


current_runtime: ContextVar[Runtime | None] = ContextVar("batuta_runtime", default=None)
"""Set in the context of a run's first task, and so in all that it starts."""


def runtime_for(asked: str) -> Runtime:
    """The run that is asking. Raises WorkerError when `asked` is called elsewhere."""
    runtime = current_runtime.get()
    if runtime is None:
        raise WorkerError(f"{asked} was called outside a workflow: only workflow code that a worker runs can use it")
    return runtime


def kinship(asked: str) -> Kinship:
    """What the run that calls this does with other runs."""
    return runtime_for(asked).kinship()


def now() -> datetime:
    """The time on the run's tape, UTC: when the input of this turn came."""
    runtime = current_runtime.get() or runtime_for("now()")
    return moment_of(runtime.now())


def moment_of(micros: int) -> datetime:
    """So many microseconds after 1970."""
    if 0 <= micros < _EXACT:  # a float tells them apart, and takes a quarter of the time
        return datetime.fromtimestamp(micros / 1e6, UTC)
    return _EPOCH + timedelta(microseconds=micros)


def random() -> Random:
    """The run's own random numbers."""
    return runtime_for("random()").random()


def uuid() -> UUID:
    """A UUID of the run's own."""
    return runtime_for("uuid()").uuid()


def info() -> RunInfo:
    """Who and where this run is."""
    return runtime_for("info()").info()


async def side_effect(make: Callable[[], T], result: Any = None) -> T:
    """Call `make` once, live, and keep its value in the journal: a replay gives the value and does not call it.

    For quick things that are not deterministic (an environment variable, a feature flag). It must not block, and it
    can run again when the worker dies before the turn is durable: what touches the world belongs in an activity.
    `result` is the type to decode to.
    """
    decoder = None if result is None else decoder_for(result, "a side effect")
    value: T = runtime_for("side_effect()").side_effect(make, decoder)
    return value


async def call(name: str, *arguments: Any, result: Any = None, options: ActivityOptions | None = None) -> Any:
    """An activity by its name. `result` is the type to decode to; plain JSON values without it."""
    decoder = decoder_for(Any if result is None else result, f"the result of activity {name!r}")
    runtime = runtime_for("call()")
    return await runtime.call_activity(name, None, decoder, arguments, {}, options or ActivityOptions())


def trace_ids(trace: str) -> dict[str, str]:
    """What of a `traceparent` belongs in a log record."""
    parts = trace.split("-")
    return {"trace_id": parts[1], "span_id": parts[2]} if len(parts) == 4 else {}


class WorkflowLogger(logging.LoggerAdapter[logging.Logger]):
    """Log lines of workflow code: they go out when their turn is durable, and never in replay."""

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        runtime = current_runtime.get()
        if runtime is None:
            super().log(level, msg, *args, **kwargs)
        elif self.isEnabledFor(level) and not (info := runtime.info()).replaying:
            where = {"run_id": str(info.run_id), "run": info.id, "workflow": info.workflow} | trace_ids(info.trace)
            extra = where | (kwargs.pop("extra", None) or {})
            try:
                record = self._record(level, msg, args, extra, **kwargs)
            except Exception as error:  # noqa: BLE001 - a bad log call must not change what the workflow does
                _log.warning("a log line of run %s could not be made: %r", info.id, error)
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
