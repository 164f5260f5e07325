"""Virtual time: waiting costs nothing, order is kept, threads and sockets are waited for."""

import asyncio
import threading
import time
from unittest.mock import AsyncMock, Mock

import pytest

from batuta import activity, workflow
from batuta.testing import Environment, Stuck, VirtualClock, VirtualLoop, double, in_virtual_time, run


def test_a_year_passes_in_no_time_and_in_order() -> None:
    async def main() -> list[str]:
        order: list[str] = []

        async def nap(name: str, days: float) -> None:
            await asyncio.sleep(days * 86_400)
            order.append(name)

        await asyncio.gather(nap("c", 365), nap("a", 1), nap("b", 30.5))
        assert asyncio.get_running_loop().time() == pytest.approx(365 * 86_400)
        return order

    assert run(main()) == ["a", "b", "c"]


def test_threads_hold_the_clock_while_they_work() -> None:
    async def main() -> float:
        release = threading.Event()
        loop = asyncio.get_running_loop()
        loop.call_soon(release.set)
        async with asyncio.timeout(1):
            await asyncio.to_thread(release.wait, 10)
        return loop.time()

    assert run(main()) == 0.0


def test_a_socket_is_waited_for_in_real_time() -> None:
    async def main() -> str:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(await reader.readline())
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        async with server, asyncio.timeout(20):
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
            writer.write(b"hello\n")
            line = await reader.readline()
            writer.close()
            await writer.wait_closed()
        return line.decode().strip()

    assert run(main()) == "hello"


def test_a_test_in_which_nothing_can_happen_is_told_so() -> None:
    async def main() -> None:
        await asyncio.Event().wait()

    with pytest.raises(Stuck, match="waits for something that cannot come"):
        run(main())


def test_settled_returns_when_only_time_could_go_on() -> None:
    async def main() -> list[str]:
        seen: list[str] = []

        async def works() -> None:
            for _ in range(10):
                await asyncio.sleep(0)
            seen.append("now")
            await asyncio.sleep(1)
            seen.append("later")

        task = asyncio.create_task(works())
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        await loop.settled()
        before = list(seen)
        await task
        return before

    assert run(main()) == ["now"]


def test_an_async_test_becomes_a_plain_one() -> None:
    @in_virtual_time
    async def sleeps(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    assert sleeps(3600) == 3600
    assert sleeps.__name__ == "sleeps"


def test_the_clock_rounds_up_so_that_nothing_is_early() -> None:
    clock = VirtualClock(now=0)
    clock.pass_by(0.0000001)
    assert clock.now() == 1
    clock.pass_by(1)
    assert clock.now() == 1_000_001


# -- the environment


@activity
async def charge(card: str, amount: int) -> str:
    raise AssertionError("the real one is not to be called")


@activity
def ship(sku: str) -> str:
    raise AssertionError("the real one is not to be called")


@workflow
async def buys(card: str) -> list[str]:
    receipt = await charge(card, 5)
    await asyncio.sleep(86_400)
    return [receipt, await ship("tea")]


def test_an_environment_runs_a_workflow_with_doubles_in_virtual_time() -> None:
    charged = AsyncMock(return_value="r-1")
    shipped = Mock(return_value="s-1")

    async def main() -> list[str]:
        async with Environment(workflows=[buys], activities=[double(charge, charged), double(ship, shipped)]) as env:
            before = env.now
            handle = await env.start(buys, "visa")
            result = await handle.result()
            assert (env.now - before).days == 1
            return result

    begun = time.monotonic()
    assert run(main()) == ["r-1", "s-1"]
    assert time.monotonic() - begun < 30
    charged.assert_awaited_once_with("visa", 5)
    shipped.assert_called_once_with("tea")


def test_an_environment_survives_a_crash_of_its_worker() -> None:
    calls: list[str] = []

    async def main() -> list[str]:
        def note(name: str) -> str:
            calls.append(name)
            return name

        doubles = [double(charge, lambda card, amount: note(card)), double(ship, note)]
        async with Environment(workflows=[buys], activities=doubles) as env:
            handle = await env.start(buys, "visa")
            await env.advance(3600)
            await env.crash()
            return await handle.result()

    assert run(main()) == ["visa", "tea"]
    assert calls == ["visa", "tea"]


def test_an_environment_works_on_an_ordinary_loop_too() -> None:
    @workflow
    async def naps() -> str:
        await asyncio.sleep(0.01)
        return "slept"

    async def main() -> str:
        async with Environment(workflows=[naps]) as env:
            with pytest.raises(RuntimeError, match="virtual time"):
                await env.settle()
            await env.advance(0.001)
            return await env.run(naps)

    assert asyncio.run(main()) == "slept"


def test_a_double_keeps_name_types_and_options() -> None:
    def free(card: str, amount: int) -> str:
        return "x"

    strict = charge.with_options(timeout=5)
    stand_in = double(strict, free)
    assert (stand_in.name, stand_in.options) == ("charge", strict.options)
    assert stand_in.codec is strict.codec
