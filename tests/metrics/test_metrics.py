"""Metrics: what happens is counted, under names that stay few."""

import asyncio
import re
import urllib.request
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from batuta import (
    Retry,
    RunFailed,
    Schedule,
    Signal,
    activity,
    continue_as_new,
    every,
    heartbeat,
    job,
    workflow,
)
from batuta.errors import InvalidInput, StoreUnavailable
from batuta.ids import new_run_id
from batuta.metrics import METRICS, Metric, Metrics, expose, exposition, store_metrics
from batuta.metrics.registry import MOST_SERIES
from batuta.telemetry import RequestServed, RunClosed, RunFacts
from tests.engine.kit import jobs, world
from tests.partners import declare

go = Signal("go", str)


def values(metrics: Metrics, name: str, *labels: str) -> dict[Any, float]:
    """The samples of that name, by the values of these labels."""
    found: dict[Any, float] = {}
    for family in metrics.registry.collect():
        for sample in family.samples:
            if sample.name == name:
                key = tuple(sample.labels[label] for label in labels)
                found[key[0] if len(key) == 1 else key] = sample.value
    return found


@activity(retry=Retry(attempts=2, first=1.0, jitter=0))
async def flaky(fails: bool) -> int:
    heartbeat()
    heartbeat({"half": True})
    if fails:
        raise ValueError("no")
    return 1


@activity(timeout=1, retry=Retry(attempts=1))
async def slow() -> None:
    await asyncio.sleep(10)


@workflow
async def order(fails: bool) -> int:
    return await flaky(fails)


@workflow
async def waits() -> str:
    await asyncio.sleep(5)
    return await go.wait()


@workflow
async def overdue() -> None:
    await slow()


@workflow
async def again(left: int) -> None:
    if left:
        continue_as_new(left - 1)


@job
async def mail(to: str) -> str:
    return to


async def test_runs_and_activities_are_counted_by_how_they_ended() -> None:
    metrics = Metrics()
    async with world(order, waits, overdue, again, flaky, slow, middleware=[metrics]) as env:
        await env.run(order, False)
        for code in ((order, True), (overdue,)):
            with pytest.raises(RunFailed):
                await env.run(*code)
        await env.run(again, 2)
        handle = await env.start(waits)
        await env.advance(6)
        await handle.signal(go, "now")
        await handle.result()
    assert values(metrics, "batuta_runs_started_total", "name") == {"order": 2, "overdue": 1, "again": 3, "waits": 1}
    assert values(metrics, "batuta_runs_closed_total", "name", "state") == {
        ("order", "completed"): 1,
        ("order", "failed"): 1,
        ("overdue", "failed"): 1,
        ("again", "continued"): 2,
        ("again", "completed"): 1,
        ("waits", "completed"): 1,
    }
    assert values(metrics, "batuta_run_duration_seconds_count", "name", "state")["waits", "completed"] == 1
    assert values(metrics, "batuta_run_duration_seconds_sum", "name", "state")["waits", "completed"] >= 5
    assert values(metrics, "batuta_activities_started_total", "activity") == {"flaky": 3, "slow": 1}
    assert values(metrics, "batuta_activity_duration_seconds_count", "activity", "status") == {
        ("flaky", "completed"): 1,
        ("flaky", "retried"): 1,
        ("flaky", "failed"): 1,
        ("slow", "timed_out"): 1,
    }
    assert values(metrics, "batuta_activity_retries_total", "activity") == {"flaky": 1}
    assert values(metrics, "batuta_activity_heartbeats_total", "activity") == {"flaky": 6}
    assert values(metrics, "batuta_dead_letters_total", "name", "reason")["order", "exhausted"] == 1
    assert values(metrics, "batuta_messages_received_total", "message") == {"signal": 1}
    assert values(metrics, "batuta_timers_fired_total", "namespace") == {"default": 1}
    assert values(metrics, "batuta_batch_entries_count", "namespace")["default"] > 0
    assert values(metrics, "batuta_commit_duration_seconds_count", "namespace")["default"] > 0


async def test_queue_latency_leaves_out_the_delay_that_was_asked_for() -> None:
    metrics = Metrics()
    async with jobs(mail, middleware=[metrics]) as env:
        handle = await env.client.enqueue(mail, "ann", delay=100)
        await env.advance(200)
        await handle.result()
    assert values(metrics, "batuta_queue_latency_seconds_count", "queue") == {"default": 1}
    assert values(metrics, "batuta_queue_latency_seconds_sum", "queue")["default"] < 50


async def test_a_schedule_tells_how_late_it_fired() -> None:
    metrics = Metrics()
    schedules = [Schedule("often", every(10), again, 0)]
    async with world(again, middleware=[metrics], schedules=schedules) as env:
        await env.advance(25)
    assert values(metrics, "batuta_schedule_lateness_seconds_count", "namespace")["default"] >= 2
    assert values(metrics, "batuta_schedule_lateness_seconds_sum", "namespace")["default"] < 10


def closed(name: str, namespace: str = "default") -> RunClosed:
    facts = RunFacts(namespace, new_run_id(), "id", name, "workflow", "default", "")
    return RunClosed(0.0, facts, "completed", 1.0, 2, "", "")


def test_past_a_limit_names_are_counted_together() -> None:
    metrics = Metrics()
    for number in range(MOST_SERIES + 50):
        metrics.event(closed(f"w{number}"))
    metrics.event(closed("w0"))
    found = values(metrics, "batuta_runs_closed_total", "namespace", "name")
    assert len(found) == MOST_SERIES + 1
    assert (found["default", "w0"], found["other", "other"]) == (2, 50)


def test_a_metric_of_ones_own_is_a_row_and_a_bad_one_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    ends = Metric(name="ends_total", help="Ends.", events=(RunClosed,), labels={"long": lambda e: str(e.seconds > 60)})
    sizes = Metric(name="sizes", help="Entries.", events=(RunClosed,), value="entries", buckets=(1.0, 5.0))
    bad = Metric(name="bad_total", help="Bad.", events=(RunClosed,), labels={"no": "such.thing"})
    metrics = Metrics(table=[bad, ends, sizes])
    metrics.event(closed("w"))
    metrics.event(RequestServed(0.0, "GET", "/healthz", 200, 0.001))  # not in the table
    assert values(metrics, "ends_total", "long") == {"False": 1}
    assert values(metrics, "sizes_bucket", "le") == {"1.0": 0, "5.0": 1, "+Inf": 1}
    assert values(metrics, "bad_total") == {}
    assert "1 events are not counted in bad_total" in caplog.text


def test_no_label_holds_an_id() -> None:
    assert {name for metric in METRICS for name in metric.labels} == {
        "activity",
        "breaker",
        "entity",
        "flow",
        "limit",
        "kind",
        "message",
        "method",
        "name",
        "namespace",
        "operation",
        "outcome",
        "queue",
        "reason",
        "route",
        "state",
        "status",
    }


def test_each_object_has_a_registry_of_its_own_unless_one_is_handed_over() -> None:
    one, other = Metrics(), Metrics()
    one.event(closed("w"))
    assert values(other, "batuta_runs_closed_total", "name") == {}
    registry = CollectorRegistry()
    assert Metrics(registry).registry is registry
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        Metrics(registry)
    with pytest.raises(InvalidInput, match=r"must be a prometheus_client\.CollectorRegistry"):
        Metrics("registry")  # type: ignore[arg-type]


def test_metrics_are_served_from_a_thread() -> None:
    metrics = Metrics()
    metrics.event(RequestServed(0.0, "GET", "/healthz", 200, 0.001))
    with expose(metrics, 0) as port:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as answer:
            text = answer.read().decode()
        with pytest.raises(InvalidInput, match=f"cannot listen at 127.0.0.1:{port}: .*; choose another port"):
            with expose(metrics, port):
                pass
    assert 'batuta_http_requests_total{method="GET",route="/healthz",status="200"} 1.0' in text
    assert "_created" not in text
    with pytest.raises(InvalidInput, match=r"is not a batuta\.metrics\.Metrics"), expose("metrics", 0):  # type: ignore[arg-type]
        pass


class Away:
    name = "away"

    async def gauges(self) -> Any:
        raise StoreUnavailable("no")


async def test_the_store_is_asked_at_the_scrape_and_shown_as_down_when_it_is_away() -> None:
    async with world(waits) as env:
        await env.start(waits)
        await env.start(waits)
        await env.settle()
        text = exposition(await store_metrics([env.client.namespace, Away()])).decode()
    found = dict(re.findall(r"^(\w+\{.*\}) (\S+)$", text, re.MULTILINE))
    assert found['batuta_store_up{namespace="away"}'] == "0.0"
    assert found['batuta_store_up{namespace="default"}'] == "1.0"
    assert found['batuta_runs_open{namespace="default",state="running"}'] == "2.0"
    assert found['batuta_workers_live{namespace="default"}'] == "1.0"
    assert found['batuta_queue_workers{namespace="default",queue="default"}'] == "1.0"
    assert 'batuta_runs_open{namespace="away"' not in text
    assert [family.name for family in text_string_to_metric_families(text)]


async def test_the_state_of_each_breaker_is_a_gauge() -> None:
    async with world() as env:
        await declare(env.client)
        for force, state in ((env.client.breakers.open, "open"), (env.client.breakers.close, "closed")):
            await force("bank")
            text = exposition(await store_metrics([env.client.namespace])).decode()
            found = re.findall(r'^batuta_breaker_state{breaker="bank",.*state="(.+)"} (.+)$', text, re.MULTILINE)
            assert dict(found) == {"closed": "0.0", "open": "0.0", "half-open": "0.0"} | {state: "1.0"}


def test_a_namespace_sees_nothing_of_others() -> None:
    metrics = Metrics()
    metrics.event(closed("mine"))
    metrics.event(closed("secret", "other"))
    metrics.event(RequestServed(0.0, "GET", "/healthz", 200, 0.001))
    text = exposition(metrics, namespace="default").decode()
    assert "mine" in text
    assert "/healthz" in text
    assert "secret" not in text
