"""No text grows without bound: callers are refused, and what user code says is cut."""

import re
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from msgspec import json

from batuta import (
    CompleteLater,
    InvalidInput,
    NonRetryable,
    Retry,
    RunFailed,
    RunState,
    Schedule,
    Update,
    UpdateRejected,
    activity,
    activity_info,
    every,
    job,
    start_child,
    workflow,
)
from batuta.authoring.failures.conversion import to_exception, to_failure
from batuta.errors import TooLarge
from batuta.journal.failures import Failure
from tests.engine.kit import jobs, parked, world

HUGE = "x" * 3_000_000
LONG = "y" * 5_000
CUT = re.compile(r"\.\.\. \(([\d,]+) more characters were cut\)$")
ask = Update("ask", str)
tokens: list[str] = []


@activity(retry=Retry(attempts=2, first=1, jitter=0))
async def shouts() -> None:
    raise ValueError(HUGE)


@activity
async def asks() -> str:
    tokens.append(activity_info().token)
    raise CompleteLater


@workflow
async def waits() -> str:
    return await asks()


@workflow
async def fails() -> None:
    await shouts()


@job(retry=Retry(attempts=1))
async def refused() -> None:
    raise NonRetryable(HUGE)


# -- callers are refused


REASONS: dict[str, Callable[[Any, Any], Any]] = {
    "cancel": lambda client, handle: handle.cancel(LONG),
    "terminate": lambda client, handle: handle.terminate(LONG),
    "pause": lambda client, handle: handle.pause(LONG),
    "resume": lambda client, handle: handle.resume(LONG),
    "delete": lambda client, handle: handle.delete(LONG),
    "retry": lambda client, handle: handle.retry(LONG),
    "reset": lambda client, handle: handle.reset(0, reason=LONG),
    "fork": lambda client, handle: handle.fork("copy", reason=LONG),
    "select": lambda client, handle: client.select(workflow="waits").cancel(LONG),
    "pause queue": lambda client, handle: client.pause_queue("default", LONG),
    "pause schedule": lambda client, handle: client.schedules.pause("often", LONG),
    "discard": lambda client, handle: client.dead_letters.discard(name="waits", reason=LONG),
    "reprocess": lambda client, handle: client.dead_letters.reprocess(name="waits", reason=LONG),
}


@pytest.mark.parametrize("verb", REASONS)
async def test_a_reason_or_note_that_is_too_long_is_refused_before_anything_is_written(verb: str) -> None:
    async with world(waits, asks) as env:
        handle = await env.start(waits)
        await env.client.schedules.create(Schedule("often", every(timedelta(days=1)), waits))
        await env.settle()
        acts = len((await env.client.audit()).rows)
        with pytest.raises(TooLarge, match=r"(reason|note) is 5,000 bytes, over the limit of 4,096") as refused:
            await REASONS[verb](env.client, handle)
        assert len(str(refused.value)) < 200
        assert (await handle.describe()).state is RunState.WAITING
        assert len((await env.client.audit()).rows) == acts
        await handle.terminate("y" * 4_096)


async def test_a_reason_counts_in_bytes() -> None:
    async with world(waits, asks) as env:
        handle = await env.start(waits)
        with pytest.raises(TooLarge):
            await handle.cancel("é" * 2_049)
        assert await handle.cancel("é" * 2_048)


async def test_a_reason_for_a_child_that_is_too_long_is_refused_in_the_workflow_and_in_its_replay() -> None:
    @workflow
    async def parent() -> str:
        child = await start_child(waits)
        try:
            await child.cancel(LONG)
        except TooLarge:
            await child.cancel("in short")
        return "done"

    async with world(parent, waits, asks, always_replay=True) as env:
        assert await env.run(parent) == "done"


async def test_words_for_a_failure_from_outside_that_are_too_long_are_refused() -> None:
    async with world(waits, asks) as env:
        handle = await env.start(waits)
        await env.settle()
        with pytest.raises(TooLarge, match="the error of an activity is 3,000,000 bytes"):
            await env.client.fail(tokens[-1], HUGE)
        await env.client.fail(tokens[-1], NonRetryable(HUGE))
        with pytest.raises(RunFailed):
            await handle.result()
        assert largest_entry(await env.store.journal(handle.run_id)) < 100_000


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.start(waits, id=HUGE),
        lambda client: client.start(waits, tags={"a": 5, "b": HUGE}),
        lambda client: client.start(waits, tags={HUGE: HUGE}),
        lambda client: client.start(waits, memo=HUGE),
        lambda client: client.start(waits, headers={"a": HUGE}),
        lambda client: client.start(waits, headers={"a": 5, "b": HUGE}),
        lambda client: client.start(waits, queue=HUGE),
        lambda client: client.start(waits, key=HUGE),
        lambda client: client.start(waits, version=HUGE),
        lambda client: client.start(waits, if_exists=HUGE),
        lambda client: client.start(HUGE),
        lambda client: client.get_run(HUGE),
        lambda client: client.list(id_prefix=HUGE),
        lambda client: client.list(workflow=HUGE),
        lambda client: client.count(tags={"a": HUGE}),
        lambda client: client.pause_queue(HUGE),
        lambda client: client.schedules.pause(HUGE),
        lambda client: client.dead_letters.list(fingerprint=HUGE),
    ],
)
async def test_a_name_that_is_too_long_is_refused_in_few_words(call: Callable[[Any], Any]) -> None:
    async with world(waits, asks) as env:
        with pytest.raises(InvalidInput) as refused:
            await call(env.client)
        assert len(str(refused.value)) < 600


# -- what user code says is cut


def largest_entry(entries: Any) -> int:
    return max(len(entry.body) for entry in entries)


async def test_the_message_of_an_activity_is_cut_in_its_journal_attempts_and_dead_letter() -> None:
    async with world(fails, shouts) as env:
        handle = await env.start(fails)
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        said = CUT.search(str(failed.value.__cause__))
        assert said is not None
        assert said[1] == f"{3_000_000 - 16_000:,}"
        assert largest_entry(await env.store.journal(handle.run_id)) < 60_000
        [attempt] = await env.store.attempts(handle.run_id)
        assert attempt.error is not None
        assert len(attempt.error) < 50_000
        assert len((await env.store.get_run(handle.run_id)).reason) < 50_000


async def test_the_message_of_a_job_is_cut() -> None:
    async with jobs(refused) as env:
        handle = await env.client.enqueue(refused)
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert CUT.search(str(failed.value.__cause__))
        assert largest_entry(await env.store.journal(handle.run_id)) < 60_000


async def test_the_message_of_a_validator_is_cut() -> None:
    @workflow
    async def picky() -> str:
        def check(value: str) -> None:
            raise ValueError(HUGE)

        @ask.handle(validator=check)
        async def answer(value: str) -> str:
            return value

        return await asks()

    async with world(picky, asks) as env:
        handle = await env.start(picky)
        await env.settle()
        with pytest.raises(UpdateRejected) as rejected:
            await handle.update(ask, "well?")
        assert len(str(rejected.value)) < 17_000
        await handle.terminate()


async def test_the_reason_of_a_parked_run_is_cut() -> None:
    @workflow(on_error="park")
    async def broken() -> None:
        raise ValueError(HUGE)

    async with world(broken) as env:
        handle = await env.start(broken)
        assert len(await parked(env, handle)) < 17_000
        await handle.terminate()


def test_the_traceback_of_a_long_message_has_its_frames() -> None:
    failure = raised(lambda: (_ for _ in ()).throw(ValueError(HUGE)))
    assert failure.traceback.startswith("Traceback (most recent call last):")
    assert "test_sizes.py" in failure.traceback
    assert "more characters were cut" in failure.traceback
    assert len(failure.traceback) < 4_100


def test_a_traceback_that_is_cut_says_how_much() -> None:
    error = ValueError("short")
    error.add_note("n" * 10_000)
    failure = to_failure(error)
    assert re.match(r"\(\d,\d{3} characters before this were cut\)\n", failure.traceback)
    assert len(failure.traceback) < 4_100


def test_a_group_of_long_messages_with_long_causes_stays_small() -> None:
    members = []
    for number in range(200):
        error = ValueError("m" * 100_000, {"detail": "d" * 60_000})
        error.__cause__ = KeyError(f"{number}" * 100_000)
        members.append(error)
    failure = to_failure(ExceptionGroup(HUGE, members))
    assert len(json.encode(failure)) < 600_000
    assert len(failure.members) == 101
    assert all(len(member.message) < 17_000 for member in failure.members)
    again = to_exception(failure)
    assert isinstance(again, ExceptionGroup)


def test_a_message_up_to_the_limit_is_whole() -> None:
    text = "m" * 16_000
    assert to_failure(ValueError(text)).message == text
    assert str(to_exception(to_failure(ValueError(text)))) == text


def raised(call: Callable[[], Any]) -> Failure:
    try:
        next(call())
    except ValueError as error:
        return to_failure(error)
    raise AssertionError
