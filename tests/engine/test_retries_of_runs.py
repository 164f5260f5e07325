"""A run that has failed is tried again from where it failed: what was done stays, and keys stay the same."""

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from batuta import (
    NotParked,
    Retry,
    RunCancelled,
    RunClosed,
    RunFailed,
    RunState,
    RunTerminated,
    Signal,
    activity,
    activity_info,
    heartbeat,
    info,
    job,
    publish,
    uuid,
    workflow,
)
from batuta.authoring.backend import RunRef
from batuta.engine.backend.native import NativeBackend
from batuta.journal.entries import EntryKind
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.kit import jobs, world

executed: list[str] = []
keys: dict[str, list[str]] = {}
broken: set[str] = set()


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()
    keys.clear()
    broken.clear()


@activity(retry=Retry(attempts=2, first=0.1))
async def act(name: str) -> str:
    executed.append(name)
    keys.setdefault(name, []).append(activity_info().key)
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return name


@workflow
async def order(id: str) -> list[str]:
    return [await act("reserve"), await act("charge"), await act("ship")]


async def failed(env: Environment, flow: Any, *args: Any, id: str = "order-1") -> Any:
    """A run that has failed."""
    handle = await env.start(flow, *args, id=id)
    with pytest.raises(RunFailed):
        await handle.result()
    return handle


async def is_sound(env: Environment) -> None:
    report = await verify(env.store, env.workflows)
    assert not report.violations, report


async def test_what_was_done_is_not_done_again_and_the_keys_stay() -> None:
    broken.add("charge")
    async with world(order, act) as env:
        handle = await failed(env, order, "o")
        source = handle.run_id
        broken.clear()
        await handle.retry("the bank is back")
        assert await handle.result() == ["reserve", "charge", "ship"]
        assert executed == ["reserve", "charge", "charge", "charge", "ship"]
        assert all(len(set(used)) == 1 for used in keys.values())
        assert handle.run_id != source
        await is_sound(env)


async def test_another_handle_of_the_failed_run_follows() -> None:
    broken.add("charge")
    async with world(order, act) as env:
        handle = await failed(env, order, "o")
        other = await env.get("order-1", order)
        broken.clear()
        await handle.retry()
        assert await other.result() == ["reserve", "charge", "ship"]
        assert (await other.describe()).state is RunState.COMPLETED


async def test_it_can_fail_again_and_be_tried_again() -> None:
    broken.update(["charge", "ship"])
    async with world(order, act) as env:
        handle = await failed(env, order, "o")
        broken.discard("charge")
        await handle.retry()
        with pytest.raises(RunFailed, match="ship is down"):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == ["reserve", "charge", "ship"]
        assert Counter(executed) == {"reserve": 1, "charge": 3, "ship": 3}
        assert all(len(set(used)) == 1 for used in keys.values())
        await is_sound(env)


async def test_the_journal_says_where_it_was_made_from() -> None:
    broken.add("charge")
    async with world(order, act) as env:
        handle = await failed(env, order, "o")
        source = handle.run_id
        broken.clear()
        await handle.retry("mended")
        await handle.result()
        run = await handle.describe()
        assert (run.forked_from, run.forked_at) == (source, 1)
        lines = await handle.journal()
        kinds = ["started", "activity_done", "forked", "activity_done", "activity_done"]
        assert [str(line.kind) for line in lines] == kinds
        assert lines[2].body.reason == "mended"


@activity(retry=Retry(attempts=1))
async def once(name: str) -> str:
    executed.append(name)
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return name


@workflow
async def patient() -> list[str]:
    found = await asyncio.gather(once("good"), once("bad"), once("worse"), return_exceptions=True)
    errors = [one for one in found if isinstance(one, BaseException)]
    if errors:
        raise errors[0]
    return [str(one) for one in found]


async def test_results_of_parallel_calls_that_came_after_the_failure_are_kept() -> None:
    broken.add("bad")

    @activity
    async def slow_act(name: str) -> str:
        await asyncio.sleep(5)
        executed.append(name)
        return name

    @workflow
    async def both() -> list[str]:
        found = await asyncio.gather(act("bad"), slow_act("slow"), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return [str(one) for one in found]

    async with world(both, act, slow_act) as env:
        handle = await failed(env, both)
        broken.clear()
        await handle.retry()
        assert await handle.result() == ["bad", "slow"]
        assert Counter(executed) == {"bad": 3, "slow": 1}
        await is_sound(env)


async def test_every_failed_branch_is_tried_again() -> None:
    broken.update(["bad", "worse"])
    async with world(patient, once) as env:
        handle = await failed(env, patient)
        broken.clear()
        await handle.retry()
        assert await handle.result() == ["good", "bad", "worse"]
        assert Counter(executed) == {"good": 1, "bad": 2, "worse": 2}
        await is_sound(env)


@activity(retry=Retry(attempts=1))
async def alike(name: str) -> str:
    executed.append(name)
    if name in broken:
        raise ConnectionError("the bank is down")
    return name


async def test_every_branch_with_the_same_failure_is_tried_again() -> None:
    @workflow
    async def batch(grouped: bool) -> list[str]:
        found = await asyncio.gather(alike("bad"), alike("worse"), return_exceptions=True)
        errors = [one for one in found if isinstance(one, Exception)]
        if errors:
            raise ExceptionGroup("some failed", errors) if grouped else errors[0]
        return [str(one) for one in found]

    async with world(batch, alike) as env:
        for grouped in (True, False):
            broken.update(["bad", "worse"])
            handle = await failed(env, batch, grouped, id=f"batch-{grouped}")
            broken.clear()
            await handle.retry()
            assert await handle.result() == ["bad", "worse"]
        assert Counter(executed) == {"bad": 4, "worse": 4}
        await is_sound(env)


async def test_a_retry_repeats_the_first_failed_call_and_not_its_consequence() -> None:
    @workflow
    async def pays() -> str:
        try:
            return await alike("charge")
        except ConnectionError:
            with suppress(ConnectionError):
                await alike("refund")
            raise

    broken.update(["charge", "refund"])
    async with world(pays, alike) as env:
        handle, other = await failed(env, pays), await failed(env, pays, id="order-2")
        broken.clear()
        executed.clear()
        await handle.retry()
        assert await handle.result() == "charge"
        found = await env.dead_letters.reprocess("order-2", input=["charge it all"])
        assert found.reprocessed == 1
        assert await other.result() == "charge it all"
        assert executed == ["charge", "charge it all"]
        await is_sound(env)


@workflow
async def branches() -> list[Any]:
    async def branch(name: str) -> str:
        await once(f"{name} one")
        await once(f"{name} two")
        return await once(f"{name} three")

    found = await asyncio.gather(once("bad"), branch("a"), branch("b"), return_exceptions=True)
    for one in found:
        if isinstance(one, BaseException):
            raise one
    return list(found)


async def test_what_other_branches_did_after_the_failure_is_kept() -> None:
    broken.update(["bad", "b three"])
    async with world(branches, once) as env:
        handle = await failed(env, branches)
        broken.clear()
        await handle.retry()
        assert await handle.result() == ["bad", "a three", "b three"]
        done = Counter(executed)
        assert (done.pop("bad"), done.pop("b three")) == (2, 2)
        assert set(done.values()) == {1}
        assert (await handle.describe()).forked_at == 0
        await is_sound(env)


async def test_without_the_code_they_do_it_again_with_the_same_keys() -> None:
    broken.add("bad")
    async with world(branches, once) as env:
        handle = await failed(env, branches)
        broken.clear()
        stranger = NativeBackend(env.store)
        await stranger.runs.retry(RunRef("order-1", handle.run_id))
        assert await handle.result() == ["bad", "a three", "b three"]
        assert Counter(executed)["a one"] == 1
        await is_sound(env)


async def test_what_the_code_did_because_of_the_failure_is_not_kept() -> None:
    @workflow
    async def falls_back() -> list[Any]:
        async def careful() -> str:
            try:
                return await once("bad")
            except ConnectionError:
                await once("plan b")
                raise

        found = await asyncio.gather(careful(), once("good"), return_exceptions=True)
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return list(found)

    broken.add("bad")
    async with world(falls_back, once) as env:
        handle = await failed(env, falls_back)
        broken.clear()
        await handle.retry()
        assert await handle.result() == ["bad", "good"]
        assert Counter(executed) == {"bad": 2, "good": 1, "plan b": 1}
        await is_sound(env)


async def test_an_error_of_the_code_itself_has_its_last_turn_run_again() -> None:
    faults = ["a bug"]

    @workflow
    async def buggy() -> str:
        found = await act("first")
        if faults:
            raise ValueError(faults[0])
        return found + await act("second")

    async with Environment(workflows=[buggy], activities=[act]) as env:
        handle = await failed(env, buggy)
        faults.clear()
        await handle.retry()
        assert await handle.result() == "firstsecond"
        assert executed == ["first", "second"]


async def test_a_retried_run_that_failed_in_its_first_turn_keeps_its_id_and_input() -> None:
    faults = ["a bug"]
    seen: list[Any] = []

    @workflow
    async def buggy() -> str:
        seen.append(uuid())
        if faults:
            raise ValueError(faults[0])
        return await act("only")

    async with Environment(workflows=[buggy], activities=[act]) as env:
        handle = await failed(env, buggy)
        faults.clear()
        source = handle.run_id
        await handle.retry()
        assert await handle.result() == "only"
        assert len(set(seen)) == 1
        assert keys["only"] == [f"{source}:1:act"]
        assert not (await verify(env.store)).violations


go = Signal("go", str)


@workflow
async def listens() -> list[str]:
    first = await go.wait()
    await act("before")
    second = await go.wait()
    await act("after")
    return [first, second]


async def test_signals_that_were_read_after_the_point_are_read_again() -> None:
    async with world(listens, act) as env:
        handle = await env.start(listens, id="l")
        await handle.signal(go, "one")
        await handle.signal(go, "two")
        assert await handle.result() == ["one", "two"]
        await handle.reset(0)
        assert await handle.result() == ["one", "two"]
        await is_sound(env)


async def test_a_signal_that_ended_the_run_is_read_again() -> None:
    faults = ["a bug"]

    @workflow
    async def fussy() -> str:
        said = await go.wait()
        if faults:
            raise ValueError(said)
        return said

    async with Environment(workflows=[fussy]) as env:
        handle = await env.start(fussy, id="f")
        await handle.signal(go, "now")
        with pytest.raises(RunFailed):
            await handle.result()
        faults.clear()
        await handle.retry()
        assert await handle.result() == "now"
        assert not (await verify(env.store)).violations


async def test_what_the_run_was_told_about_itself_stays_until_the_point() -> None:
    @workflow
    async def curious() -> list[str]:
        first = await act(f"{info().id} {info().run_id}")
        return [first, await act("charge"), str(info().run_id)]

    broken.add("charge")
    async with Environment(workflows=[curious], activities=[act]) as env:
        handle = await failed(env, curious)
        source = handle.run_id
        broken.clear()
        await handle.retry()
        assert await handle.result() == [f"order-1 {source}", "charge", str(handle.run_id)]
        await is_sound(env)


async def test_published_values_are_those_of_the_point() -> None:
    @workflow
    async def tells() -> str:
        publish("step", 1)
        await act("first")
        publish("step", 2)
        await act("charge")
        publish("step", 3)
        return await act("last")

    broken.add("last")
    async with world(tells, act) as env:
        handle = await failed(env, tells)
        assert await handle.published("step") == 3
        await handle.reset(1)
        run = await handle.describe()
        values = {one.name: one.value for one in await env.store.outputs(run.run_id)}
        assert values["step"] == "2"


async def test_a_cancelled_run_goes_on_where_it_was_before() -> None:
    @workflow
    async def long() -> str:
        await act("before")
        await asyncio.sleep(100)
        return await act("after")

    async with world(long, act) as env:
        handle = await env.start(long, id="l")
        await env.advance(10)
        await handle.cancel("a mistake")
        with pytest.raises(RunCancelled):
            await handle.result()
        await handle.retry()
        assert await handle.result() == "after"
        assert executed == ["before", "after"]
        await is_sound(env)


async def test_a_terminated_run_goes_on_where_it_stood() -> None:
    async with world(listens, act) as env:
        handle = await env.start(listens, id="l")
        await handle.signal(go, "one")
        await env.settle()
        await handle.terminate("a mistake")
        with pytest.raises(RunTerminated):
            await handle.result()
        await handle.retry()
        await handle.signal(go, "two")
        assert await handle.result() == ["one", "two"]
        assert executed == ["before", "after"]
        await is_sound(env)


async def test_only_what_did_not_end_well_is_tried_again() -> None:
    async with world(order, listens, act) as env:
        done = await env.start(order, "o")
        await done.result()
        with pytest.raises(RunClosed):
            await done.retry()
        waiting = await env.start(listens)
        with pytest.raises(NotParked):
            await waiting.retry()


async def test_a_heartbeat_of_the_failed_call_is_there_for_the_next() -> None:
    seen: list[Any] = []

    @activity(retry=Retry(attempts=1))
    async def imports() -> str:
        seen.append(activity_info().last_details)
        heartbeat(7)
        if "imports" in broken:
            raise ConnectionError("away")
        return "all"

    @workflow
    async def loads() -> str:
        return await imports()

    broken.add("imports")
    async with world(loads, imports) as env:
        handle = await failed(env, loads)
        broken.clear()
        await handle.retry()
        assert await handle.result() == "all"
        assert seen[0] is None


@job(retry=Retry(attempts=2, first=0.1))
async def send(to: str) -> str:
    executed.append(to)
    keys.setdefault(to, []).append(activity_info().key)
    if to in broken:
        raise ConnectionError("no such host")
    return f"sent to {to}"


async def test_a_job_is_tried_again_with_its_key() -> None:
    broken.add("ann")
    async with jobs(send) as env:
        handle = await env.enqueue(send, "ann", id="mail")
        with pytest.raises(RunFailed):
            await handle.result()
        broken.clear()
        await handle.retry()
        assert await handle.result() == "sent to ann"
        assert len(executed) == 3
        assert len(set(keys["ann"])) == 1


async def test_the_entry_that_makes_a_fork_runs_no_turn() -> None:
    broken.add("charge")
    async with world(order, act, always_replay=True) as env:
        handle = await failed(env, order, "o")
        broken.clear()
        await handle.retry()
        assert await handle.result() == ["reserve", "charge", "ship"]
        assert sum(line.kind is EntryKind.FORKED for line in await handle.journal()) == 1
