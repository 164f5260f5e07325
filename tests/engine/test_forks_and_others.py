"""What has to do with other runs and with the world, when a run goes on from a point of another."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
from msgspec import Raw

from batuta import (
    CompleteLater,
    Handle,
    Interrupted,
    InvalidFork,
    Retry,
    RunFailed,
    RunState,
    activity,
    activity_info,
    batch_info,
    job,
    run_child,
    send,
    workflow,
)
from batuta.authoring.activity.tokens import parse_token
from batuta.engine.backend.external_completion import ExternalCompletions
from batuta.journal.audit import Act, Verb
from batuta.journal.forks import Fork
from batuta.journal.store import ForkOutcome
from batuta.testing import Environment
from tests.engine.forkkit import act, broken, executed, forget, go, is_sound, keys
from tests.engine.kit import jobs, world


@pytest.fixture(autouse=True)
def _afresh() -> None:
    forget()
    tokens.clear()


@workflow
async def hears() -> list[str]:
    return [await go.wait() for _ in range(2)]


async def test_a_message_that_is_sent_after_the_point_is_not_taken_for_one_of_before() -> None:
    @workflow
    async def tells(to: str) -> str:
        try:
            await act("charge")
        except ConnectionError:
            await send(to, go, "it failed")
            raise
        await send(to, go, "it went well")
        return "done"

    broken.add("charge")
    async with world(hears, tells, act) as env:
        ear = await env.start(hears, id="ear")
        handle = await env.start(tells, "ear", id="tells")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == "done"
        assert await ear.result() == ["it failed", "it went well"]
        await is_sound(env)


async def test_a_message_that_was_sent_before_the_point_is_not_sent_again() -> None:
    @workflow
    async def tells(to: str) -> str:
        await send(to, go, "first")
        await act("charge")
        await send(to, go, "second")
        return "done"

    broken.add("charge")
    async with world(hears, tells, act) as env:
        ear = await env.start(hears, id="ear")
        handle = await env.start(tells, "ear", id="tells")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        await handle.result()
        assert await ear.result() == ["first", "second"]


async def test_an_activity_of_another_queue_is_executed_again_with_its_key() -> None:
    @workflow
    async def elsewhere() -> list[int]:
        far = act.with_options(queue="far")
        return list(await asyncio.gather(act("near", 1), far("far", 2)))

    broken.add("far")
    async with world(elsewhere, act, queues=["default", "far"]) as env:
        handle = await env.start(elsewhere, id="e")
        with pytest.raises(RunFailed):
            await handle.result()
        await env.settle()
        broken.clear()
        await handle.retry()
        assert await handle.result() == [1, 2]
        assert Counter(name for name, _ in executed) == {"near": 1, "far": 2}
        assert len(keys["far"]) == 1
        await is_sound(env)


async def test_what_another_queue_has_done_after_the_point_is_kept() -> None:
    @activity(retry=Retry(attempts=1))
    async def slow() -> str:
        await asyncio.sleep(3)
        executed.append(("slow", 1))
        return "slow"

    @workflow
    async def elsewhere() -> list[Any]:
        found = await asyncio.gather(act("bad"), slow.with_options(queue="far")(), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return list(found)

    broken.add("bad")
    async with world(elsewhere, act, slow, queues=["default", "far"]) as env:
        handle = await env.start(elsewhere, id="e")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == [1, "slow"]
        assert Counter(name for name, _ in executed) == {"bad": 2, "slow": 1}
        await is_sound(env)


# -- children


@workflow
async def child(name: str) -> int:
    await act(f"{name} first")
    return await act(f"{name} second", 2)


@workflow
async def parent() -> list[int]:
    one = await run_child(child, "a")
    return [one, await act("after")]


async def test_the_result_of_a_child_is_kept() -> None:
    broken.add("after")
    async with world(parent, child, act) as env:
        handle = await env.start(parent, id="p")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == [2, 1]
        assert Counter(name for name, _ in executed) == {"a first": 1, "a second": 1, "after": 2}
        await is_sound(env)


async def test_the_result_of_a_child_that_came_after_the_point_is_kept() -> None:
    async with world(parent, child, act) as env:
        handle = await env.start(parent, id="p")
        await handle.result()
        await handle.reset(0)
        assert await handle.result() == [2, 1]
        assert Counter(name for name, _ in executed) == {"a first": 1, "a second": 1, "after": 2}
        await is_sound(env)


async def test_the_result_of_a_child_that_is_gone_is_kept_though_it_was_not_read() -> None:
    @workflow
    async def slow_child() -> int:
        await asyncio.sleep(50)
        return await act("pay")

    @workflow
    async def slow_parent() -> int:
        return await run_child(slow_child, id="kid")

    async with world(slow_parent, slow_child, act) as env:
        handle = await env.start(slow_parent, id="p")
        await env.advance(10)
        await handle.pause()
        await env.advance(100)
        await handle.terminate("by mistake")
        kid = await env.store.get("kid")
        assert await env.store.delete_runs([kid.run_id], Act(actor="ann", verb=Verb.DELETE)) == [kid.run_id]
        await handle.retry()
        assert await handle.result() == 1
        assert executed == [("pay", 1)]


async def test_a_child_that_is_open_at_the_point_stands_in_the_way() -> None:
    @workflow
    async def waiting_child() -> str:
        return await go.wait()

    @workflow
    async def waiting_parent() -> str:
        return await run_child(waiting_child, id="kid")

    async with world(waiting_parent, waiting_child) as env:
        handle = await env.start(waiting_parent, id="p")
        await env.settle()
        with pytest.raises(InvalidFork, match=r"'kid'.*output=\{1: "):
            await handle.reset(0)
        forked = await handle.fork("q", at=0, output={1: "given"})
        assert await forked.result() == "given"
        assert (await handle.describe()).state in (RunState.RUNNING, RunState.WAITING)
        await (await env.get("kid")).signal(go, "done")
        assert await handle.result() == "done"


async def test_a_child_that_failed_goes_on_from_where_it_failed() -> None:
    broken.add("a second")
    async with world(parent, child, act) as env:
        handle = await env.start(parent, id="p")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == [2, 1]
        assert Counter(name for name, _ in executed) == {"a first": 1, "a second": 2, "after": 1}
        assert len(keys["a second"]) == 1
        await is_sound(env)


async def test_children_that_were_cancelled_with_the_run_go_on_and_grandchildren_too() -> None:
    @workflow
    async def leaf(name: str) -> str:
        await act(f"{name} leaf")
        await asyncio.sleep(50)
        return name

    @workflow
    async def middle(name: str) -> str:
        await act(f"{name} middle")
        return await run_child(leaf, name)

    @workflow
    async def root() -> list[Any]:
        async def later() -> int:
            await asyncio.sleep(10)
            return await act("charge")

        return list(await asyncio.gather(run_child(middle, "one"), run_child(middle, "two"), later()))

    broken.add("charge")
    async with world(root, middle, leaf, act) as env:
        handle = await env.start(root, id="r")
        with pytest.raises(RunFailed):
            await handle.result()
        await env.settle()
        broken.clear()
        await handle.retry()
        assert await handle.result() == ["one", "two", 1]
        done = Counter(name for name, _ in executed)
        assert done == {"one leaf": 1, "two leaf": 1, "one middle": 1, "two middle": 1, "charge": 2}
        await is_sound(env)


async def test_a_child_that_is_tried_again_alone_does_not_tell_its_parent_again() -> None:
    @workflow
    async def careful() -> str:
        try:
            await run_child(child, "a", id="kid")
        except RunFailed:
            return await go.wait()
        return "well"

    broken.add("a second")
    async with world(careful, child, act) as env:
        handle = await env.start(careful, id="p")
        await env.settle()
        broken.clear()
        kid = await env.get("kid", child)
        await kid.retry()
        assert await kid.result() == 2
        await handle.signal(go, "I heard of the failure")
        assert await handle.result() == "I heard of the failure"
        await is_sound(env)


async def test_an_open_child_that_is_reset_answers_its_parent() -> None:
    @workflow
    async def slow_child() -> str:
        await act("in the child")
        return await go.wait()

    @workflow
    async def patient() -> str:
        return await run_child(slow_child, id="kid")

    async with world(patient, slow_child, act) as env:
        handle = await env.start(patient, id="p")
        await env.settle()
        kid = await env.get("kid")
        await kid.reset(0)
        await kid.signal(go, "from the second")
        assert await handle.result() == "from the second"
        assert [name for name, _ in executed] == ["in the child"]
        await is_sound(env)


# -- answers from outside, once, batches

tokens: list[str] = []


@activity
async def ask(question: str) -> str:
    executed.append((question, 1))
    tokens.append(activity_info().token)
    raise CompleteLater


@workflow
async def asks() -> str:
    return await ask("well?")


@asynccontextmanager
async def asked() -> AsyncIterator[tuple[Environment, Handle[str]]]:
    """A run that waits for an answer from outside."""
    async with world(asks, ask) as env:
        handle = await env.start(asks, id="a")
        await env.settle()
        yield env, handle


async def test_a_token_serves_the_run_that_goes_on() -> None:
    @workflow
    async def asks_and_waits() -> list[Any]:
        await act("before")
        return list(await asyncio.gather(ask("well?"), go.wait()))

    async with world(asks_and_waits, act, ask) as env:
        handle = await env.start(asks_and_waits, id="a")
        await env.settle()
        await handle.reset(1)
        await handle.reset(1)
        await env.settle()
        await env.client.complete(tokens[0], "yes")
        await handle.signal(go, "and go")
        assert await handle.result() == ["yes", "and go"]
        assert len(tokens) == 1
        await is_sound(env)


async def test_an_answer_from_outside_that_was_not_read_is_kept() -> None:
    async with asked() as (env, handle):
        await env.crash()
        ref = parse_token(tokens[0])
        await ExternalCompletions(env.store).answer(ref, Raw(b'"yes"'))
        assert await env.store.terminate_runs([handle.run_id], "by mistake", Act(actor="ann", verb=Verb.TERMINATE))
        await handle.retry()
        assert await handle.result() == "yes"
        assert len(tokens) == 1


async def test_an_answer_from_outside_that_comes_while_a_reset_is_planned_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with asked() as (env, handle):
        await handle.pause()
        write = env.store.fork

        async def late(forks: Sequence[Fork], act: Act) -> list[ForkOutcome]:
            monkeypatch.undo()
            await ExternalCompletions(env.store).answer(parse_token(tokens[0]), Raw(b'"yes"'))
            return await write(forks, act)

        monkeypatch.setattr(env.store, "fork", late)
        await handle.reset(0)
        assert await handle.result() == "yes"
        assert len(tokens) == 1
        await is_sound(env)


async def test_a_fork_of_what_waits_for_an_answer_asks_for_one_of_its_own() -> None:
    async with asked() as (env, handle):
        copy = await handle.fork("b", at=0)
        await env.settle()
        assert len(tokens) == 2
        await env.client.complete(tokens[1], "two")
        await env.client.complete(tokens[0], "one")
        assert (await handle.result(), await copy.result()) == ("one", "two")


async def test_a_once_activity_that_was_begun_is_not_begun_again() -> None:
    @activity(once=True)
    async def pay() -> str:
        executed.append(("pay", 1))
        await asyncio.sleep(1000)
        return "paid"

    @workflow
    async def pays() -> str:
        try:
            return await pay()
        except Interrupted:
            return "find out"

    async with world(pays, pay) as env:
        handle = await env.start(pays, id="p")
        await env.advance(5)
        await handle.reset(0)
        assert await handle.result() == "find out"
        assert executed == [("pay", 1)]
        await is_sound(env)


async def test_the_call_at_the_end_of_a_batch_still_sees_its_batch() -> None:
    @job(retry=Retry(attempts=1))
    async def one(number: int) -> int:
        return number

    @job(retry=Retry(attempts=1))
    async def last() -> int:
        if "last" in broken:
            raise ConnectionError("away")
        return (await batch_info()).completed

    broken.add("last")
    async with jobs(one, last) as env:
        batch = await env.enqueue_many([one.call(1), one.call(2)], on_done=last.call())
        assert batch.done is not None
        with pytest.raises(RunFailed):
            await batch.done.result()
        broken.clear()
        await batch.done.retry()
        assert await batch.done.result() == 2
