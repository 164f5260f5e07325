"""The span of an attempt may be made after it: nobody can tell."""

import asyncio
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from opentelemetry import context, trace
from opentelemetry.sdk.trace import SpanProcessor

from batuta import activity, workflow
from batuta.otel import Tracing
from batuta.testing import run
from tests.engine.kit import world
from tests.engine.spans import Spans


@pytest.fixture
def spans() -> Iterator[Spans]:
    made = Spans()
    yield made
    made.provider.shutdown()


@activity
async def charge(cents: int) -> int:
    return cents


@workflow
async def pays_and_waits() -> None:
    await charge(5)
    await asyncio.sleep(3600)


async def test_the_span_of_an_attempt_is_made_soon_though_its_run_goes_on(spans: Spans) -> None:
    async with world(pays_and_waits, charge, middleware=[Tracing(spans.provider)]) as env:
        await env.start(pays_and_waits)
        await env.advance(2)
        assert spans.names() == ["activity charge", "start pays_and_waits"]


async def test_a_worker_that_stops_leaves_no_span_behind(spans: Spans) -> None:
    async with world(pays_and_waits, charge, middleware=[Tracing(spans.provider)]) as env:
        await env.start(pays_and_waits)
        await env.settle()
        assert "activity charge" not in spans.names()
    assert "activity charge" in spans.names()


async def test_a_span_that_waits_to_be_made_has_the_times_of_its_attempt(
    spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = iter(range(1_700_000_000_000_000_000, 1_800_000_000_000_000_000, 1_000_000_000))
    monkeypatch.setattr("batuta.otel.wall_ns", lambda: next(times))

    @workflow
    async def pays_often() -> None:
        for cents in range(100):
            await charge(cents)

    async with world(pays_often, charge, middleware=[Tracing(spans.provider)]) as env:
        await env.run(pays_often)
    took = [one for one in spans.all if one.name == "activity charge"]
    assert len(took) == 100
    assert all(one.end_time - one.start_time == 1_000_000_000 for one in took if one.end_time and one.start_time)
    assert took == sorted(took, key=lambda one: one.start_time or 0)


async def test_the_context_of_an_attempt_goes_wherever_its_code_takes_it(spans: Spans) -> None:
    def below(of: context.Context) -> int:
        with spans.tracer.start_as_current_span("elsewhere", context=of) as span:
            return span.get_span_context().span_id

    @activity
    async def hands_on() -> None:
        mine = context.get_current()
        trace.get_current_span().set_attribute("mine", True)
        assert trace.get_current_span(mine) is trace.get_current_span()
        assert len(mine) == len(list(mine)) == len(mine.values()) == 1
        assert {**mine} == dict(mine.items()) == mine.copy() == {key: mine[key] for key in mine}
        assert mine == mine.copy() == mine | {} == {} | mine
        assert repr(mine) == repr(mine.copy())
        assert "absent" not in mine
        assert mine.get("absent", 1) == 1
        await asyncio.get_running_loop().run_in_executor(None, below, mine)

    @workflow
    async def asks() -> None:
        await hands_on()

    async with world(asks, hands_on, middleware=[Tracing(spans.provider)]) as env:
        await env.run(asks)
    attempt = spans.named("activity hands_on")
    assert attempt.attributes
    assert attempt.attributes["mine"]
    assert spans.named("elsewhere").parent.span_id == attempt.context.span_id  # type: ignore[union-attr]  # it has one


async def test_the_current_span_is_the_parent_while_a_span_is_being_made(spans: Spans) -> None:
    class Asks(SpanProcessor):
        asked: ClassVar[list[bool]] = []

        def on_start(self, span: Any, parent_context: Any = None) -> None:
            self.asked.append(trace.get_current_span() is span)

    spans.provider.add_span_processor(Asks())

    @activity
    async def looks() -> str:
        return f"{trace.get_current_span().get_span_context().span_id:016x}"

    @workflow
    async def asks() -> str:
        return await looks()

    async with world(asks, looks, middleware=[Tracing(spans.provider)]) as env:
        found = await env.run(asks)
    assert found == f"{spans.named('activity looks').context.span_id:016x}"
    assert Asks.asked == [False] * 3


async def test_a_loop_that_never_runs_again_does_not_keep_the_spans_of_the_next(spans: Spans) -> None:
    """As that of a worker that was cut off, where another has the same Tracing."""
    tracing = Tracing(spans.provider)

    async def cut_off() -> None:
        async with world(pays_and_waits, charge, middleware=[tracing]) as env:
            await env.start(pays_and_waits)
            await env.settle()
            assert env.worker.session
            env.worker.session.abandon()

    await asyncio.to_thread(lambda: run(cut_off()))
    assert "activity charge" not in spans.names()
    async with world(pays_and_waits, charge, middleware=[tracing]) as env:
        await env.start(pays_and_waits)
        await env.advance(2)
        assert spans.names().count("activity charge") == 2


async def test_a_processor_that_fails_harms_no_attempt(spans: Spans, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(SpanProcessor):
        def on_end(self, span: Any) -> None:
            if span.name.startswith("activity"):
                raise OSError("the collector is away")

    spans.provider.add_span_processor(Failing())

    @activity
    async def asks(cents: int) -> int:
        trace.get_current_span().set_attribute("cents", cents)  # its span is made now, and ended with it
        return cents

    @workflow
    async def pays() -> int:
        return await charge(5) + await asks(3)

    async with world(pays, charge, asks, middleware=[Tracing(spans.provider)]) as env:
        handle = await env.start(pays)
        assert await handle.result() == 8
        assert [one.error for one in await handle.attempts()] == [None, None]
    assert "could not be ended" in caplog.text
