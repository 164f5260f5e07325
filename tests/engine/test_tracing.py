"""Spans: one trace from whoever starts a run to all that is done for it, whatever process does it."""

import asyncio
from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from msgspec import UNSET
from opentelemetry import baggage, context, trace
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, StatusCode

from batuta import (
    CompleteLater,
    NonRetryable,
    Queue,
    Retry,
    RunFailed,
    Schedule,
    Signal,
    Update,
    activity,
    connect,
    every,
    job,
    run_child,
    send,
    sync,
    workflow,
)
from batuta.errors import InvalidInput
from batuta.otel import Tracing
from batuta.redaction import Redactor
from tests.engine.arena import Arena
from tests.engine.crunch import refuses
from tests.engine.kit import jobs, world
from tests.engine.spans import Spans


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


@activity
async def charge(cents: int) -> int:
    return cents


@activity
def print_label() -> str:
    of = trace.get_current_span().get_span_context()
    return f"{of.span_id:016x}"


@activity(retry=Retry(attempts=2, first=0.01))
async def declines() -> None:
    raise NonRetryable("declined")


@job
async def letter(name: str) -> str:
    return f"dear {name}"


@workflow
async def pays() -> int:
    return await charge(5)


@workflow
async def order() -> str:
    await charge(5)
    await run_child(pays)
    return await print_label()


@workflow
async def fails() -> None:
    await declines()


async def test_all_that_is_done_for_a_run_is_in_the_trace_of_its_start(spans: Spans) -> None:
    async with world(order, pays, charge, print_label, middleware=[Tracing(spans.provider)]) as env:
        with spans.tracer.start_as_current_span("request") as request:
            handle = await env.start(order, id="one")
        label = await handle.result()
    assert spans.names() == sorted(
        [
            "request",
            "start order",
            "run order",
            "activity charge",
            "activity charge",
            "run pays",
            "activity print_label",
        ]
    )
    assert {one.context.trace_id for one in spans.all} == {request.get_span_context().trace_id}
    started = spans.named("start order")
    assert started.kind is SpanKind.PRODUCER
    assert started.parent
    assert started.parent.span_id == request.get_span_context().span_id
    printed = spans.named("activity print_label")
    assert printed.kind is SpanKind.CONSUMER
    assert printed.parent
    assert printed.parent.span_id == started.context.span_id
    assert label == f"{printed.context.span_id:016x}"  # it was current, in its thread
    assert printed.attributes
    assert dict(printed.attributes) == {
        "messaging.system": "batuta",
        "messaging.operation.type": "process",
        "messaging.destination.name": "default",
        "batuta.kind": "activity",
        "batuta.name": "print_label",
        "batuta.id": "one",
        "batuta.run_id": str(handle.run_id),
        "batuta.seq": 3,
        "batuta.attempt": 1,
    }
    assert not trace.get_current_span().get_span_context().is_valid


async def test_the_span_of_a_run_has_the_times_of_its_journal(spans: Spans) -> None:
    @workflow
    async def naps() -> None:
        await asyncio.sleep(86_400)

    async with world(naps, middleware=[Tracing(spans.provider)]) as env:
        await env.run(naps)
    ran = spans.named("run naps")
    assert ran.start_time is not None
    assert ran.end_time is not None
    assert (ran.end_time - ran.start_time) / 1e9 == pytest.approx(86_400, abs=1)
    assert ran.attributes is not None
    assert ran.attributes["batuta.state"] == "completed"


async def test_the_context_outlives_the_worker(spans: Spans) -> None:
    async with world(order, pays, charge, print_label, middleware=[Tracing(spans.provider)]) as env:
        handle = await env.client.start(order, delay=60)
        await env.settle()
        await env.crash()
        await handle.result()
    assert len({one.context.trace_id for one in spans.all}) == 1
    assert "activity print_label" in spans.names()


async def test_errors_are_on_the_spans(spans: Spans) -> None:
    async with world(fails, declines, middleware=[Tracing(spans.provider)]) as env:
        with pytest.raises(RunFailed):
            await env.run(fails)
    for name in ("activity declines", "run fails"):
        assert spans.named(name).status.status_code is StatusCode.ERROR, name
        assert "declined" in (spans.named(name).status.description or "")
    assert spans.named("activity declines").events[0].name == "exception"
    assert spans.named("start fails").status.status_code is StatusCode.UNSET


async def test_a_start_that_fails_is_an_error(spans: Spans) -> None:
    async with world(pays, charge, middleware=[Tracing(spans.provider)]) as env:
        await env.start(pays, id="one")
        with pytest.raises(Exception, match="one"):
            await env.client.start(pays, id="one", if_exists="reject")
    assert [one.status.status_code for one in spans.all if one.name == "start pays"] == [
        StatusCode.UNSET,
        StatusCode.ERROR,
    ]


async def test_jobs_and_batches_are_traced(spans: Spans) -> None:
    async with jobs(letter, middleware=[Tracing(spans.provider)]) as env:
        batch = await env.enqueue_many([letter.call("a"), letter.call("b")])
        for handle in batch:
            await handle.result()
        await env.settle()
    sent = spans.named("start 2 runs")
    assert sent.attributes is not None
    assert sent.attributes["messaging.batch.message_count"] == 2
    assert spans.names() == ["job letter", "job letter", "run letter", "run letter", "start 2 runs"]
    assert {one.parent.span_id for one in spans.all if one.parent} == {sent.context.span_id}


async def test_what_an_activity_starts_is_below_its_span(spans: Spans) -> None:
    async with world(pays, charge, middleware=[Tracing(spans.provider)]) as env:

        @activity
        async def starts() -> str:
            return (await env.client.start(pays)).id

        @workflow
        async def outer() -> str:
            return await starts()

        await env.deploy(workflows=[outer, pays], activities=[charge, starts])
        inner = await env.run(outer)
        await (await env.get(inner)).result()
    begun = spans.named("start pays")
    assert begun.parent
    assert begun.parent.span_id == spans.named("activity starts").context.span_id


async def test_an_untraced_run_begins_a_new_trace(spans: Spans) -> None:
    schedule = Schedule("hourly", every(3600), order)
    async with world(
        order, pays, charge, print_label, middleware=[Tracing(spans.provider)], schedules=[schedule]
    ) as env:
        await env.advance(3700)
    begun = spans.named("begin order")
    assert begun.parent is None
    assert {one.context.trace_id for one in spans.all} == {begun.context.trace_id}
    assert "activity print_label" in spans.names()


async def test_an_activity_on_another_queue_names_its_caller(spans: Spans) -> None:
    @workflow
    async def sends() -> int:
        return await charge.with_options(queue="far")(1)

    queues = [Queue("default"), Queue("far")]
    async with world(sends, charge, middleware=[Tracing(spans.provider)], queues=queues) as env:
        handle = await env.start(sends, id="one")
        await handle.result()
    called = spans.named("activity charge")
    assert called.attributes is not None
    assert called.attributes["batuta.id"] == "one"
    assert called.attributes["messaging.destination.name"] == "far"
    assert called.parent
    assert called.parent.span_id == spans.named("start sends").context.span_id


async def test_an_unsampled_run_makes_no_spans_and_passes_its_context_on() -> None:
    unsampled = Spans(sampler=ParentBased(TraceIdRatioBased(0.0)))

    @activity
    async def looks() -> tuple[bool, bool]:
        of = trace.get_current_span().get_span_context()
        return of.is_valid, of.trace_flags.sampled

    @workflow
    async def asks() -> tuple[bool, bool]:
        return await looks()

    async with world(asks, looks, middleware=[Tracing(unsampled.provider)]) as env:
        assert await env.run(asks) == (True, False)
    assert unsampled.all == []


async def test_a_share_of_runs_can_be_traced_and_a_request_that_is_traced_always_is(spans: Spans) -> None:
    async with world(pays, charge, middleware=[Tracing(spans.provider, sample=0.0)]) as env:
        handle = await env.start(pays)
        await handle.result()
        assert spans.all == []
        start = (await handle.journal())[0].body.start
        assert start
        assert start.trace.endswith("-00")  # ids for logs and for whoever is called
        with spans.tracer.start_as_current_span("request"):
            traced = await env.start(pays)
        await traced.result()
    assert spans.names() == ["activity charge", "request", "run pays", "start pays"]


async def test_the_share_that_is_traced_is_the_share_that_was_asked_for(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    numbers = Random(1)
    monkeypatch.setattr("batuta.otel.bits", numbers.getrandbits)
    async with world(pays, charge, middleware=[Tracing(spans.provider, sample=0.25)], always_replay=False) as env:
        handles = [await env.client.start(pays) for _ in range(200)]
        traces = [start.trace for handle in handles if (start := (await handle.journal())[0].body.start)]
    traced = spans.names().count("start pays")
    assert 30 < traced < 70  # a sample that is decided upon twice would be 12
    assert sum(not trace.endswith("-00") for trace in traces) == traced
    assert len({trace[3:35] for trace in traces}) == len(traces) == 200


async def test_the_span_that_a_run_was_started_in_can_be_looked_at(spans: Spans) -> None:
    @activity
    async def looks() -> str:
        return repr(trace.get_current_span())

    @workflow
    async def asks() -> str:
        return await looks()

    async with world(asks, looks, middleware=[Tracing(spans.provider, sample=0.0)]) as env:
        handle = await env.start(asks)
        start = (await handle.journal())[0].body.start
        assert start
        assert start.trace.split("-")[1] in await handle.result()


@pytest.mark.parametrize("share", [-0.1, 1.5])
def test_a_share_that_is_none_is_refused(share: float) -> None:
    with pytest.raises(InvalidInput, match="from 0 to 1"):
        Tracing(sample=share)


async def test_baggage_goes_with_the_run(spans: Spans) -> None:
    @activity
    async def reads() -> str:
        return str(baggage.get_baggage("tenant"))

    @workflow
    async def carries() -> str:
        return await reads()

    async with world(carries, reads, middleware=[Tracing(spans.provider)]) as env:
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        try:
            handle = await env.start(carries)
        finally:
            context.detach(token)
        assert await handle.result() == "acme"


@pytest.mark.parametrize("share", [0.0, 1.0])
async def test_baggage_goes_with_a_run_whether_or_not_it_is_sampled(spans: Spans, share: float) -> None:
    async with world(pays, charge, middleware=[Tracing(spans.provider, sample=share)]) as env:
        token = context.attach(baggage.set_baggage("tenant", "acme"))
        try:
            handle = await env.start(pays)
        finally:
            context.detach(token)
        start = (await handle.journal())[0].body.start
        assert start
        assert start.headers == {"baggage": "tenant=acme"}


async def test_an_error_in_a_process_has_its_own_name(real_time: None, spans: Spans) -> None:
    @workflow
    async def asks_a_process() -> None:
        await refuses("never")

    async with connect("memory://", middleware=[Tracing(spans.provider)]) as client:
        async with client.worker(workflows=[asks_a_process], activities=[refuses]):
            with pytest.raises(RunFailed):
                await (await client.start(asks_a_process)).result()
    assert spans.named("activity refuses").status.description == "NonRetryable: never"


async def test_without_a_provider_nothing_is_traced_and_everything_works() -> None:
    async with world(pays, charge, middleware=[Tracing()]) as env:
        handle = await env.start(pays)
        assert await handle.result() == 5
        start = (await handle.journal())[0].body.start
        assert start
        assert start.trace == ""


@pytest.mark.parametrize("told", ["nonsense", "00-xyz-1-01", "00-" + "0" * 32 + "-" + "0" * 16 + "-01"])
async def test_a_trace_that_cannot_be_read_is_begun_anew(spans: Spans, told: str) -> None:
    async with world(pays, charge, middleware=[Tracing(spans.provider)]) as env:
        handle = await env.client.start("pays", headers={"traceparent": told})
        assert await handle.result() == 5

    async with world(pays, charge) as plain:
        await (await plain.client.start(pays, headers={"traceparent": told})).result()


async def test_an_attempt_that_is_completed_from_outside_is_no_error(spans: Spans) -> None:
    tokens: list[str] = []

    @activity
    async def asks_somebody() -> str:
        from batuta import activity_info

        tokens.append(activity_info().token)
        raise CompleteLater

    @workflow
    async def waits() -> str:
        return await asks_somebody()

    async with world(waits, asks_somebody, middleware=[Tracing(spans.provider)]) as env:
        handle = await env.start(waits)
        await env.settle()
        await env.client.complete(tokens[0], "yes")
        assert await handle.result() == "yes"
    assert spans.named("activity asks_somebody").status.status_code is StatusCode.UNSET


async def test_traces_cross_processes_on_every_store(arena: Arena, spans: Spans) -> None:
    client = await arena.client()
    handle = await client.start(
        pays, headers={"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    )
    other = await arena.client()
    await arena.worker(other, pays, charge, middleware=[Tracing(spans.provider)])
    await handle.result()
    assert {f"{one.context.trace_id:032x}" for one in spans.all} == {"0af7651916cd43dd8448eb211c80319c"}
    assert spans.named("activity charge").parent.span_id == 0xB7AD6B7169203331  # type: ignore[union-attr]  # it has one


def test_the_blocking_client_carries_the_callers_context(spans: Spans, sqlite_url: str) -> None:
    with sync.connect(sqlite_url, middleware=[Tracing(spans.provider)]) as client:
        with spans.tracer.start_as_current_span("request") as request:
            client.start("pays")
    begun = spans.named("start pays")
    assert begun.parent
    assert begun.parent.span_id == request.get_span_context().span_id


order_changed = Signal("changed", dict[str, Any])
stop = Signal("stop")
add = Update("add", int)


@workflow
async def talks() -> list[Any]:
    heard: list[Any] = []
    order_changed.handle(heard.append)
    add.handle(lambda by: by + 1)
    await stop.wait()
    return heard


@workflow
async def tells(id: str) -> None:
    await send(id, order_changed, {"by": "run"})


async def test_signals_and_updates_are_in_the_trace_of_their_sender_on_every_store(arena: Arena, spans: Spans) -> None:
    client, elsewhere = [await arena.client(Tracing(spans.provider)) for _ in range(2)]
    await arena.worker(client, talks, tells)
    with spans.tracer.start_as_current_span("request"):
        run = await client.start(talks, id="r")
    odd = {"~headers": {"a": "b"}, "value": 1}
    with spans.tracer.start_as_current_span("other request") as other:
        there = await elsewhere.get("r", workflow=talks)
        await there.signal(order_changed, {"by": 1})
        await there.signal(order_changed, odd)
        assert await there.update(add, 1) == 2
    await (await client.start(tells, "r")).result(20)
    untraced = await (await arena.client()).get("r", workflow=talks)
    await untraced.signal(order_changed, odd)
    await untraced.signal(stop)
    assert await run.result(20) == [{"by": 1}, odd, {"by": "run"}, odd]
    trace_id = other.get_span_context().trace_id
    sent = [one for one in spans.all if one.name in ("signal changed", "update add")]
    received = [one for one in spans.all if one.name.startswith("receive ")]
    assert [one.context.trace_id for one in sent if one.context] == [trace_id] * 3
    own = [one for one in received if one.context and one.context.trace_id == trace_id]
    assert {one.parent.span_id for one in own if one.parent} == {one.context.span_id for one in sent if one.context}
    assert [one.name for one in received] == ["receive changed", "receive changed", "receive add", "receive changed"]
    assert all(one.attributes and one.attributes["batuta.id"] == "r" for one in received)
    started = spans.named("start talks").context
    assert started is not None
    assert {link.context.trace_id for one in own for link in one.links} == {started.trace_id}
    bodies = [line.body for line in await run.journal() if line.kind in ("signal", "update")]
    assert [body.headers is not UNSET for body in bodies] == [True, True, True, True, False, False]


async def test_a_message_that_is_read_again_by_a_fork_keeps_its_trace(spans: Spans) -> None:
    async with world(talks, middleware=[Tracing(spans.provider)]) as env:
        run = await env.start(talks, id="r")
        await run.signal(order_changed, {"by": 1})
        await run.signal(stop)
        assert await run.result() == [{"by": 1}]
        again = await run.fork("q", at=0)
        await again.signal(order_changed, {"by": 2})
        await again.signal(stop)
        assert (await again.result())[0] == {"by": 1}
    received = [one for one in spans.all if one.name == "receive changed"]
    senders = [one.parent.span_id for one in received if one.parent]
    assert len(senders) > len(set(senders))


async def test_the_package_asks_for_its_extra_by_name(monkeypatch: Any) -> None:
    import importlib
    import sys

    import batuta.otel
    from batuta.errors import MissingExtra

    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(MissingExtra, match=r"batuta\[otel\]"):
        importlib.reload(batuta.otel)
    monkeypatch.undo()
    connect("memory://", middleware=[Tracing()])


async def test_without_an_sdk_nothing_is_put_around_attempts(spans: Spans) -> None:
    assert not Tracing(trace.NoOpTracerProvider()).before("", {})
    assert Tracing(spans.provider).before("", {})  # it began where nobody traced: its attempts have spans all the same
    async with world(pays, charge, middleware=[Tracing(trace.NoOpTracerProvider())]) as env:
        await (await env.client.start(pays)).result()


@activity(retry=Retry(attempts=1))
async def quotes(cpf: str) -> None:
    try:
        raise KeyError(cpf)
    except KeyError as error:
        raise ValueError(f"password=hunter2 of {cpf}") from error


@workflow
async def quoting(cpf: str) -> None:
    await quotes(cpf)


@pytest.mark.parametrize("by", ["argument", "environment"])
async def test_spans_show_no_personal_data(spans: Spans, by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    cpf = "529.982.247-25"
    if by == "environment":
        monkeypatch.setenv("BATUTA_REDACT", "1")
    tracing = Tracing(spans.provider, redactor=Redactor() if by == "argument" else None)
    async with connect("memory://", middleware=[tracing]) as batuta:
        async with batuta.worker(workflows=[quoting], activities=[quotes]):
            handle = await batuta.start(quoting, cpf, id=f"pay-{cpf}")
            with pytest.raises(RunFailed, match=cpf):
                await handle.result()
    said = str([one.to_json() for one in spans.all])
    assert "982.247" not in said
    assert "hunter2" not in said
    attempt = spans.named("activity quotes")
    assert attempt.status.description == "ValueError: password=[password] of [cpf]"
    (event,) = attempt.events
    assert event.attributes is not None
    assert "KeyError: '[cpf]'" in str(event.attributes["exception.stacktrace"])
    assert (attempt.attributes or {})["batuta.id"] == "pay-[cpf]"
    assert (attempt.attributes or {})["batuta.run_id"] == str(handle.run_id)
    assert "[cpf]" in str(spans.named("run quoting").status.description)
