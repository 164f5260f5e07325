"""What cannot be replayed parks the run with a reason, even if the code swallows the error; the rest goes on."""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batuta import RunState, activity, workflow
from tests.engine.kit import parked, world


@activity
async def echo(text: str) -> str:
    return text


@workflow
async def healthy(text: str) -> str:
    await asyncio.sleep(5)
    return await echo(text)


async def to_thread() -> None:
    await asyncio.to_thread(len, "x")


async def run_in_executor() -> None:
    await asyncio.get_running_loop().run_in_executor(None, len, "x")


async def getaddrinfo() -> None:
    await asyncio.get_running_loop().getaddrinfo("localhost", 80)


async def open_connection() -> None:
    await asyncio.open_connection("127.0.0.1", 9)


async def start_server() -> None:
    await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", 0)


async def sock_recv() -> None:
    with socket.socket() as one:
        await asyncio.get_running_loop().sock_recv(one, 1)


async def add_reader() -> None:
    asyncio.get_running_loop().add_reader(0, print)


async def subprocess() -> None:
    await asyncio.create_subprocess_exec(sys.executable, "-c", "")


async def shell() -> None:
    await asyncio.create_subprocess_shell("true")


async def add_signal_handler() -> None:
    asyncio.get_running_loop().add_signal_handler(10, print)


async def call_soon_threadsafe() -> None:
    asyncio.get_running_loop().call_soon_threadsafe(print)


async def run_until_complete() -> None:
    loop = asyncio.get_running_loop()
    loop.run_until_complete(loop.create_future())


FORBIDDEN: dict[str, Callable[[], Awaitable[None]]] = {
    "run_in_executor": to_thread,
    "loop.run_in_executor()": run_in_executor,
    "loop.getaddrinfo()": getaddrinfo,
    "loop.create_connection()": open_connection,
    "loop.create_server()": start_server,
    "loop.sock_recv()": sock_recv,
    "loop.add_reader()": add_reader,
    "loop.subprocess_exec()": subprocess,
    "loop.subprocess_shell()": shell,
    "loop.add_signal_handler()": add_signal_handler,
    "another thread": call_soon_threadsafe,
    "loop.run_until_complete()": run_until_complete,
}


@workflow
async def reaches_out(what: str) -> None:
    await echo("before")
    await FORBIDDEN[what]()


@workflow
async def swallows(what: str) -> str:
    await echo("before")
    try:
        await FORBIDDEN[what]()
    except BaseException:  # noqa: BLE001 - even so
        pass
    return await echo("as if nothing had happened")


@pytest.mark.parametrize("what", FORBIDDEN)
@pytest.mark.parametrize("code", [reaches_out, swallows], ids=lambda w: w.name)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
async def test_the_world_outside_parks_the_run(code: Any, what: str) -> None:
    async with world(healthy, code, echo) as env:
        other = await env.start(healthy, "fine")
        handle = await env.start(code, what)
        reason = await parked(env, handle)
        assert what in reason
        assert "an activity" in reason or "the worker runs the loop" in reason
        assert await other.result() == "fine"


# -- futures of another loop

outside: dict[str, Any] = {}


@workflow
async def awaits_a_stranger() -> None:
    await echo("before")
    await outside["future"]


@workflow
async def swallows_the_stranger() -> str:
    await echo("before")
    try:
        await outside["future"]
    except BaseException:  # noqa: BLE001 - even so
        pass
    return "as if nothing had happened"


@workflow
async def awaits_a_stranger_in_a_task() -> str:
    async def wait() -> None:
        await outside["future"]

    await echo("before")
    task = asyncio.create_task(wait())
    await asyncio.sleep(1)
    return str(task.done())


@pytest.mark.parametrize(
    "code", [awaits_a_stranger, swallows_the_stranger, awaits_a_stranger_in_a_task], ids=lambda w: w.name
)
async def test_a_future_of_another_loop_parks_the_run(code: Any) -> None:
    async with world(code, echo) as env:
        outside["future"] = asyncio.get_running_loop().create_future()
        handle = await env.start(code)
        assert "a future of another event loop" in await parked(env, handle)


CLIENTS: dict[str, Callable[[], Awaitable[Any]]] = {
    "result": lambda: outside["handle"].result(60),
    "update": lambda: outside["handle"].update("hurry"),
    "signal": lambda: outside["handle"].signal("hurry"),
    "start": lambda: outside["client"].start(healthy, "again"),
    "enqueue": lambda: outside["client"].enqueue("mail"),
    "get": lambda: outside["client"].get("fine"),
    "list": lambda: outside["client"].list(limit=5),
    "count": lambda: outside["client"].count(kind="any"),
}


@workflow
async def uses_a_client(how: str) -> str:
    await echo("before")
    return str(await CLIENTS[how]())


@pytest.mark.parametrize("how", CLIENTS)
async def test_using_a_client_parks_the_run_and_does_nothing(how: str) -> None:
    async with world(healthy, uses_a_client, echo) as env:
        outside["client"], outside["handle"] = env.client, await env.start(healthy, "fine", id="fine")
        handle = await env.start(uses_a_client, how)
        assert "start a child, send a signal with `send`, or use the client in" in await parked(env, handle)
        assert await outside["handle"].result() == "fine"
        assert await env.client.count(kind="any") == 2


@activity(once=True)
async def sets_the_event() -> str:
    outside["event"].set()
    return "set"


@workflow
async def is_woken_from_outside() -> str:
    outside["event"] = event = asyncio.Event()
    waiting = asyncio.create_task(event.wait())
    await asyncio.sleep(0)
    try:
        await sets_the_event()
    except Exception:  # noqa: BLE001 - even so
        pass
    await waiting
    return "woken"


async def test_a_callback_from_outside_the_turn_parks_the_run() -> None:
    async with world(is_woken_from_outside, sets_the_event, always_replay=False) as env:
        handle = await env.start(is_woken_from_outside)
        assert "call_soon from outside" in await parked(env, handle)


# -- code that does not wait


@workflow
async def spins() -> None:
    await echo("before")
    while True:
        await asyncio.sleep(0)


async def test_code_that_spins_is_parked() -> None:
    async with world(spins, healthy, echo) as env:
        other = await env.start(healthy, "fine")
        handle = await env.start(spins)
        reason = await parked(env, handle)
        assert "100,000 callbacks" in reason
        assert await other.result() == "fine"


@workflow
async def waits_for_nothing() -> None:
    await echo("before")
    await deep_inside()


async def deep_inside() -> None:
    await asyncio.Event().wait()


async def test_code_that_waits_for_nothing_is_parked_with_its_stack() -> None:
    async with world(waits_for_nothing, echo) as env:
        handle = await env.start(waits_for_nothing)
        reason = await parked(env, handle)
        assert "waits" in reason
        assert "in waits_for_nothing" in reason
        assert "in deep_inside" in reason
        assert "test_forbidden.py" in reason


async def test_code_that_is_broken_in_its_first_turn_is_parked_too() -> None:
    @workflow
    async def at_once() -> None:
        await asyncio.Event().wait()

    async with world(at_once) as env:
        handle = await env.start(at_once)
        assert "waits" in await parked(env, handle)


async def test_a_parked_run_keeps_its_journal_and_can_be_ended() -> None:
    async with world(waits_for_nothing, echo) as env:
        handle = await env.start(waits_for_nothing)
        await parked(env, handle)
        assert [str(line.kind) for line in await handle.journal()] == ["started"]
        await handle.terminate("not needed")
        assert (await handle.describe()).state is RunState.TERMINATED


async def test_parking_is_logged_with_the_run_and_the_reason(caplog: pytest.LogCaptureFixture) -> None:
    async with world(waits_for_nothing, echo) as env:
        handle = await env.start(waits_for_nothing, id="order 7")
        await parked(env, handle)
        assert any("order 7" in line and "parked as needs_code" in line for line in caplog.messages)
