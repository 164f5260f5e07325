"""When something is slow or away: accept and go on, read elsewhere, give an older value; deadlines that travel."""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Mapping
from typing import Any

import pytest

from batuta import InvalidInput, RunFailed, activity, connect, continue_as_new, workflow
from batuta.cache import Entity, open_cache
from batuta.resilience.deadlines import Deadlines, deadline, deadline_headers, read_deadline, timeout_left
from batuta.resilience.degradation import ReadFrom, StaleWhileError, accept_or_run, read_from
from batuta.testing import Environment, in_virtual_time


class Time:
    """A clock that is moved."""

    def __init__(self) -> None:
        self.at = 0.0

    def now(self) -> int:
        return int(self.at * 1e6)

    def monotonic(self) -> float:
        return self.at


# covers D-09


async def test_a_quick_run_gives_its_result_and_a_slow_one_a_place_to_ask() -> None:
    go = asyncio.Event()

    @activity
    async def partner(slow: bool) -> str:
        if slow:
            await go.wait()
        return "made"

    @workflow
    async def entry(slow: bool, fails: bool = False) -> str:
        if fails:
            raise ValueError("no such key")
        return await partner(slow)

    async with connect("memory://") as client, client.worker(workflows=[entry], activities=[partner]):
        quick = await accept_or_run(client, entry, False, wait=30, id="quick")
        assert (quick.status, quick.document, quick.headers) == (200, "made", {})
        slow = await accept_or_run(client, entry, True, wait=0.01, id="slow", status_url="/keys/{id}")
        assert (slow.status, slow.document) == (202, {"id": "slow", "status": "PENDING", "status_url": "/keys/slow"})
        assert slow.headers == {"Location": "/keys/slow", "Retry-After": "1"}
        with deadline(0.01):
            assert not (await accept_or_run(client, entry, True, wait=30, id="slow")).done
        with pytest.raises(RunFailed, match="no such key"):
            await accept_or_run(client, entry, False, True, wait=30)
        odd = await accept_or_run(client, entry, True, wait=0, id="a b/c?é")
        assert odd.headers["Location"] == "/api/v1/runs/a%20b%2Fc%3F%C3%A9"
        go.set()
        again = await accept_or_run(client, entry, True, wait=30, id="slow", status_url=lambda id: f"/k/{id}")
        assert (again.done, again.result, again.status_url) == (True, "made", "/k/slow")
        for bad in (-1, "soon", None):
            with pytest.raises(InvalidInput, match="wait="):
                await accept_or_run(client, entry, False, wait=bad)  # type: ignore[arg-type]


# covers D-10


async def test_reads_go_to_the_replica_while_the_primary_is_away(caplog: pytest.LogCaptureFixture) -> None:
    asked: list[str] = []
    away = True

    async def primary(key: str) -> str:
        asked.append("primary")
        if away:
            raise ConnectionError("refused")
        if key == "bad":
            raise KeyError(key)
        return f"new {key}"

    async def replica(key: str) -> str:
        asked.append("replica")
        return f"old {key}"

    async def check() -> None:
        asked.append("check")
        if away:
            await asyncio.sleep(60)

    clock = Time()
    read: ReadFrom[[str], str] = ReadFrom(
        primary, replica, timeout=0.02, recheck=5, check=check, errors=(OSError, TimeoutError), clock=clock
    )
    with caplog.at_level(logging.WARNING, "batuta.degradation"):
        found = await read("a")
        assert (found.value, found.source, found.headers) == ("old a", "replica", {"X-Data-Source": "replica"})
        assert [read.degraded] == [True]
        await read("b")
        assert asked == ["primary", "replica", "replica"]
        clock.at = 6
        await read("c")
        assert asked[3:] == ["check", "replica"]
        away, clock.at = False, 12
        back = await read("d")
        assert (back.value, back.source, back.headers) == ("new d", "primary", {})
        assert asked[5:] == ["check", "primary"]
        assert [read.degraded] == [False]
    said = [record.getMessage() for record in caplog.records]
    assert [one.partition(":")[0] for one in said] == ["degraded", "the primary is back"]
    with pytest.raises(KeyError):
        await read("bad")
    with pytest.raises(InvalidInput):
        read_from(primary, replica, timeout=0)
    with pytest.raises(InvalidInput):
        read_from(primary, replica, recheck=-1)
    with pytest.raises(InvalidInput, match="errors="):
        read_from(primary, replica, errors="OSError")  # type: ignore[arg-type]
    assert (await read_from(primary, replica)("x")).value == "new x"


@pytest.mark.parametrize("errors", [KeyError, [KeyError], {KeyError, OSError}])
async def test_errors_that_say_that_a_source_is_away_are_one_class_or_several(errors: Any) -> None:
    failing = False

    async def load(key: str) -> str:
        if failing:
            raise KeyError(key)
        return key

    async def replica(key: str) -> str:
        return f"old {key}"

    kept = StaleWhileError(load, fresh=0, stale=60, errors=errors)
    await kept.get("a")
    failing = True
    assert (await kept.get("a")).source == "stale"
    assert (await read_from(load, replica, errors=errors)("a")).value == "old a"


async def test_what_was_read_is_given_when_reading_fails() -> None:
    clock, calls = Time(), 0
    failing: Exception | None = None

    async def load(key: str) -> int:
        nonlocal calls
        calls += 1
        await asyncio.sleep(0)
        if failing is not None:
            raise failing
        return calls

    kept = StaleWhileError(load, fresh=5, stale=60, most=2, clock=clock)
    assert {one.value for one in await asyncio.gather(*(kept.get("a") for _ in range(8)))} == {1}
    clock.at = 4
    assert (await kept.get("a")).value == 1
    failing, clock.at = TimeoutError("slow"), 20
    stale = await kept.get("a")
    assert (stale.value, stale.source, stale.headers) == (1, "stale", {"X-Data-Source": "stale", "Age": "20"})
    with pytest.raises(TimeoutError):
        await kept.get("never read")
    clock.at = 61
    with pytest.raises(TimeoutError):
        await kept.get("a")
    failing = KeyError("a bug is not hidden")
    clock.at = 6
    with pytest.raises(KeyError):
        await kept.get("a")
    failing = None
    for key in ("b", "c"):
        await kept.get(key)
    failing = OSError()
    with pytest.raises(OSError):
        await kept.get("a")
    times = {"fresh": 1, "stale": 1}
    for bad in ({"fresh": 9, "stale": 1}, times | {"most": 0}, {"fresh": -1, "stale": 1}, times | {"errors": [5]}):
        with pytest.raises(InvalidInput):
            StaleWhileError(load, **bad)


@pytest.mark.parametrize("kept", ["in memory", "in a cache"])
async def test_a_failed_load_whose_readers_have_left_is_no_error_of_the_loop(kept: str) -> None:
    began, go = asyncio.Event(), asyncio.Event()
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))

    async def load(*_: str) -> str:
        began.set()
        await go.wait()
        raise OSError("away")

    async with await open_cache("memory://") as cache:
        stale, entity = StaleWhileError(load, fresh=1, stale=1), Entity(cache, "a:b:{id}", str, lifetime=1)
        reader = asyncio.ensure_future(stale.get("a") if kept == "in memory" else entity.get_or_load(load, id="a"))
        await began.wait()
        reader.cancel()
        await asyncio.gather(reader, return_exceptions=True)
        go.set()
        while stale._loading or entity._loading:
            await asyncio.sleep(0)
        del reader
        gc.collect()
    assert not complaints


# -- deadlines


@in_virtual_time
async def test_workflows_and_activities_know_how_much_time_is_left() -> None:
    @activity(timeout=30)
    async def patient() -> float | None:
        await asyncio.sleep(10)
        return timeout_left()

    @activity
    def in_thread() -> float | None:
        return timeout_left()

    @workflow
    async def asks() -> list[float | None]:
        first = timeout_left()
        await asyncio.sleep(40)
        return [first, timeout_left(), await patient(), await in_thread()]

    async with Environment(workflows=[asks], activities=[patient, in_thread]) as env:
        handle = await env.start(asks, timeout=60)
        first, later, attempt, thread = await handle.result()
        assert first == 60
        assert later == pytest.approx(20, abs=0.1)
        assert attempt == pytest.approx(10, abs=0.1)  # the run ends before the attempt would
        assert thread == pytest.approx(10, abs=0.1)
        free = await (await env.start(asks)).result()
        assert free == [None, None, pytest.approx(20, abs=0.1), None]


@in_virtual_time
@pytest.mark.parametrize("timeout", [None, 50])
async def test_a_run_that_continues_knows_how_much_time_its_chain_has_left(timeout: float | None) -> None:
    @workflow
    async def asks(before: list[float]) -> list[float]:
        left = timeout_left()
        assert left is not None
        if len(before) < 2:
            await asyncio.sleep(15)
            continue_as_new([*before, left])
        return [*before, left]

    async with Environment(workflows=[asks]) as env:
        handle = await env.start(asks, [], timeout=timeout, execution_timeout=60)
        first, *later = await handle.result()
        assert first == (timeout or 60)
        assert later == pytest.approx([45, 30], abs=0.2)


def test_a_deadline_travels_in_headers() -> None:
    assert (timeout_left(), deadline_headers()) == (None, {})
    with deadline(90):
        with deadline(100):
            assert 89 < (timeout_left() or 0) <= 90
        assert 89 < float(deadline_headers()["X-Timeout-Left"]) <= 90
        assert read_deadline(deadline_headers(grpc=True)) == pytest.approx(90, abs=1)
    with deadline(10**8):
        assert deadline_headers(grpc=True)["grpc-timeout"].endswith("S")
    with deadline(0):
        assert timeout_left() == 0
    assert read_deadline({"x-timeout-left": "1.5", "grpc-timeout": "9S"}) == 1.5
    assert [read_deadline({"Grpc-Timeout": one}) for one in ("2H", "3M", "4S", "5m")] == [7200, 180, 4, 0.005]
    assert read_deadline({"grpc-timeout": "99999999H"}) == 10**8
    with deadline(read_deadline({"grpc-timeout": "99999999H"})):
        assert timeout_left() == pytest.approx(10**8, abs=60)
    for bad in (
        {"X-Timeout-Left": "soon"},
        {"X-Timeout-Left": "-1"},
        {"X-Timeout-Left": "nan"},
        {"grpc-timeout": "1x"},
    ):
        with pytest.raises(InvalidInput):
            read_deadline(bad)
    with pytest.raises(InvalidInput), deadline(-1):
        pass


async def test_a_request_is_handled_within_its_callers_deadline() -> None:
    seen: list[float | None] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(timeout_left())

    async def ask(headers: Mapping[str, str]) -> list[Any]:
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
        await Deadlines(app)({"type": "http", "headers": raw}, None, send)
        return sent

    assert await ask({"X-Timeout-Left": "5"}) == await ask({"grpc-timeout": "5S"}) == await ask({}) == []
    assert [one and round(one) for one in seen] == [5, 5, None]
    assert (await ask({"X-Timeout-Left": "0"}))[0]["status"] == 504
    assert (await ask({"X-Timeout-Left": "rubbish"}))[0]["status"] == 400
    assert len(seen) == 3
    await Deadlines(app)({"type": "websocket"}, None, None)
    assert seen[3] is None
