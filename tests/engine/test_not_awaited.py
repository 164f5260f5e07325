"""A call that the code forgets to await would never happen: its run is parked, and the reason names the call."""

import asyncio
import gc
import warnings
from datetime import timedelta
from typing import Any

import pytest

from batuta import (
    RunFailed,
    RunState,
    Signal,
    Workflow,
    activity,
    call,
    continue_as_new,
    handlers_done,
    now,
    run_child,
    send,
    side_effect,
    start_child,
    wait_for_timer,
    workflow,
)
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.ids import new_run_id
from tests.engine.kit import journal_of, parked, world

done: list[str] = []
STOP = Signal("stop", str)
kept: list[Any] = []


@pytest.fixture(autouse=True)
def _anew() -> None:
    done.clear()
    kept.clear()


@activity
async def charge(order: str) -> str:
    done.append(f"charge {order}")
    return order


@activity
async def settle(order: str) -> None:
    done.append(f"settle {order}")


@workflow
async def child() -> None:
    await charge("child")


@workflow
async def forgets(order: str) -> str:
    paid = await charge(order)
    settle(order)  # type: ignore[unused-coroutine]  # that is what is tested
    await charge("never reached")
    return paid


async def settle_all(order: str) -> None:
    settle(order)  # type: ignore[unused-coroutine]  # as above


@workflow
async def forgets_in_a_helper(order: str) -> None:
    await settle_all(order)
    await asyncio.sleep(60)


@workflow
async def forgets_what_it_keeps(order: str) -> None:
    later = settle(order)
    await charge(order)
    del later


@workflow
async def forgets_elsewhere(order: str) -> None:
    kept.append(settle(order))
    await charge(order)


@workflow
async def forgets_and_continues(order: str) -> None:
    later = settle(order)
    kept.append(later)
    continue_as_new(order)


ALL: list[Workflow[..., Any]] = [
    forgets,
    forgets_in_a_helper,
    forgets_what_it_keeps,
    forgets_elsewhere,
    forgets_and_continues,
]


@pytest.mark.parametrize("what", ALL, ids=lambda what: what.name)
async def test_a_forgotten_activity_parks_the_run_by_its_name(what: Workflow[..., Any]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing is left for Python to complain about
        async with world(*ALL, charge, settle) as env:
            reason = await parked(env, await env.start(what, "a"))
            assert "activity 'settle'" in reason
            assert "await" in reason
        kept.clear()
        gc.collect()
    assert "charge never reached" not in done
    assert "settle a" not in done


@pytest.mark.parametrize(
    "name", ["call", "run_child", "start_child", "send", "side_effect", "wait", "handlers_done", "wait_for_timer"]
)
async def test_other_calls_that_are_forgotten_park_the_run_too(name: str) -> None:
    forgotten = {
        "call": lambda: call("charge", "a"),
        "run_child": lambda: run_child(child),
        "start_child": lambda: start_child(child),
        "send": lambda: send("b", STOP, "now"),
        "side_effect": lambda: side_effect(lambda: 1),
        "wait": STOP.wait,
        "handlers_done": handlers_done,
        "wait_for_timer": lambda: wait_for_timer("t", now() + timedelta(days=1)),
    }

    @workflow
    async def forgets_it() -> None:
        await charge("a")
        _ = forgotten[name]()
        del _

    async with world(forgets_it, child, charge) as env:
        reason = await parked(env, await env.start(forgets_it))
        assert f"{name}()" in reason


async def test_a_call_that_is_awaited_later_or_closed_is_not_forgotten() -> None:
    @workflow
    async def later(order: str) -> list[str]:
        first, second, third = charge("1"), charge("2"), charge("3")
        third.close()
        await charge(order)
        limit = asyncio.Semaphore(1)

        async def limited(one: Any) -> str:
            async with limit:
                return str(await one)

        found = await asyncio.gather(*(limited(charge(str(number))) for number in range(10, 200)))
        cancelled = asyncio.create_task(charge("cancelled"))
        cancelled.cancel()
        return [await second, await first, found[-1]]

    async with world(later, charge) as env:
        assert await env.run(later, "a") == ["2", "1", "199"]


async def test_a_run_that_fails_fails_with_its_own_error() -> None:
    @workflow
    async def fails(order: str) -> None:
        kept.append(settle(order))
        raise ValueError("no")

    async with world(fails, settle) as env:
        with pytest.raises(RunFailed, match="ValueError: no"):
            await env.run(fails, "a")
        kept[0].close()


async def test_a_journal_from_before_replays_as_it_did() -> None:
    @workflow(name="forgets")
    async def remembers(order: str) -> str:
        paid = await charge(order)
        await charge("never reached")
        return paid

    async with world(remembers, charge) as env:
        handle = await env.start(remembers, "a")
        assert await handle.result() == "a"
        entries = await journal_of(env, handle)
    # The same commands, written when a forgotten call was only warned about.
    machine = Machine(forgets, RunIdentity(new_run_id(), "a", "default", "default"))
    Replay(machine, entries).run()
    assert machine.outcome is not None
    machine.tear_down()


async def test_after_the_fix_the_run_goes_on() -> None:
    forgets_it = [True]

    @workflow
    async def mended(order: str) -> str:
        paid = await charge(order)
        if forgets_it:
            settle(order)  # type: ignore[unused-coroutine]  # as above
        else:
            await settle(order)
        return paid

    async with world(mended, charge, settle) as env:
        handle = await env.start(mended, "a")
        await parked(env, handle)
        forgets_it.clear()
        await handle.retry()
        assert await handle.result() == "a"
        assert (await handle.describe()).state is RunState.COMPLETED
    assert done == ["charge a", "settle a"]
