"""Forks and resets: a run goes on from a point of another, with edits or without."""

import asyncio
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pytest
from msgspec import Raw

from batuta import (
    AlreadyStarted,
    CompleteLater,
    Handle,
    Interrupted,
    InvalidFork,
    Retry,
    RunFailed,
    RunState,
    RunTimedOut,
    Signal,
    Update,
    activity,
    activity_info,
    batch_info,
    continue_as_new,
    info,
    job,
    run_child,
    send,
    uuid,
    workflow,
)
from batuta.authoring.backend import RunRef
from batuta.authoring.tokens import parse_token
from batuta.engine.closing import close_from_outside
from batuta.engine.completing import Completing
from batuta.engine.native import NativeBackend
from batuta.journal.entries import Body, EntryKind
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.kit import jobs, world

executed: list[tuple[str, int]] = []
keys: dict[str, set[str]] = {}
broken: set[str] = set()
go = Signal("go", str)
add = Update("add", int)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()
    keys.clear()
    broken.clear()


@activity(retry=Retry(attempts=1))
async def act(name: str, amount: int = 1) -> int:
    executed.append((name, amount))
    keys.setdefault(name, set()).add(activity_info().key)
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return amount


@workflow
async def order(price: int) -> list[int]:
    return [await act("reserve", price), await act("charge", price * 2), await act("ship", price * 3)]


async def is_sound(env: Environment) -> None:
    report = await verify(env.store, env.workflows)
    assert not report.violations, report


async def test_a_fork_begins_with_what_was_done_and_leaves_the_run_alone() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        assert await handle.result() == [5, 10, 15]
        copy = await handle.fork("order-1-b", at=1, reason="what if")
        assert await copy.result() == [5, 10, 15]
        assert Counter(name for name, _ in executed) == {"reserve": 1, "charge": 1, "ship": 2}
        assert (await handle.describe()).run_id == handle.run_id
        run = await copy.describe()
        assert (run.id, run.forked_from, run.forked_at) == ("order-1-b", handle.run_id, 1)
        await is_sound(env)


async def test_a_fork_has_keys_of_its_own_from_its_point_on() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", at=1)
        await copy.result()
        assert len(keys["charge"]) == 1
        assert len(keys["ship"]) == 2


async def test_a_result_can_be_edited() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", output={2: 99})
        assert await copy.result() == [5, 99, 15]
        assert Counter(name for name, _ in executed) == {"reserve": 1, "charge": 1, "ship": 2}
        await is_sound(env)


async def test_the_input_of_a_pending_call_can_be_edited() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", input={2: ["charge", 7]})
        assert await copy.result() == [5, 7, 15]
        assert executed.count(("charge", 7)) == 1
        assert len(keys["charge"]) == 2
        await is_sound(env)


async def test_the_run_can_begin_anew_with_other_arguments() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        copy = await handle.fork("copy", args=[6])
        assert await copy.result() == [6, 12, 18]
        assert len(keys["reserve"]) == 2
        await is_sound(env)


@dataclass
class Address:
    street: str
    number: int


@activity
async def ship_to(address: Address) -> Address:
    return address


@workflow
async def ships(address: Address) -> Address:
    return await ship_to(address)


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        ({"at": 9}, "entries 0 to 1: there is no 9"),
        ({"at": -2}, "there is no -2"),
        ({"at": 1}, "has ended with entry 1"),
        ({"output": {1: {"street": 5}}}, "does not fit"),
        ({"input": {1: ["a street"]}}, "does not fit"),
        ({"input": {1: [1, 2, 3]}}, "does not fit"),
        ({"args": ["a street"]}, "does not fit"),
        ({"output": {7: 1}}, "no such call"),
        ({"output": {7: 1}, "at": 0}, "no such call"),
        ({"input": {1: [1]}, "at": -1}, "no such call"),
        ({"args": [1], "at": 0}, "begins anew"),
        ({"input": {1: [1]}, "output": {1: 1}}, "both"),
        ({}, "at which entry"),
    ],
)
async def test_what_does_not_fit_is_said_and_nothing_is_changed(edits: dict[str, Any], why: str) -> None:
    async with world(ships, ship_to) as env:
        handle = await env.start(ships, Address("Rua", 1), id="s")
        await handle.result()
        with pytest.raises(InvalidFork, match=why):
            await handle.fork("copy", **edits)
        assert await env.client.count(kind="any") == 1
        assert len(await env.store.audit()) == 0


async def test_an_edit_needs_the_code() -> None:
    async with world(ships, ship_to) as env:
        handle = await env.start(ships, Address("Rua", 1), id="s")
        await handle.result()
        stranger = NativeBackend(env.store)
        ref = RunRef("s", handle.run_id)
        with pytest.raises(InvalidFork, match="code"):
            await Handle[Any](stranger, ref).fork("copy", output={1: {"street": "Rua", "number": 2}})
        await Handle[Any](stranger, ref, workflow=ships).fork("copy", output={1: {"street": "Rua", "number": 2}})
        assert await (await env.get("copy", ships)).result() == Address("Rua", 2)


async def test_an_id_that_is_taken_is_refused() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await env.start(order, 6, id="order-2")
        await handle.result()
        with pytest.raises(AlreadyStarted):
            await handle.fork("order-2", at=0)


# -- resets


@workflow
async def waits() -> list[Any]:
    first = await act("first")
    said = await go.wait()
    second = await act("second")
    return [first, said, second]


async def test_an_open_run_is_reset_and_its_signals_are_read_again() -> None:
    @workflow
    async def talks() -> list[str]:
        one = await go.wait()
        await act("between")
        return [one, await go.wait(), await go.wait()]

    async with world(talks, act) as env:
        handle = await env.start(talks, id="t")
        await handle.signal(go, "a")
        await handle.signal(go, "b")
        await env.settle()
        before = handle.run_id
        await handle.reset(0, reason="from the top")
        assert handle.run_id != before
        await handle.signal(go, "c")
        assert await handle.result() == ["a", "b", "c"]
        old = await env.store.get_run(before)
        assert (old.state, old.reason) == (RunState.TERMINATED, "from the top")
        assert executed == [("between", 1), ("between", 1)]
        assert len(keys["between"]) == 1
        await is_sound(env)


async def test_who_waits_for_an_open_run_gets_the_result_of_the_one_that_goes_on() -> None:
    async with world(waits, act) as env:
        handle = await env.start(waits, id="w")
        waiting = asyncio.ensure_future((await env.get("w", waits)).result())
        await env.settle()
        await handle.reset(1)
        await handle.signal(go, "now")
        assert await waiting == [1, "now", 1]


async def test_a_completed_run_can_be_reset() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        await handle.result()
        await handle.reset(2)
        assert await handle.result() == [5, 10, 15]
        assert Counter(name for name, _ in executed) == {"reserve": 1, "charge": 1, "ship": 1}


async def test_a_reset_takes_edits_too() -> None:
    broken.add("charge")
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="order-1")
        with pytest.raises(RunFailed):
            await handle.result()
        await handle.reset(1, output={2: 11}, reason="charged by hand")
        assert await handle.result() == [5, 11, 15]
        await is_sound(env)


async def test_a_reset_of_what_was_continued_is_of_the_last_run() -> None:
    @workflow
    async def counts(n: int) -> int:
        await act(f"step {n}")
        if n < 3:
            continue_as_new(n + 1)
        return await act("last", n)

    broken.add("last")
    async with world(counts, act) as env:
        handle = await env.start(counts, 1, id="c")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == 3
        assert Counter(name for name, _ in executed) == {"step 1": 1, "step 2": 1, "step 3": 1, "last": 2}
        again = await env.get("c", counts)
        assert (await again.describe()).run_id == handle.run_id
        await is_sound(env)


async def test_a_run_that_goes_on_after_a_retry_can_continue_as_new() -> None:
    @workflow
    async def counts(n: int) -> int:
        await act(f"step {n}")
        if n < 3:
            continue_as_new(n + 1)
        return n

    broken.add("step 2")
    async with world(counts, act) as env:
        old = await env.start(counts, 1, id="c")
        with pytest.raises(RunFailed):
            await old.result()
        broken.clear()
        await (await env.get("c")).retry()
        assert await old.result() == 3
        await is_sound(env)


async def test_times_begin_anew() -> None:
    @activity(retry=Retry(attempts=1), total_timeout=5, start_timeout=5)
    async def quick() -> str:
        if "quick" in broken:
            raise ConnectionError("away")
        return "quick"

    @workflow
    async def hurried() -> str:
        return await quick()

    broken.add("quick")
    async with world(hurried, quick) as env:
        handle = await env.start(hurried, id="h", timeout=30, execution_timeout=60)
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await env.advance(1000)
        await handle.retry()
        assert await handle.result() == "quick"


async def test_a_run_that_timed_out_goes_on_where_it_stood() -> None:
    async with world(waits, act) as env:
        handle = await env.start(waits, id="w", timeout=10)
        with pytest.raises(RunTimedOut):
            await handle.result()
        await handle.retry()
        await handle.signal(go, "late")
        assert await handle.result() == [1, "late", 1]
        assert [name for name, _ in executed] == ["first", "second"]
        await is_sound(env)


async def test_a_run_that_never_began_begins_after_a_retry() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="o", delay=1000)
        await handle.terminate("not now")
        await handle.retry()
        assert await handle.result() == [5, 10, 15]
        await is_sound(env)


# -- what goes to others


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


# -- updates


async def test_an_update_that_was_answered_after_the_point_is_answered_again() -> None:
    @workflow
    async def sums() -> int:
        total = 0

        @add.handle
        def take(number: int) -> int:
            nonlocal total
            total += number
            return total

        await go.wait()
        return total

    async with world(sums) as env:
        handle = await env.start(sums, id="s")
        assert await handle.update(add, 2) == 2
        assert await handle.update(add, 3) == 5
        await env.settle()
        await handle.reset(0)
        await handle.signal(go, "end")
        assert await handle.result() == 5
        await is_sound(env)


# -- identity and chance


async def test_a_fork_has_chance_of_its_own_and_a_reset_has_not() -> None:
    @workflow
    async def draws() -> list[str]:
        first = str(uuid())
        await act("between")
        return [first, str(uuid()), info().id]

    async with world(draws, act) as env:
        handle = await env.start(draws, id="d")
        one = await handle.result()
        copy = await (await handle.fork("copy", at=0)).result()
        await handle.reset(0)
        same = await handle.result()
        assert copy[0] == one[0]
        assert copy[1] != one[1]
        assert copy[2] == "copy"
        assert same[:2] == one[:2]
        await is_sound(env)


async def test_a_fork_of_a_fork_of_a_reset_replays() -> None:
    async with world(order, act) as env:
        handle = await env.start(order, 5, id="a")
        await handle.result()
        await handle.reset(0)
        await handle.result()
        second = await handle.fork("b", at=2)
        await second.result()
        third = await second.fork("c", output={3: 77})
        assert await third.result() == [5, 10, 77]
        await is_sound(env)


# -- jobs


@job(retry=Retry(attempts=1))
async def mail(to: str) -> str:
    keys.setdefault("mail", set()).add(activity_info().key)
    if to in broken:
        raise ConnectionError("no such host")
    return f"to {to}"


async def test_a_job_is_forked_with_another_input() -> None:
    broken.add("anne")
    async with jobs(mail) as env:
        handle = await env.enqueue(mail, "anne", id="m")
        with pytest.raises(RunFailed):
            await handle.result()
        again = await handle.fork("m2", input={1: ["ann"]})
        assert await again.result() == "to ann"
        afresh = await handle.fork("m3", args=["bob"])
        assert await afresh.result() == "to bob"
        with pytest.raises(InvalidFork, match="does not fit"):
            await handle.fork("m4", args=[1, 2, 3])
        assert len(keys["mail"]) == 3


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
        with pytest.raises(InvalidFork, match="'kid'"):
            await handle.reset(0)
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


async def test_a_token_serves_the_run_that_goes_on() -> None:
    @workflow
    async def asks() -> list[Any]:
        await act("before")
        return list(await asyncio.gather(ask("well?"), go.wait()))

    tokens.clear()
    async with world(asks, act, ask) as env:
        handle = await env.start(asks, id="a")
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
    @workflow
    async def asks() -> str:
        return await ask("well?")

    tokens.clear()
    async with world(asks, ask) as env:
        handle = await env.start(asks, id="a")
        await env.settle()
        await env.crash()
        ref = parse_token(tokens[0])
        await Completing(env.store).answer(ref, Body(value=Raw(b'"yes"')))
        run, last = await env.store.outcome(handle.run_id)
        assert await close_from_outside(env.store, run, last, EntryKind.TERMINATED, "by mistake")
        await handle.retry()
        assert await handle.result() == "yes"
        assert len(tokens) == 1


async def test_a_fork_of_what_waits_for_an_answer_asks_for_one_of_its_own() -> None:
    @workflow
    async def asks() -> str:
        return await ask("well?")

    tokens.clear()
    async with world(asks, ask) as env:
        handle = await env.start(asks, id="a")
        await env.settle()
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


async def test_a_run_that_is_paused_can_be_reset() -> None:
    async with world(waits, act) as env:
        handle = await env.start(waits, id="w")
        await env.settle()
        await handle.pause("hold on")
        await env.settle()
        await handle.reset(0)
        await handle.signal(go, "on")
        assert await handle.result() == [1, "on", 1]
        await is_sound(env)
