"""Spans of OpenTelemetry, as middleware: `connect(url, middleware=[Tracing()])`. Needs the extra `otel`.

The trace context of whoever starts a run is kept in the run's journal, so that all that is done for it later, by
whatever process, belongs to the same trace.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, ClassVar

from batuta.authoring.attempt import CompleteLater
from batuta.authoring.middleware import TRACE, ActivityCall, Middleware, Proceed, Start
from batuta.errors import MissingExtra
from batuta.telemetry import Event, RunClosed

try:
    from opentelemetry import baggage, context, trace
except ImportError as error:
    raise MissingExtra("batuta.otel", "otel") from error

from opentelemetry.baggage.propagation import W3CBaggagePropagator
from opentelemetry.context import Context
from opentelemetry.trace import (
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

_STATE, _BAGGAGE = "tracestate", "baggage"
_SECOND = 1_000_000_000
_GOOD = ("completed", "continued")
_NOTHING = Context()


class Tracing(Middleware):
    """A span for each start, each attempt and each run.

    `start NAME` (producer) is around the client's call. `activity NAME` or `job NAME` (consumer) is around an attempt
    and is current in its code. `run NAME` is made when a run has closed, with the times of its journal. All of them are
    children of the span that started the run; a run that nobody traced begins a trace of its own. What was not sampled
    at its start makes no spans later.
    """

    events: ClassVar[Sequence[type[Event]]] = (RunClosed,)

    def __init__(self, provider: TracerProvider | None = None) -> None:
        self._tracer = trace.get_tracer("batuta", tracer_provider=provider)

    async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
        name = starts[0].name if len({one.name for one in starts}) == 1 else f"{len(starts)} runs"
        span = self._tracer.start_span(f"start {name}", kind=SpanKind.PRODUCER)
        if span.is_recording():
            span.set_attributes(_sent(starts))
        headers = _carried(span)
        for one in starts:
            one.headers.update(headers)
        with trace.use_span(span, end_on_exit=True):
            await proceed()

    def begin(self, start: Start) -> None:
        if TRACE not in start.headers:
            span = self._tracer.start_span(f"begin {start.name}", context=_NOTHING, kind=SpanKind.CONSUMER)
            if span.is_recording():
                span.set_attributes(_sent([start]))
            start.headers.update(_carried(span))
            span.end()

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        headers = call.headers
        parent = _parent(call.trace, headers.get(_STATE, ""), headers.get(_BAGGAGE, "")) if call.trace else _NOTHING
        if call.trace and not trace.get_current_span(parent).get_span_context().trace_flags.sampled:
            token = context.attach(parent)
            try:
                return await proceed()
            finally:
                context.detach(token)
        return await self._traced(call, parent, proceed)

    async def _traced(self, call: ActivityCall, parent: Context, proceed: Proceed) -> Any:
        span = self._tracer.start_span(f"{call.kind} {call.name}", context=parent, kind=SpanKind.CONSUMER)
        if span.is_recording():
            span.set_attributes(_called(call))
        token = context.attach(set_span_in_context(span, parent))
        try:
            return await proceed()
        except CompleteLater:
            span.add_event("to be completed from outside")
            raise
        except BaseException as error:
            span.record_exception(error)
            span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
            raise
        finally:
            context.detach(token)
            span.end()

    def event(self, event: Event) -> None:
        if not isinstance(event, RunClosed) or not event.trace:
            return
        parent = _parent(event.trace, "", "")
        if not trace.get_current_span(parent).get_span_context().trace_flags.sampled:
            return
        end = round(event.at * _SECOND)
        span = self._tracer.start_span(
            f"run {event.name}", context=parent, kind=SpanKind.INTERNAL, start_time=end - round(event.seconds * _SECOND)
        )
        if span.is_recording():
            span.set_attributes(_ran(event))
            if event.state not in _GOOD:
                span.set_status(Status(StatusCode.ERROR, event.message or event.state))
        span.end(end)


# -- the context on its way through the journal


def _carried(span: Span) -> dict[str, str]:
    """What a run is given, for whatever is done for it later. Nothing without a tracer that makes ids."""
    of = span.get_span_context()
    if not of.is_valid:
        return {}
    headers = {TRACE: f"00-{of.trace_id:032x}-{of.span_id:016x}-{of.trace_flags:02x}"}
    if of.trace_state:
        headers[_STATE] = of.trace_state.to_header()
    if baggage.get_all():
        W3CBaggagePropagator().inject(headers)
    return headers


@lru_cache(maxsize=4_096)
def _parent(carried: str, state: str, bag: str) -> Context:
    """The context of the span that a run was started in. Of what cannot be read, none."""
    found = _NOTHING
    if bag:
        found = W3CBaggagePropagator().extract({_BAGGAGE: bag}, found)
    try:
        _, trace_id, span_id, flags = carried.split("-")[:4]
        of = SpanContext(
            int(trace_id, 16),
            int(span_id, 16),
            is_remote=True,
            trace_flags=TraceFlags(int(flags, 16)),
            trace_state=TraceState.from_header([state]) if state else None,
        )
    except ValueError:
        return found
    return set_span_in_context(NonRecordingSpan(of), found) if of.is_valid else found


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


def _called(call: ActivityCall) -> dict[str, Any]:
    return {
        "messaging.system": "batuta",
        "messaging.operation.type": "process",
        "messaging.destination.name": call.queue,
        "batuta.kind": call.kind,
        "batuta.name": call.name,
        "batuta.id": call.id,
        "batuta.run_id": str(call.run_id),
        "batuta.seq": call.seq,
        "batuta.attempt": call.attempt,
    }


def _ran(event: RunClosed) -> dict[str, Any]:
    return {
        "batuta.kind": event.kind,
        "batuta.name": event.name,
        "batuta.id": event.id,
        "batuta.run_id": str(event.run_id),
        "batuta.state": event.state,
        "batuta.entries": event.entries,
    }
