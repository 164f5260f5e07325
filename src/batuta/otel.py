"""OpenTelemetry spans as middleware: `connect(url, middleware=[Tracing()])`. Needs the extra `otel`.

The run's journal keeps the trace context of its start, so that all later work for it, in any process, belongs to the
same trace.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections import deque
from collections.abc import Callable, ItemsView, Iterator, KeysView, Mapping, Sequence, ValuesView
from contextvars import ContextVar, copy_context
from functools import lru_cache, partial
from traceback import format_exception
from typing import Any, ClassVar

from batuta.authoring.activity.attempt import CompleteLater
from batuta.authoring.middleware import TRACE, ActivityCall, AroundStart, AttemptFacts, Middleware, Proceed, Sent, Start
from batuta.clock import wall_ns
from batuta.errors import InvalidInput, MissingExtra
from batuta.ids import bits
from batuta.redaction import Redactor, from_env
from batuta.telemetry import Event, MessageReceived, RunClosed, WorkerLost, WorkerStopped

try:
    from opentelemetry import baggage, context, trace
except ImportError as error:
    raise MissingExtra("batuta.otel", "otel") from error

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    INVALID_SPAN_CONTEXT,
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    TracerProvider,
    TraceState,
    set_span_in_context,
)

log = logging.getLogger("batuta.otel")

_STATE, _BAGGAGE = "tracestate", "baggage"
_SECOND = 1_000_000_000
_GOOD = ("completed", "continued")
_NOTHING = Context()
(_SPAN,) = set_span_in_context(INVALID_SPAN, _NOTHING)
"""The key of the span in a context."""
_ALL = 2**224
"""The numbers that are drawn for a run: 32 bits decide whether it is traced, the others are its ids if it is not."""
_EVEN = frozenset("02468ace")
"""The last digit of a `traceparent` whose span was not sampled."""
_LATEST = 1.0
"""Seconds that the span of an attempt waits for the end of its run."""
_MANY = 64
"""Spans that are not left waiting: making them holds up the event loop for two milliseconds."""


def _variable() -> ContextVar[Context] | None:
    """Where OpenTelemetry keeps the current context, if that is a context variable."""
    mark, within = Context(), copy_context()
    within.run(context.attach, mark)
    return next((variable for variable, value in within.items() if value is mark), None)


def _attaching() -> tuple[Callable[[], Context], Callable[[Context], object]]:
    """`context.get_current` and `context.attach`, without their two calls: one is there for every start, the other for
    every attempt."""
    kept = _variable()
    if kept is None:
        return context.get_current, context.attach
    return partial(kept.get, _NOTHING), kept.set


_current, _attach = _attaching()


class Tracing(Middleware):
    """A span for each start, each attempt, each message and each run.

    `start NAME` (producer) is around the client's call. `activity NAME` or `job NAME` (consumer) is around an attempt
    and is current in its code. `run NAME` is made when a run has closed, with the times of its journal. All of them are
    children of the span that started the run; a run without a trace begins a new one. A run that was not sampled at its
    start makes no spans later, and costs almost nothing.

    `sample`: the share of traced runs, among those whose start is in no span. This is decided before the provider's
    sampler is asked, which costs as much as a span. The span of an attempt is made when its code asks for it; else with
    the run's span, at the latest a second after the attempt, with its original times.

    `signal NAME` (producer) and `update NAME` (client) are around the client's call, and `receive NAME` (consumer) is
    their child, made when the run has read the message, with a link to the trace of the run.

    `redactor`: hides data in ids and errors with their tracebacks. Without it, BATUTA_REDACT decides.
    """

    events: ClassVar[Sequence[type[Event]]] = (RunClosed, MessageReceived, WorkerStopped, WorkerLost)
    missing: ClassVar[str] = TRACE
    alike: ClassVar[bool] = True

    def __init__(
        self, provider: TracerProvider | None = None, *, sample: float = 1.0, redactor: Redactor | None = None
    ) -> None:
        if not 0 <= sample <= 1:
            raise InvalidInput(f"sample={sample!r} must be a share from 0 to 1")
        self._provider, self._tracer = provider, trace.get_tracer("batuta", tracer_provider=provider)
        self._sample = round(sample * _ALL)
        self._redactor = redactor or from_env()
        self._late: deque[_Late] = deque()
        """Ended attempts whose spans are not made yet."""
        self._timed_by: asyncio.AbstractEventLoop | None = None
        """The loop that has a timer to make them."""

    def _makes_none(self) -> bool:
        """Whether there is only the API of OpenTelemetry, and no SDK that would make spans."""
        provider = trace.get_tracer_provider() if self._provider is None else self._provider
        return isinstance(provider, trace.NoOpTracerProvider | trace.ProxyTracerProvider)

    def _left_out(self) -> str | None:
        """Ids without spans, for a run that is not of the share that is traced."""
        chance = bits(224)
        if chance < self._sample:
            return None
        ids = chance.to_bytes(28, "big").hex()  # as a format with a fixed number of digits, in half the time
        return f"00-{ids[8:40]}-{ids[40:]}-00"

    def before_start(self) -> Mapping[str, str] | str | AroundStart:
        # Mostly there is neither span nor baggage.
        headers = self._untraced() if _current() else self._left_out()
        return self._started if headers is None else headers

    async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
        headers = self._untraced()
        if headers is None:
            await self._started(starts, proceed)
            return
        for one in starts:
            one.headers.update(headers)
        await proceed()

    def _untraced(self) -> dict[str, str] | None:
        """Headers for a start that is not traced: ids for logs and called services, but no spans."""
        current = trace.get_current_span().get_span_context()
        if current.is_valid:
            return None if current.trace_flags.sampled else _carried(current)
        ids = self._left_out()
        return None if ids is None else _carried(current) | {TRACE: ids}

    async def _started(self, starts: Sequence[Start], proceed: Proceed) -> None:
        name = starts[0].name if len(starts) == 1 else f"{len(starts)} runs"
        span = self._tracer.start_span(f"start {name}", kind=SpanKind.PRODUCER)
        if span.is_recording():
            span.set_attributes(self._shown(_sent(starts)))
        headers = _carried(span.get_span_context())
        for one in starts:
            one.headers.update(headers)
        await _within(span, proceed, self._redactor)

    async def send(self, message: Sent, proceed: Proceed) -> None:
        if self._untraced() is not None:
            await proceed()
            return
        kind = SpanKind.PRODUCER if message.kind == "signal" else SpanKind.CLIENT
        span = self._tracer.start_span(f"{message.kind} {message.name}", kind=kind)
        if span.is_recording():
            about = _about(message.kind, message.name, "send") | {"batuta.id": message.id}
            span.set_attributes(self._shown(about))
        message.headers.update(_carried(span.get_span_context()))
        await _within(span, proceed, self._redactor)

    def begin(self, start: Start) -> None:
        ids = self._left_out()
        if ids is not None:
            start.headers[TRACE] = ids
        else:
            span = self._tracer.start_span(f"begin {start.name}", context=_NOTHING, kind=SpanKind.CONSUMER)
            if span.is_recording():
                span.set_attributes(self._shown(_sent([start])))
            start.headers.update(_carried(span.get_span_context()))
            span.end()

    def before(self, trace: str, headers: Mapping[str, str]) -> bool | Callable[[], object]:
        # Never detached: the next attempt in the same context attaches its own.
        if trace[-1:] in _EVEN:
            if not headers:
                return partial(_attach, Context({_SPAN: _Distant(trace, "")}))  # as `_distant` does
            return partial(_attach, _distant(trace, headers.get(_STATE, ""), headers.get(_BAGGAGE, "")))
        if trace or not self._makes_none():
            return True
        context.attach(_NOTHING)
        return False

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        parent = _parent_of(call.trace, call.headers)
        if call.trace[-1:] not in _EVEN:
            return await self._traced(call, parent, proceed)
        token = context.attach(parent)
        try:
            return await proceed()
        finally:
            context.detach(token)

    async def _traced(self, call: ActivityCall, parent: Context, proceed: Proceed) -> Any:
        late = _Late(self._attempt, call, parent)
        token = context.attach(late)
        try:
            return await proceed()
        except CompleteLater:
            late.span.add_event("to be completed from outside")
            raise
        except BaseException as error:
            _note(late.span, error, self._redactor)
            raise
        finally:
            context.detach(token)
            late.ended_at = wall_ns()
            self._ended(late)

    def _ended(self, late: _Late) -> None:
        self._late.append(late)
        if late.is_made or len(self._late) >= _MANY:
            self._make_all()
        elif self._timed_by is not (loop := asyncio.get_running_loop()):  # that of another may never run again
            self._timed_by = loop
            loop.call_later(_LATEST, self._wait_no_longer)

    def _wait_no_longer(self) -> None:
        self._timed_by = None
        self._make_all()

    def _make_all(self) -> None:
        """All spans that wait, one after the other: the first has the SDK's code come into the processor's caches, and
        the others find it there."""
        while True:
            try:
                late = self._late.popleft()
            except IndexError:  # not asked for before: workers in other threads may have the same Tracing
                return
            try:
                late.span.end(late.ended_at)
            except Exception:  # it must not belong to the attempt that calls this
                log.exception("the span of an attempt could not be ended")

    def _attempt(self, call: ActivityCall, parent: Context, began_at: int) -> Span:
        facts = call.facts
        # With its attributes at once: as its parent is sampled, they are wanted.
        about = self._shown(_called(facts))
        return self._tracer.start_span(
            f"{facts.kind} {facts.name}", parent, SpanKind.CONSUMER, about, start_time=began_at
        )

    def _shown(self, attributes: dict[str, Any]) -> dict[str, Any]:
        return attributes if self._redactor is None else self._redactor.value(attributes)

    def _received(self, event: MessageReceived) -> None:
        """A span in the trace of the sender, with a link to that of the run."""
        sent, run = event.headers.get(TRACE, ""), event.run
        if not sent or sent[-1] in _EVEN:
            return
        at = round(event.at * _SECOND)
        links = [Link(_Distant(run.trace, "").get_span_context())] if run.trace else []
        parent = _parent_of(sent, event.headers)
        span = self._tracer.start_span(
            f"receive {event.about}", context=parent, kind=SpanKind.CONSUMER, links=links, start_time=at
        )
        if span.is_recording():
            of_run = {"batuta.id": run.id, "batuta.run_id": str(run.run_id)}
            span.set_attributes(self._shown(_about(event.message, event.about, "process") | of_run))
        span.end(at)

    def event(self, event: Event) -> None:
        if type(event) is RunClosed:
            trace = event.run.trace
            if trace and trace[-1] not in _EVEN:
                self._make_all()
                self._ran(event)
        elif type(event) is MessageReceived:
            self._received(event)
        else:
            self._wait_no_longer()

    def _ran(self, event: RunClosed) -> None:
        parent = _parent(event.run.trace)
        end = round(event.at * _SECOND)
        span = self._tracer.start_span(
            f"run {event.run.name}",
            context=parent,
            kind=SpanKind.INTERNAL,
            start_time=end - round(event.seconds * _SECOND),
        )
        if span.is_recording():
            span.set_attributes(self._shown(_of_run(event)))
            if event.state not in _GOOD:
                said = event.message or event.state
                shown = said if self._redactor is None else self._redactor.text(said)
                span.set_status(Status(StatusCode.ERROR, shown))
        span.end(end)


# -- the context on its way through the journal


def _carried(of: SpanContext) -> dict[str, str]:
    """Headers for all later work of a run. None without a tracer that makes ids."""
    headers: dict[str, str] = {}
    if of.is_valid:
        headers[TRACE] = f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}"
        if of.trace_state:
            headers[_STATE] = of.trace_state.to_header()
    if baggage.get_all():
        W3CBaggagePropagator().inject(headers)
    return headers


class _Distant(NonRecordingSpan):
    """The span that a run was started in. Most of them are never looked at, so they are only read then."""

    _read: SpanContext | None = None

    def __init__(self, carried: str, state: str) -> None:
        self._carried, self._state = carried, state

    def get_span_context(self) -> SpanContext:
        if self._read is None:  # samplers ask for it several times a span
            self._read = self._context_of()
        return self._read

    def __repr__(self) -> str:
        return f"NonRecordingSpan({self.get_span_context()!r})"

    def _context_of(self) -> SpanContext:
        try:
            _, trace_id, span_id, flags = self._carried.split("-")[:4]
            return SpanContext(
                int(trace_id, 16),
                int(span_id, 16),
                is_remote=True,
                trace_flags=TraceFlags(int(flags, 16)),
                trace_state=TraceState.from_header([self._state]) if self._state else None,
            )
        except ValueError:
            return INVALID_SPAN_CONTEXT


def _distant(carried: str, state: str = "", bag: str = "") -> Context:
    """The context of the span that started a run. An untraced run gets an empty one."""
    if carried and not bag:
        return Context({_SPAN: _Distant(carried, state)})  # as below, without a copy of nothing: once for every run
    found = W3CBaggagePropagator().extract({_BAGGAGE: bag}, _NOTHING) if bag else _NOTHING
    return set_span_in_context(_Distant(carried, state), found) if carried else found


_parent = lru_cache(maxsize=4_096)(_distant)
"""Of a run that is traced, and asks for it again in every attempt."""


def _parent_of(carried: str, headers: Mapping[str, str]) -> Context:
    return _parent(carried, headers.get(_STATE, ""), headers.get(_BAGGAGE, "")) if headers else _parent(carried)


_making = threading.RLock()
"""A span may be asked for in the thread of its attempt, and must be made once."""
os.register_at_fork(after_in_child=_making._at_fork_reinit)  # type: ignore[attr-defined]


class _Late(Context):
    """The context of a traced attempt, with a span that is made when it is asked for."""

    def __init__(self, make: Callable[[ActivityCall, Context, int], Span], call: ActivityCall, parent: Context) -> None:
        self._make, self._call, self._parent = make, call, parent
        self._began_at, self.ended_at = wall_ns(), 0
        self._made: Context | None = None
        self._span: Span = INVALID_SPAN

    @property
    def is_made(self) -> bool:
        return self._made is not None

    @property
    def span(self) -> Span:
        self._with_span()
        return self._span

    def _with_span(self) -> Context:
        with _making:
            if self._made is None:
                self._made = self._parent  # for a span processor that asks for the current one while this is made
                span = self._make(self._call, self._parent, self._began_at)
                self._span, self._made = span, set_span_in_context(span, self._parent)
            return self._made

    def get(self, key: str, default: Any = None) -> Any:
        return (self._with_span() if key == _SPAN else self._parent).get(key, default)

    def __getitem__(self, key: str) -> object:
        return self._with_span()[key]

    def __contains__(self, key: object) -> bool:
        return key in self._with_span()

    def __iter__(self) -> Iterator[str]:
        return iter(self._with_span())

    def __len__(self) -> int:
        return len(self._with_span())

    def keys(self) -> KeysView[str]:  # type: ignore[override]
        return self._with_span().keys()

    def values(self) -> ValuesView[object]:  # type: ignore[override]
        return self._with_span().values()

    def items(self) -> ItemsView[str, object]:  # type: ignore[override]
        return self._with_span().items()

    def copy(self) -> dict[str, object]:
        return self._with_span().copy()

    def __or__(self, other: dict[str, object]) -> dict[str, object]:  # type: ignore[override]
        return self._with_span() | other

    def __ror__(self, other: dict[str, object]) -> dict[str, object]:  # type: ignore[override]
        return other | self._with_span()

    def __eq__(self, other: object) -> bool:
        return self is other or self._with_span() == other

    __hash__ = None  # type: ignore[assignment]  # as that of any dict

    def __repr__(self) -> str:
        return repr(self._with_span())


async def _within(span: Span, proceed: Proceed, redactor: Redactor | None) -> Any:
    """Go on with the span as the current one, and end it with what comes of that."""
    token = context.attach(set_span_in_context(span))
    try:
        return await proceed()
    except BaseException as error:
        _note(span, error, redactor)
        raise
    finally:
        context.detach(token)
        span.end()


def _note(span: Span, error: BaseException, redactor: Redactor | None) -> None:
    failure = getattr(error, "failure", None)  # of one in a process, where the error itself was left
    kind = type(error).__name__ if failure is None else failure.kind
    message = str(error)
    if redactor is None:
        span.record_exception(error)
    else:
        message, trace = redactor.text(message), redactor.text("".join(format_exception(error)))
        span.record_exception(error, {"exception.message": message, "exception.stacktrace": trace})
    span.set_status(Status(StatusCode.ERROR, f"{kind}: {message}"))


# -- attributes


def _sent(starts: Sequence[Start]) -> dict[str, Any]:
    first = starts[0]
    found: dict[str, Any] = {
        "messaging.system": "batuta",
        "messaging.operation.type": "send",
        "messaging.destination.name": first.queue,
        "batuta.kind": first.kind,
        "batuta.name": first.name,
    }
    if len(starts) > 1:
        found["messaging.batch.message_count"] = len(starts)
    if first.id is not None:
        found["batuta.id"] = first.id
    return found


_text = lru_cache(maxsize=4_096)(str)
"""Of a run's id, which is the same object for all of its attempts: asking for it costs as much as three attributes."""


def _about(kind: str, name: str, operation: str) -> dict[str, Any]:
    return {
        "messaging.system": "batuta",
        "messaging.operation.type": operation,
        "batuta.kind": kind,
        "batuta.name": name,
    }


def _called(facts: AttemptFacts) -> dict[str, Any]:
    return {
        "messaging.system": "batuta",
        "messaging.operation.type": "process",
        "messaging.destination.name": facts.queue,
        "batuta.kind": facts.kind,
        "batuta.name": facts.name,
        "batuta.id": facts.id,
        "batuta.run_id": _text(facts.run_id),
        "batuta.seq": facts.seq,
        "batuta.attempt": facts.attempt,
    }


def _of_run(event: RunClosed) -> dict[str, Any]:
    return {
        "batuta.kind": event.run.kind,
        "batuta.name": event.run.name,
        "batuta.id": event.run.id,
        "batuta.run_id": str(event.run.run_id),
        "batuta.state": event.state,
        "batuta.entries": event.entries,
    }
