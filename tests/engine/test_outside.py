"""Activities completed from outside, by token."""

import asyncio
import threading
import zlib
from base64 import urlsafe_b64encode
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import msgpack

from batuta import (
    ActivityFailed,
    ActivityTimeout,
    CompleteLater,
    InvalidInput,
    InvalidToken,
    LostAttempt,
    NonRetryable,
    Retry,
    RunClosed,
    RunFailed,
    RunState,
    TokenUsed,
    UnknownRun,
    activity,
    activity_info,
    workflow,
)
from batuta.authoring.activity.tokens import AttemptRef, parse_token
from batuta.durations import human_duration
from batuta.engine.backend.external_completion import ExternalCompletions
from batuta.errors import NotSerialisable, TooLarge
from batuta.ids import new_run_id
from batuta.journal.entries import Body
from batuta.testing import Environment
from tests.engine.kit import commands, world

tokens: list[str] = []
YEAR = 365 * 86_400.0


@pytest.fixture(autouse=True)
def _no_tokens() -> None:
    tokens.clear()


@dataclass
class Verdict:
    """What the person says."""

    approved: bool
    by: str


@activity(retry=Retry(attempts=2, first=1, jitter=0))
async def ask(order: str) -> Verdict:
    tokens.append(activity_info().token)
    raise CompleteLater


@workflow
async def approval(order: str) -> str:
    verdict = await ask(order)
    return f"{order} {'approved' if verdict.approved else 'refused'} by {verdict.by}"


def runs_in_memory(env: Environment) -> int:
    assert env.worker.session is not None
    return len(env.worker.session.runs)


async def asked(env: Environment, **options: Any) -> Any:
    handle = await env.start(approval, "o-1", **options)
    await env.settle()
    return handle


# -- completing


async def test_an_activity_is_completed_from_outside() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        assert await handle.result() == "o-1 approved by Ada"
        assert len(tokens) == 1


async def test_while_it_waits_it_needs_no_memory_and_no_place() -> None:
    async with world(approval, ask, max_activities=1) as env:
        handles = [await env.start(approval, f"o-{n}") for n in range(5)]
        await env.settle()
        assert len(tokens) == 5
        assert runs_in_memory(env) == 0
        assert {(await handle.describe()).state for handle in handles} == {RunState.WAITING}
        attempts = (await handles[0].describe()).attempts
        assert [(a.number, a.outside) for a in attempts] == [(1, True)]
        await env.advance(YEAR)
        for token in tokens:
            await env.client.complete(token, {"approved": False, "by": "Bo"})
        assert sorted([await handle.result() for handle in handles]) == [f"o-{n} refused by Bo" for n in range(5)]
        assert len(tokens) == 5


async def test_it_is_not_executed_again_after_a_crash() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.crash()
        await env.settle()
        await env.crash()
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        assert await handle.result() == "o-1 approved by Ada"
        assert len(tokens) == 1


async def test_an_answer_given_while_no_worker_is_there_waits_for_one() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.worker.stop()
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        await env.deploy()
        assert await handle.result() == "o-1 approved by Ada"
        assert len(tokens) == 1


async def test_an_answer_may_come_before_the_activity_has_ended() -> None:
    @activity
    async def hasty() -> str:
        await env.client.complete(activity_info().token, "early")
        await asyncio.sleep(60)
        raise CompleteLater

    @workflow
    async def asks() -> str:
        return await hasty()

    async with world(asks, hasty) as env:
        before = env.now
        assert await env.run(asks) == "early"
        assert env.now - before < timedelta(seconds=1)


async def test_an_answer_given_before_a_crash_saves_executing_it_again() -> None:
    begun = 0

    @activity
    async def slow() -> str:
        nonlocal begun
        begun += 1
        tokens.append(activity_info().token)
        await asyncio.sleep(10)
        raise CompleteLater

    @workflow
    async def asks() -> str:
        return await slow()

    async with world(asks, slow) as env:
        handle = await env.start(asks)
        await env.advance(1)
        session = env.worker.session
        assert session is not None
        session.abandon()  # it hears nothing any more
        await env.client.complete(tokens[0], "early")
        await env.crash()
        assert await handle.result() == "early"
        assert begun == 1


async def test_sync_activities_may_be_completed_from_outside_too() -> None:
    @activity
    def rings() -> str:
        tokens.append(activity_info().token)
        raise CompleteLater

    @workflow
    async def asks() -> str:
        return await rings()

    async with world(asks, rings, threads=1) as env:
        handle = await env.start(asks)
        while not tokens:
            await env.advance(1)
        await env.advance(1)
        assert runs_in_memory(env) == 0
        await env.client.complete(tokens[0], "picked up")
        assert await handle.result() == "picked up"


async def test_several_wait_beside_a_timer_and_an_activity() -> None:
    @activity
    async def works() -> str:
        await asyncio.sleep(100)
        return "worked"

    @workflow
    async def all_of_it() -> list[Any]:
        first, second = asyncio.create_task(ask("a")), asyncio.create_task(ask("b"))
        await asyncio.sleep(3600)
        worked = await works()
        return [(await first).by, (await second).by, worked]

    async with world(all_of_it, ask, works) as env:
        handle = await env.start(all_of_it)
        await env.advance(10)
        assert runs_in_memory(env) == 0
        await env.client.complete(tokens[1], Verdict(True, "Bo"))
        await env.advance(3600)
        assert runs_in_memory(env) == 1
        await env.advance(100)
        assert runs_in_memory(env) == 0
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        assert await handle.result() == ["Ada", "Bo", "worked"]
        assert len(tokens) == 2


async def test_a_worker_without_the_activity_can_take_the_answer() -> None:
    @activity(name="ask")
    async def another() -> Verdict:
        raise AssertionError("it is not to be called")

    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.deploy(activities=[])
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        assert await handle.result() == "o-1 approved by Ada"


# -- failing


async def test_a_failure_from_outside_is_an_attempt_that_failed() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.client.fail(tokens[0], ConnectionError("no paper"))
        await env.advance(2)
        assert len(tokens) == 2
        assert tokens[0] != tokens[1]
        await env.client.complete(tokens[1], Verdict(True, "Ada"))
        assert await handle.result() == "o-1 approved by Ada"
        assert (await handle.journal())[-1].body.attempts == 2


async def test_the_last_failure_is_raised_into_the_workflow() -> None:
    @workflow
    async def careful() -> str:
        try:
            await ask("o-1")
        except ConnectionError as error:
            return f"ConnectionError: {error}"
        return "?"

    async with world(careful, ask) as env:
        handle = await env.start(careful)
        await env.settle()
        await env.client.fail(tokens[0], ConnectionError("no paper"))
        await env.advance(2)
        await env.client.fail(tokens[1], ConnectionError("no ink"))
        assert await handle.result() == "ConnectionError: no ink"


async def test_a_failure_that_is_not_to_be_tried_again_ends_it() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.client.fail(tokens[0], NonRetryable("never"))
        with pytest.raises(RunFailed, match="never"):
            await handle.result()


async def test_a_failure_in_words_is_an_activity_failed() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.client.fail(tokens[0], "no paper")
        await env.advance(2)
        await env.client.fail(tokens[1], "no ink")
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert isinstance(failed.value.__cause__, ActivityFailed)
        assert str(failed.value.__cause__) == "no ink"


async def test_a_failure_outlives_a_crash_and_is_counted_once() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.client.fail(tokens[0], "no paper")
        await env.settle()
        await env.crash()
        await env.advance(2)
        assert [parse_token(token).attempt for token in tokens] == [1, 2]
        await env.client.complete(tokens[1], Verdict(True, "Ada"))
        assert await handle.result() == "o-1 approved by Ada"


async def test_a_result_that_does_not_fit_is_the_activitys_failure() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.client.complete(tokens[0], "yes")
        with pytest.raises(RunFailed) as failed:
            await handle.result()
        assert isinstance(failed.value.__cause__, InvalidInput)
        assert len(tokens) == 1


# -- time


def waits_with(**options: Any) -> Any:
    @workflow(name="waits")
    async def waits() -> str:
        try:
            return str(await ask.with_options(**options)("o-1"))
        except ActivityTimeout as error:
            return f"{error.kind}: {error}"

    return waits


@pytest.mark.parametrize("limit", [5, 7200], ids=["in memory", "evicted"])
async def test_an_attempt_that_waits_too_long_is_over_and_tried_again(limit: float) -> None:
    waits = waits_with(timeout=limit)
    async with world(waits, ask) as env:
        before = env.now
        handle = await env.start(waits)
        assert (
            await handle.result() == f"attempt: activity 'ask' took longer than its {human_duration(limit)} (attempt 2)"
        )
        assert len(tokens) == 2
        assert timedelta(0) <= env.now - before - timedelta(seconds=2 * limit + 1) < timedelta(seconds=0.1)


@pytest.mark.parametrize("limit", [5, 7200], ids=["in memory", "evicted"])
async def test_the_limit_of_all_attempts_ends_it(limit: float) -> None:
    waits = waits_with(total_timeout=limit)
    async with world(waits, ask) as env:
        before = env.now
        handle = await env.start(waits)
        await env.advance(1)
        await env.crash()
        assert (
            await handle.result() == f"total: activity 'ask' took longer than its {human_duration(limit)} (attempt 1)"
        )
        assert timedelta(0) <= env.now - before - timedelta(seconds=limit) < timedelta(seconds=0.1)


@pytest.mark.parametrize("silence", [10, 100], ids=["in memory", "evicted"])
async def test_heartbeats_from_outside_keep_it_alive(silence: float) -> None:
    waits = waits_with(heartbeat=silence, retry=Retry(attempts=1))
    async with world(waits, ask) as env:
        before = env.now
        handle = await env.start(waits)
        for page in range(5):
            await env.advance(silence - 1)
            await env.client.heartbeat(tokens[0], {"page": page})
            await env.settle()
        assert [a.details for a in (await handle.describe()).attempts] == ['{"page":4}']
        assert (
            await handle.result()
            == f"heartbeat: activity 'ask' sent no heartbeat for {human_duration(silence)} (attempt 1)"
        )
        ended = env.now - before - timedelta(seconds=5 * (silence - 1) + silence)
        assert timedelta(0) <= ended < timedelta(seconds=0.1)


async def test_the_next_attempt_reads_the_details_from_outside() -> None:
    found: list[Any] = []

    @activity(retry=Retry(attempts=2, first=1))
    async def copies() -> str:
        found.append(activity_info().details)
        tokens.append(activity_info().token)
        raise CompleteLater

    @workflow
    async def asks() -> str:
        return await copies()

    async with world(asks, copies) as env:
        handle = await env.start(asks)
        await env.settle()
        await env.client.heartbeat(tokens[0], [3])
        await env.client.fail(tokens[0], "reset")
        await env.advance(2)
        assert found == [None, [3]]
        await env.client.complete(tokens[1], "done")
        assert await handle.result() == "done"


async def test_a_run_may_be_cancelled_while_it_waits_for_an_answer() -> None:
    @workflow
    async def gives_up() -> str:
        try:
            await ask("o-1")
        except asyncio.CancelledError:
            return "cancelled"
        return "?"

    async with world(gives_up, ask) as env:
        handle = await env.start(gives_up)
        await env.settle()
        await handle.cancel()
        assert await handle.result() == "cancelled"


async def test_a_call_cancelled_by_its_workflow_takes_no_answer() -> None:
    @workflow
    async def impatient() -> str:
        try:
            async with asyncio.timeout(5):
                await ask("o-1")
        except TimeoutError:
            await asyncio.sleep(3600)
        return "gave up"

    async with world(impatient, ask) as env:
        handle = await env.start(impatient)
        await env.advance(10)
        assert runs_in_memory(env) == 0
        with pytest.raises(LostAttempt):
            await env.client.complete(tokens[0], Verdict(True, "late"))
        assert await handle.result() == "gave up"


# -- bad input


async def test_a_token_serves_once() -> None:
    @workflow
    async def twice() -> str:
        first = await ask("o-1")
        await asyncio.sleep(3600)
        return first.by

    async with world(twice, ask) as env:
        handle = await env.start(twice)
        await env.settle()
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        with pytest.raises(TokenUsed):
            await env.client.complete(tokens[0], Verdict(False, "Bo"))
        await env.settle()
        with pytest.raises(TokenUsed):
            await env.client.fail(tokens[0], "too late")
        with pytest.raises(LostAttempt):
            await env.client.heartbeat(tokens[0])
        assert await handle.result() == "Ada"


async def test_two_answers_at_once_are_one() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        answers = [env.client.complete(tokens[0], Verdict(True, name)) for name in ("Ada", "Bo")]
        first, second = await asyncio.gather(*answers, return_exceptions=True)
        assert first is None
        assert isinstance(second, TokenUsed)
        assert await handle.result() == "o-1 approved by Ada"


async def test_an_attempt_that_is_over_takes_no_answer() -> None:
    waits = waits_with(timeout=60)
    async with world(waits, ask) as env:
        await env.start(waits)
        await env.advance(100)
        assert len(tokens) == 2
        for send in (env.client.complete, env.client.fail, env.client.heartbeat):
            with pytest.raises(LostAttempt):
                await send(tokens[0], "late")


async def test_an_answer_that_came_too_late_all_the_same_is_thrown_away() -> None:
    waits = waits_with(timeout=60)
    async with world(waits, ask) as env:
        handle = await env.start(waits)
        await env.advance(59)
        await env.worker.stop()
        await env.client.complete(tokens[0], Verdict(True, "in time"))
        await env.deploy()
        assert "in time" in await handle.result()

        handle = await env.start(waits)
        await env.advance(59.99)
        late = parse_token(tokens[-1])
        await env.advance(5)
        assert await ExternalCompletions(env.store).send(late, Body(), "late")
        assert "took longer" in await handle.result()


async def test_an_answer_or_heartbeat_reads_only_what_came_after_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    @activity
    async def step() -> None: ...

    @workflow
    async def long_lived(before: int, beside: int) -> bool:
        for _ in range(before):
            await step()
        asking = asyncio.create_task(ask("o-1"))
        for _ in range(beside):
            await step()
        return (await asking).approved

    async with world(long_lived, step, ask) as env:
        handle = await env.start(long_lived, 50, 0)
        await env.settle()
        read: list[int] = []
        journal = env.store.journal

        async def counted(*args: Any) -> Any:
            found = await journal(*args)
            read.extend(entry.ord for entry in found)
            return found

        monkeypatch.setattr(env.store, "journal", counted)
        for page in range(3):
            await env.client.heartbeat(tokens[0], page)
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        assert read == []
        assert await handle.result()

        handle = await env.start(long_lived, 50, 20)
        await env.settle()
        for page in range(3):
            await env.client.heartbeat(tokens[1], page)
        assert read == list(range(51, 71))
        await env.client.complete(tokens[1], Verdict(True, "Ada"))
        assert len(read) == 20
        assert await handle.result()


@pytest.mark.parametrize("length", [4, 5])
async def test_a_token_of_an_older_version_is_refused_with_what_to_do(length: int) -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        ref = parse_token(tokens[0])
        data = msgpack.encode((ref.namespace, ref.run_id.bytes, ref.seq, ref.attempt, ref.entry)[:length])
        old = urlsafe_b64encode(zlib.crc32(data).to_bytes(4, "big") + data).decode().rstrip("=")
        for first in ("", "t."):
            with pytest.raises(InvalidToken, match=r"older version of Batuta, .* reset run") as refused:
                await env.client.complete(first + old, Verdict(True, "Ada"))
            assert old not in str(refused.value)
        await handle.reset(-1, reason="another token")
        await env.settle()
        await env.client.complete(tokens[1], Verdict(True, "Ada"))
        assert await handle.result() == "o-1 approved by Ada"


async def test_a_closed_run_takes_no_answer() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await handle.terminate()
        with pytest.raises(RunClosed):
            await env.client.complete(tokens[0], Verdict(True, "late"))


@pytest.mark.parametrize("rubbish", ["", "x", "nonsense", "é", "A" * 5000, "AAAA-_==", None, 5, b"AAAA"])
async def test_rubbish_is_no_token(rubbish: Any) -> None:
    async with world(approval, ask) as env:
        with pytest.raises(InvalidToken) as refused:
            await env.client.complete(rubbish, 1)
        assert len(str(refused.value)) < 200
        assert len(str(rubbish)) < 5 or str(rubbish) not in str(refused.value)


async def test_a_token_that_was_changed_is_refused() -> None:
    token = AttemptRef("default", new_run_id(), 1, 1, 0, b"secret").token()
    for place in range(len(token) - 1):
        changed = token[:place] + ("A" if token[place] != "A" else "B") + token[place + 1 :]
        with pytest.raises(InvalidToken):
            parse_token(changed)


async def test_a_token_of_another_namespace_or_database_is_refused() -> None:
    async with world(approval, ask) as env:
        with pytest.raises(InvalidToken, match="namespace"):
            await env.client.complete(AttemptRef("shop", new_run_id(), 1, 1, 0, b"secret").token(), 1)
        with pytest.raises(UnknownRun):
            await env.client.complete(AttemptRef("default", new_run_id(), 1, 1, 0, b"secret").token(), 1)


async def test_values_without_a_json_form_or_too_large_are_refused_at_once() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        with pytest.raises(NotSerialisable):
            await env.client.complete(tokens[0], threading.Lock())
        with pytest.raises(TooLarge):
            await env.client.complete(tokens[0], "x" * 3_000_000)
        await handle.terminate()


async def test_the_journal_says_that_the_answer_came_by_message() -> None:
    async with world(approval, ask) as env:
        handle = await asked(env)
        await env.client.complete(tokens[0], Verdict(True, "Ada"))
        await handle.result()
        lines = await handle.journal()
        assert [str(line.kind) for line in lines] == ["started", "activity_done"]
        assert lines[1].body.message_id.startswith("answer:")
        assert await commands(handle) == ["activity ask", "complete"]


def test_no_token_looks_like_an_option() -> None:
    refs = [AttemptRef("default", UUID(int=number), 1, 1, 0, b"secret") for number in range(200)]
    assert any(ref.token().startswith("t.-") for ref in refs)
    assert all(parse_token(ref.token()) == parse_token(ref.token().removeprefix("t.")) == ref for ref in refs)
