"""Messages of the bus in the environment: they reach jobs, runs and doubles in virtual time."""

from typing import Any

import pytest

from batuta import App, Retry, Signal, activity, job, workflow
from batuta.bus import Message, publish, subscribe
from batuta.testing import Environment, crash_sweep, double, in_virtual_time, run

paid = Signal("paid", Message[int])


@job(retry=Retry(attempts=3, first=3600.0, jitter=0))
async def book(message: Message[int]) -> None:
    raise AssertionError("the test has a double")


@activity
async def tell(number: int) -> str:
    return await publish("orders", number, key="order 7")


@workflow
async def sells(number: int) -> None:
    await tell(number)


@workflow
async def waits() -> list[int]:
    return [(await paid.wait()).payload for _ in range(2)]


SUBSCRIPTIONS = [subscribe("orders", book), subscribe("orders", paid)]


def payloads(of: Any) -> list[int]:
    return [call.args[0].payload for call in of.calls]


@pytest.mark.parametrize(("store", "days"), [("memory", 40), ("sqlite", 2), ("postgres", 2)])
@in_virtual_time
async def test_messages_reach_doubles_and_runs_and_days_pass(store: Any, days: int) -> None:
    """On one store longer than messages are kept. An idle worker looks for messages each minute."""
    fake = double(book, returns=None)
    app = App(workflows=[sells, waits], activities=[tell], jobs=[book], subscriptions=SUBSCRIPTIONS)
    async with Environment.of(app, fake, store=store) as env:
        waiting = await env.start(waits, id="order 7")
        await env.run(sells, 1)
        await env.settle()
        assert payloads(fake) == [1]
        await env.advance(days * 86_400.0)
        await env.crash()
        await env.client.publish("orders", 2, key="order 7")
        assert await waiting.result() == [1, 2]
        await env.settle()
        await env.deploy()
        await env.client.publish("orders", 3, key="order 7")
        await env.settle()
        assert payloads(fake) == [1, 2, 3]


@in_virtual_time
async def test_a_delivery_that_fails_holds_up_its_key_until_it_is_tried_again() -> None:
    fake = double(book, results=[ConnectionError("once"), None, None])
    async with Environment(jobs=[fake], subscriptions=[subscribe("orders", book)]) as env:
        for number in range(2):
            await env.client.publish("orders", number, key="k")
        await env.settle()
        assert payloads(fake) == [0]
        await env.advance(3601)
        assert payloads(fake) == [0, 0, 1]


def test_a_seed_delivers_in_an_order_of_its_own_each_time() -> None:
    async def delivered(seed: int) -> list[int]:
        fake = double(book, returns=None)
        async with Environment(jobs=[fake], subscriptions=[subscribe("orders", book)], seed=seed) as env:
            for number in range(6):
                await env.client.publish("orders", number)
            await env.advance(3600)
        return payloads(fake)

    orders = [run(delivered(seed)) for seed in (1, 2, 1)]
    assert orders[0] == orders[2] != orders[1]
    assert sorted(orders[0]) == list(range(6))


@pytest.mark.parametrize("store", ["memory", "sqlite"])
def test_wherever_the_worker_dies_a_message_is_delivered(store: Any) -> None:
    fake = double(book, returns=None)

    async def script(env: Environment, handle: Any) -> None:
        await handle.result()
        await env.settle()
        assert set(payloads(fake)) == {1}

    crash_sweep(
        sells, 1, activities=[tell, fake], subscriptions=[subscribe("orders", book)], script=script, store=store
    )
