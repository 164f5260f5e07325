"""Retries, resets and forks are the same on every store, and under kills."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from batuta import (
    InvalidFork,
    NotParked,
    Retry,
    RunFailed,
    RunMoved,
    RunState,
    Signal,
    activity,
    activity_info,
    connect,
    failpoints,
    job,
    run_child,
    workflow,
)
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.arena import PATIENCE, Arena, until

executed: list[str] = []
keys: dict[str, set[str]] = {}
broken: set[str] = set()
go = Signal("go", str)


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()
    keys.clear()
    broken.clear()


@activity(retry=Retry(attempts=1))
async def act(name: str) -> str:
    executed.append(name)
    keys.setdefault(name, set()).add(activity_info().key)
    if name in broken:
        raise ConnectionError(f"{name} is down")
    return name


@workflow
async def child(name: str) -> str:
    await act(f"{name} one")
    return await act(f"{name} two")


@workflow
async def order() -> list[str]:
    first = await act("reserve")
    far = act.with_options(queue="far")
    both = await asyncio.gather(act("charge"), far("label"), run_child(child, "kid"), return_exceptions=True)
    for one in both:
        if isinstance(one, BaseException):
            raise one
    said = await go.wait()
    return [first, *map(str, both), said, await act("ship")]


@job(retry=Retry(attempts=1))
async def mail(to: str) -> str:
    return await act.fn(to)


CODE = (order, child, act, mail)


async def is_sound(arena: Arena, client: Any) -> None:
    report = await verify(arena.store(client), [order, child])
    assert not report.violations, report


@pytest.mark.parametrize("bad", ["charge", "label", "kid one", "kid two", "ship"])
async def test_a_retry_repeats_the_failed_step_alone(arena: Arena, bad: str) -> None:
    client = await arena.client()
    await arena.worker(client, *CODE, queues=["default", "far"])
    broken.add(bad)
    handle = await client.start(order, id="order-1")
    await handle.signal(go, "now")
    with pytest.raises(RunFailed):
        await handle.result(PATIENCE)
    other = await client.get("order-1", order)
    broken.clear()
    await handle.retry("mended")
    assert await handle.result(PATIENCE) == ["reserve", "charge", "label", "kid two", "now", "ship"]
    assert await other.result(PATIENCE) == await handle.result(PATIENCE)
    expected = Counter(["reserve", "charge", "label", "kid one", "kid two", "ship", bad])
    assert Counter(executed) == expected
    assert all(len(used) == 1 for used in keys.values())
    await is_sound(arena, client)


async def test_of_many_who_try_it_again_one_does(arena: Arena) -> None:
    client, others = await arena.client(), [await arena.client() for _ in range(4)]
    await arena.worker(client, *CODE, queues=["default", "far"])
    broken.add("reserve")
    handle = await client.start(order, id="order-1")
    with pytest.raises(RunFailed):
        await handle.result(PATIENCE)
    broken.clear()
    handles = [await one.get("order-1") for one in others]
    outcomes = await asyncio.gather(*(one.retry() for one in handles), return_exceptions=True)
    assert Counter(type(one) for one in outcomes)[type(None)] == 1
    assert all(isinstance(one, RunMoved | NotParked) for one in outcomes if one is not None)
    await (await client.get("order-1")).signal(go, "now")
    await handle.result(PATIENCE)
    assert Counter(executed)["reserve"] == 2
    await is_sound(arena, client)


async def test_a_busy_run_is_reset_while_it_works(arena: Arena) -> None:
    @workflow
    async def counts(to: int) -> int:
        for number in range(to):
            await act(str(number))
        return to

    client = await arena.client()
    await arena.worker(client, counts, act)
    handle = await client.start(counts, 200, id="c")
    for _ in range(3):
        await until(lambda: _has(handle, 5))
        if (await handle.describe()).state is RunState.COMPLETED:
            break
        await handle.reset(3)
    assert await handle.result(PATIENCE) == 200
    assert Counter(executed)["0"] == 1
    assert all(len(used) == 1 for used in keys.values())
    report = await verify(arena.store(client), [counts])
    assert not report.violations, report


async def _has(handle: Any, entries: int) -> bool:
    return (await handle.describe()).entries >= entries


async def test_a_fork_of_an_open_run_goes_its_own_way(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *CODE, queues=["default", "far"])
    handle = await client.start(order, id="order-1")
    await until(lambda: _has(handle, 5))
    await until_state_any(handle)
    copy = await handle.fork("order-2", output={2: "charged by hand"})
    await handle.signal(go, "one")
    await copy.signal(go, "two")
    assert (await handle.result(PATIENCE))[1:5] == ["charge", "label", "kid two", "one"]
    assert (await copy.result(PATIENCE))[1] == "charged by hand"
    assert (await copy.result(PATIENCE))[4] == "two"
    await is_sound(arena, client)


async def until_state_any(handle: Any) -> None:
    """Until its child is done, which would stand in the way of a fork."""

    async def answered() -> bool:
        return any(line.kind == "child_done" for line in await handle.journal())

    await until(answered)


async def test_a_child_that_is_open_is_named(arena: Arena) -> None:
    @workflow
    async def waits() -> str:
        return await go.wait()

    @workflow
    async def parent() -> str:
        return await run_child(waits, id="kid")

    client = await arena.client()
    await arena.worker(client, waits, parent)
    handle = await client.start(parent, id="p")
    await until(lambda: _is_there(client, "kid"))
    with pytest.raises(InvalidFork, match="kid"):
        await handle.reset(0)
    await (await client.get("kid")).signal(go, "hello")
    assert await handle.result(PATIENCE) == "hello"


async def _is_there(client: Any, id: str) -> bool:
    return await client.count(id_prefix=id) > 0


async def test_a_job_is_tried_again(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *CODE)
    broken.add("ann")
    handle = await client.enqueue(mail, "ann", id="m")
    with pytest.raises(RunFailed):
        await handle.result(PATIENCE)
    broken.clear()
    await handle.retry()
    assert await handle.result(PATIENCE) == "ann"
    assert len(keys["ann"]) == 1
    await is_sound(arena, client)


async def test_the_audit_log_says_who_tried_it_again(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *CODE, queues=["default", "far"])
    broken.add("reserve")
    handle = await client.start(order, id="order-1")
    with pytest.raises(RunFailed):
        await handle.result(PATIENCE)
    source = handle.run_id
    await handle.retry("mended")
    [row] = await arena.store(client).audit()
    assert (row.verb, row.target, row.run_id, row.reason) == ("retry", "order-1", str(source), "mended")
    assert str(handle.run_id) in row.after


# -- kills

RETRIES = """
import asyncio, sys
from batuta import connect

async def main(url):
    async with connect(url) as client:
        await (await client.get("order-1")).retry("mended")

asyncio.run(main(sys.argv[1]))
"""


@pytest.mark.parametrize(
    ("kind", "site"),
    [  # inside: on PostgreSQL the transaction is one statement
        ("sqlite", "fork.before"),
        ("sqlite", "fork.inside"),
        ("sqlite", "fork.after"),
        ("postgres", "fork.before"),
        ("postgres", "fork.after"),
    ],
)
@pytest.mark.usefixtures("real_time")
async def test_a_fork_whose_worker_is_killed_exists_once_or_not_at_all(
    request: pytest.FixtureRequest, kind: str, site: str, tmp_path: Path
) -> None:
    url = request.getfixturevalue(f"{kind}_url")
    broken.add("kid two")
    async with connect(url) as client:
        async with client.worker(workflows=[order, child], activities=[act], queues=["default", "far"]):
            handle = await client.start(order, id="order-1")
            with pytest.raises(RunFailed):
                await handle.result(PATIENCE)
        killed = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", RETRIES, url],
            env=os.environ | {"BATUTA_FAILPOINT": f"{site}:1:kill"},
            cwd=tmp_path,
            check=False,
        )
        assert killed.returncode == -signal.SIGKILL
        runs = (await client.list(id_prefix="order-1", limit=10)).runs
        made = [run for run in runs if run.id == "order-1" and run.forked_from is not None]
        assert len(made) == (1 if site == "fork.after" else 0)
        again = await client.get("order-1", order)
        if not made:
            await again.retry()
        broken.clear()
        await again.signal(go, "now")
        async with client.worker(workflows=[order, child], activities=[act], queues=["default", "far"]):
            assert await again.result(PATIENCE) == ["reserve", "charge", "label", "kid two", "now", "ship"]
        counted = Counter(executed)
        assert (counted["reserve"], counted["kid one"], counted["kid two"]) == (1, 1, 2)
        report = await verify(client._backend._store, [order, child])  # type: ignore[attr-defined]  # the native one
        assert not report.violations, report


class Killed(BaseException):
    """What a dying worker's code sees."""


@pytest.mark.parametrize("bad", ["charge", "kid two"])
async def test_a_forked_run_survives_a_death_at_every_point(bad: str) -> None:
    at = 1
    while await _survives(bad, at):
        at += 1
    assert at > 20


async def _survives(bad: str, at: int) -> bool:
    """Kill the worker at one passage of a failpoint after the retry. False when there are not so many."""
    executed.clear()
    keys.clear()
    broken.add(bad)
    passed, dying = 0, False
    async with Environment(workflows=[order, child], activities=[act], queues=["default", "far"]) as env:
        handle = await env.start(order, id="order-1")
        await handle.signal(go, "now")
        with pytest.raises(RunFailed):
            await handle.result()
        await env.settle()
        broken.clear()
        await handle.retry()
        recovering: list[asyncio.Task[None]] = []

        def pass_by(name: str) -> None:
            nonlocal passed, dying
            session = env.worker.session
            if session is None or dying or name.startswith(("stop", "claim.before", "lease", "recover", "fork")):
                return
            passed += 1
            if passed == at:
                dying = True
                session.abandon()
                recovering.append(asyncio.get_running_loop().create_task(env.crash()))
                raise Killed(name)

        failpoints.observe(pass_by)
        try:
            assert await handle.result() == ["reserve", "charge", "label", "kid two", "now", "ship"]
        finally:
            failpoints.arm()
        await asyncio.gather(*recovering)
        report = await verify(env.store, [order, child])
        assert not report.violations, report
        done = Counter(executed)
        assert done["reserve"] == 1
        assert done["kid one"] == 1 or bad != "kid two"
        assert all(len(used) == 1 for used in keys.values())
    return dying
