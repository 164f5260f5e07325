"""Where seconds are taken, a timedelta is, too."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from batuta import (
    ActivityOptions,
    InvalidInput,
    Rate,
    Retry,
    RetryLater,
    Schedule,
    Signal,
    activity,
    as_completed,
    every,
    job,
    run_child,
    wait_until,
    workflow,
)
from batuta.authoring.client.enqueue import job_request
from batuta.authoring.client.requests import start_request
from batuta.resilience import breaker
from batuta.settings import Settings
from batuta.testing import Environment, in_virtual_time

MINUTE = timedelta(minutes=1)
go = Signal("go")


@workflow
async def waits() -> list[str]:
    late = []
    for what, wait in (("signal", lambda: go.wait(MINUTE)), ("until", lambda: wait_until(lambda: False, MINUTE))):
        try:
            await wait()
        except TimeoutError:
            late.append(what)
    return late


@workflow
async def answers() -> str:
    return "here"


@workflow
async def asks() -> str:
    return await run_child(answers, delay=MINUTE, timeout=MINUTE)


@job
async def send() -> None:
    return None


@pytest.mark.parametrize("name", ["delay", "timeout", "execution_timeout", "expires"])
def test_a_start_takes_a_timedelta(name: str) -> None:
    assert getattr(start_request(answers, (), None, {name: MINUTE}, 1_000), name) == 60


@pytest.mark.parametrize("name", ["delay", "expires", "unique_for", "debounce", "debounce_limit"])
def test_a_job_takes_a_timedelta(name: str) -> None:
    needed: dict[str, Any] = {"unique": "k"} if name in ("unique_for", "debounce", "debounce_limit") else {}
    needed |= {"debounce": MINUTE} if name == "debounce_limit" else {}
    assert getattr(job_request(send, (), needed | {name: MINUTE}, 1_000), name) == 60


@pytest.mark.parametrize("name", ["timeout", "total_timeout", "heartbeat"])
def test_the_limits_of_a_job_take_a_timedelta(name: str) -> None:
    assert getattr(job_request(send, (), {name: MINUTE}, 1_000).overrides, name) == 60


def test_a_memo_keeps_its_timedelta() -> None:
    assert start_request(answers, (), None, {"memo": MINUTE}, 1_000).memo == MINUTE


def test_a_schedule_takes_timedeltas() -> None:
    made = Schedule("s", every(MINUTE), answers, catch_up=MINUTE, jitter=MINUTE, timeout=MINUTE)
    assert (made.catch_up, made.jitter, getattr(made.request, "timeout", None)) == (60, 60, 60)


@in_virtual_time
async def test_waits_and_children_take_a_timedelta() -> None:
    async with Environment(workflows=[waits, asks, answers]) as env:
        assert await env.run(waits) == ["signal", "until"]
        assert await env.run(asks) == "here"
        handle = await env.start(answers, delay=MINUTE)
        with pytest.raises(TimeoutError, match="within 1 s"):
            await handle.result(timedelta(seconds=1))


@pytest.mark.parametrize("name", ["timeout", "start_timeout", "total_timeout", "heartbeat"])
def test_the_options_of_an_activity_take_a_timedelta(name: str) -> None:
    limits: dict[str, Any] = {name: MINUTE}
    assert getattr(ActivityOptions(**limits), name) == 60
    assert getattr(activity(**limits)(answers.fn).options, name) == 60
    assert getattr(activity(answers.fn).with_options(**limits).options, name) == 60


def test_a_retry_policy_takes_timedeltas() -> None:
    assert Retry(first=MINUTE, longest=2 * MINUTE, jitter=0) == Retry(first=60, longest=120, jitter=0)


def test_an_error_asks_for_a_later_try_by_a_timedelta() -> None:
    assert RetryLater(MINUTE).seconds == 60


def test_a_job_expires_after_a_timedelta() -> None:
    assert job(expires=MINUTE)(answers.fn).expires == 60


def test_a_rate_has_a_timedelta_as_its_period() -> None:
    assert Rate(5, MINUTE) == Rate(5, 60)


def test_the_settings_of_a_worker_take_timedeltas() -> None:
    made = Settings.from_env({}, lease=MINUTE, grace=MINUTE, heartbeat=timedelta(seconds=2))
    assert (made.lease, made.grace, made.heartbeat) == (60, 60, 2)


@pytest.mark.parametrize("bad", [-1, timedelta(seconds=-1), float("nan"), True, "60"])
@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda bad: ActivityOptions(timeout=bad), "timeout="),
        (lambda bad: activity(heartbeat=bad), "heartbeat="),
        (lambda bad: Retry(first=bad), "first="),
        (lambda bad: Retry(longest=bad), "longest="),
        (lambda bad: job(expires=bad)(answers.fn), "expires="),
        (lambda bad: Rate(5, bad), "the period of rate 5/"),
        (lambda bad: Settings(grace=bad), "grace="),
        (lambda bad: Settings(max_runs=bad), "max_runs="),
        (lambda bad: start_request(answers, (), None, {"delay": bad}, 1_000), "delay="),
        (lambda bad: job_request(send, (), {"debounce": bad, "unique": "k"}, 1_000), "debounce="),
        (lambda bad: Schedule("s", every(60), answers, jitter=bad), "jitter="),
        (lambda bad: as_completed([], timeout=bad), "timeout="),
        (lambda bad: Environment(seed=1, slowest=bad), "slowest="),
    ],
)
def test_a_duration_that_cannot_be_is_refused_by_its_name(make: Any, named: str, bad: object) -> None:
    with pytest.raises(InvalidInput, match=named):
        make(bad)


@in_virtual_time
async def test_the_wait_of_a_stop_and_of_a_result_are_refused_by_name() -> None:
    async with Environment(workflows=[answers]) as env:
        handle = await env.start(answers)
        for bad in (-1, timedelta(seconds=-1), float("nan"), True):
            with pytest.raises(InvalidInput, match="timeout="):
                await handle.result(bad)
            with pytest.raises(InvalidInput, match="grace="):
                await env.worker.stop(bad)
        await env.worker.stop(MINUTE)


INSIDE = {
    "batuta.resilience.Breaker.verdict slow: float | None",
    "batuta.resilience.PartnerLimit.__init__ longest_hold: float",
}
"""What no user calls."""
MODULES = (
    "batuta",
    "batuta.resilience",
    "batuta.cache",
    "batuta.bus",
    "batuta.webhooks",
    "batuta.flows",
    "batuta.sync",
)
TIMES = re.compile(
    r"(?:\w+_)?(?:timeout|delay|wait|grace|keep|lock|ttl|stale|period|lease|heartbeat|debounce|jitter|window|overlap"
    r"|patience|expires|every|open_for|longest_\w+|disable_after|probe_lease|slow)"
)


def public_parameters() -> Iterator[str]:
    for name in MODULES:
        module = importlib.import_module(name)
        for exported in getattr(module, "__all__", vars(module)):
            found = getattr(module, exported)
            members = vars(found) if isinstance(found, type) else {exported: found}
            for member, value in members.items():
                function = getattr(value, "__func__", value)
                if inspect.isfunction(function) and (member == "__init__" or not member.startswith("_")):
                    for one in inspect.signature(function).parameters.values():
                        yield f"{name}.{exported}.{member} {one.name}: {one.annotation}"


def test_no_public_function_takes_a_time_as_a_number_alone() -> None:
    times = [one for one in public_parameters() if TIMES.fullmatch(one.split()[1].rstrip(":"))]
    assert len(times) > 40
    assert {one for one in times if re.search(r"\b(?:float|int)\b(?!.*timedelta)", one.split(": ")[1])} <= INSIDE


@pytest.mark.parametrize("name", ["window", "open_for", "longest_open", "slow", "probe_lease", "longest_wait"])
def test_a_breaker_takes_a_timedelta(name: str) -> None:
    given: dict[str, Any] = {"open_for": 1, "longest_open": 120} | {name: MINUTE}
    assert breaker("bank", **given) is not None


async def test_what_operators_do_takes_timedeltas() -> None:
    async with Environment(workflows=[answers]) as env:
        await env.client.limits.change("bank", rates=["5/min"])
        await env.client.limits.hold("bank", MINUTE)
        assert await env.client.bus.prune(MINUTE) == 0
        made = await env.client.api_keys.create("ci", "viewer", expires=MINUTE)
        assert made is not None
