"""Who waits in vain, or comes too late, is told how the run stands or how it ended."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batuta import Failed, Handle, RunClosed, RunState, Signal, UnknownRun, Update, continue_as_new, sync, workflow
from batuta.durations import human_duration
from batuta.errors import Forbidden
from tests.engine.arena import PATIENCE, Arena, until_state
from tests.engine.kit import parked, world

stop = Signal("stop", str)
change = Update("change", str)


@workflow
async def waits() -> str:
    @change.handle
    async def slowly() -> str:
        await asyncio.sleep(3600)
        return "changed"

    match await stop.wait():
        case "fail":
            raise Failed("no such card")
        case "park":
            raise Forbidden("it reached for a socket")
    return "done"


async def waited(waiting: Awaitable[Any]) -> str:
    with pytest.raises(TimeoutError) as caught:
        await waiting
    return str(caught.value)


async def test_a_wait_for_a_parked_run_says_that_it_is_parked_and_why() -> None:
    async with world(waits) as env:
        handle = await env.start(waits, id="w")
        await handle.signal(stop, "park")
        await parked(env, handle)
        for timeout in (0, 60):
            said = await waited(handle.result(timeout))
            assert said.startswith(
                f"run 'w' has not ended within {human_duration(timeout)}: it is parked as needs_code and not lost: "
            )
            assert "it reached for a socket" in said
        said = await waited(handle.update(change, timeout=60))
        assert "has not answered update 'change' within 1 min: it is parked as needs_code" in said


async def test_a_wait_for_a_paused_or_unclaimed_run_says_so() -> None:
    async with world(waits) as env:
        handle = await env.start(waits, id="w")
        assert await waited(handle.result(1)) == "run 'w' has not ended within 1 s: it goes on"
        await handle.pause("the bank is down")
        await env.settle()
        assert (await waited(handle.result(1))).endswith(": it is paused: the bank is down")
        lonely = await env.start("unheard-of", id="u")
        said = await waited(lonely.result(1))
        assert "within 1 s: it is pending: no live worker of this queue has workflow 'unheard-of'" in said


@pytest.mark.parametrize(
    "verb",
    [
        lambda handle: handle.signal(stop, "again"),
        lambda handle: handle.update(change),
        lambda handle: handle.cancel(),
        lambda handle: handle.terminate(),
        lambda handle: handle.pause(),
    ],
)
async def test_a_late_caller_is_told_how_the_run_ended(
    arena: Arena, verb: Callable[[Handle[Any]], Awaitable[Any]]
) -> None:
    client = await arena.client()
    await arena.worker(client, waits)
    failed, ended, done = [await client.start(waits, id=id) for id in ("failed", "ended", "done")]
    await failed.signal(stop, "fail")
    await ended.terminate("the shop is closed")
    await done.signal(stop, "now")
    await until_state(failed, RunState.FAILED)
    assert await done.result(PATIENCE) == "done"
    for handle, how in ((failed, "Failed: no such card"), (ended, "the shop is closed"), (done, "")):
        with pytest.raises(RunClosed) as caught:
            await verb(handle)
        error = caught.value
        assert error.how == how
        told = f" ({how})" if how else ""
        assert str(error).startswith(f"run '{handle.id}' is {error.state}{told}: ")


@workflow
async def continues(times: int) -> str:
    if times:
        continue_as_new(times - 1)
    return "done"


async def test_a_late_caller_is_told_of_the_last_run_of_the_chain(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, continues)
    handle = await client.start(continues, 2, id="chain")
    assert await handle.result(PATIENCE) == "done"
    for verb in (lambda: handle.signal(stop, "now"), lambda: handle.update(change), handle.cancel):
        with pytest.raises(RunClosed, match="run 'chain' is completed: ") as caught:
            await verb()
        assert caught.value.state == "completed"


@pytest.mark.parametrize(("word", "state"), [("fail", "failed (Failed)"), ("now", "completed")])
async def test_an_update_that_its_run_left_unanswered_is_told_how_that_ended(word: str, state: str) -> None:
    async with world(waits) as env:
        handle = await env.start(waits, id="w")
        asked = asyncio.create_task(handle.update(change))
        await env.settle()
        await handle.signal(stop, word)
        with pytest.raises(RunClosed) as caught:
            await asked
        assert str(caught.value) == f"run 'w' is {state}: it ended before it answered update 'change'"


async def test_a_deleted_run_is_unknown_to_those_who_come_too_late(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, waits)
    handle = await client.start(waits, id="w", signal=(stop, "now"))
    assert await handle.result(PATIENCE) == "done"
    await handle.delete()
    with pytest.raises(UnknownRun, match="no run"):
        await handle.signal(stop, "again")
    with pytest.raises(UnknownRun, match="no run"):
        await handle.update(change, timeout=PATIENCE)


def test_blocking_code_is_told_the_same(sqlite_url: str) -> None:
    with sync.connect(sqlite_url) as client, client.worker(workflows=[waits], grace=1.0):
        handle = client.start(waits, id="w")
        handle.terminate("the shop is closed")
        with pytest.raises(RunClosed, match=r"run 'w' is terminated \(the shop is closed\)"):
            handle.signal(stop, "now")
