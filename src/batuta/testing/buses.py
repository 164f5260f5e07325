"""The law for buses: an implementation is right when it passes all of these.

A test module gives one fixture and inherits the class:

    @pytest.fixture
    async def client(): ...   # an opened client, with the bus, on a database and with topics of this test alone

    class TestMine(BusConformance): ...

The store's own bus and that on Apache Pulsar pass it.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import Struct

from batuta.authoring.definitions import activity, workflow
from batuta.authoring.jobs import Job, job
from batuta.authoring.retry import Retry
from batuta.authoring.workflow.messages import Signal
from batuta.bus import Message, Subscription, publish, subscribe
from batuta.client import Batuta
from batuta.clock import SECOND, SystemClock
from batuta.errors import InvalidInput, TooLarge, UnknownRun
from batuta.journal.records import LetterReason

PATIENCE = 60.0
_QUICK = Retry(attempts=3, first=0.01)


class Paid(Struct):
    """A payload."""

    amount: int


class Seen:
    """What a subscriber has got."""

    def __init__(self) -> None:
        self.messages: list[Message[Any]] = []

    def job(self, name: str) -> Job[..., Any]:
        async def note(message: Message[Any]) -> None:
            self.messages.append(message)

        return job(name=name, retry=_QUICK)(note)

    @property
    def payloads(self) -> list[Any]:
        return [one.payload for one in self.messages]

    async def have(self, count: int) -> None:
        await until(lambda: len(self.messages) >= count)


async def until(true: Callable[[], bool], patience: float = PATIENCE) -> None:
    """Wait for it, but not for ever."""
    end = time.monotonic() + patience
    while not true():
        assert time.monotonic() < end, "it has not come to that"
        await asyncio.sleep(0.01)


async def caught_up(client: Batuta, *names: str) -> None:
    """Wait until these subscriptions have got everything."""
    end = time.monotonic() + PATIENCE
    while any(one.waiting or one.running for one in (await client.bus.status()).subscriptions if one.name in names):
        assert time.monotonic() < end, "deliveries are left"
        await asyncio.sleep(0.01)


async def result_of(client: Batuta, id: str) -> int:
    """Wait until a message has begun this run, and for its result. A broker may take its time to deliver."""
    end = time.monotonic() + PATIENCE
    while True:
        try:
            return await (await client.get(id, started)).result(PATIENCE)
        except UnknownRun:
            assert time.monotonic() < end, f"no message has begun {id}"
            await asyncio.sleep(0.01)


@activity(name="bus-tell", retry=_QUICK)
async def tell(topic: str, numbers: list[int]) -> list[str]:
    """Publishes, and fails the first time."""
    ids = [await publish(topic, number, key="k") for number in numbers]
    _tells[ids[0]] += 1
    if _tells[ids[0]] == 1:
        raise ConnectionError("after publishing")
    return ids


@workflow(name="bus-teller")
async def teller(topic: str, numbers: list[int]) -> list[str]:
    return await tell(topic, numbers)


@workflow(name="bus-started")
async def started(message: Message[Paid]) -> int:
    return message.payload.amount


paid = Signal("paid", Message[Paid])


@workflow(name="bus-waiter")
async def waiter() -> list[int]:
    first, second = await paid.wait(), await paid.wait()
    return [first.payload.amount, second.payload.amount]


_tells: Counter[str] = Counter()


class BusConformance:
    """Nothing that was published is lost, nothing of one key overtakes, and a message keeps its id."""

    async def test_every_subscription_gets_each_message_as_it_was_published(self, client: Batuta) -> None:
        one, two, other = Seen(), Seen(), Seen()
        subscriptions = [
            subscribe("orders", one.job("one")),
            subscribe("orders", two.job("two")),
            subscribe("else", other.job("other")),
        ]
        async with client.worker(subscriptions=subscriptions):
            id = await client.publish("orders", {"n": [1, "\u00e9"]}, key="k", type="order.paid")
            await one.have(1)
            await two.have(1)
            await caught_up(client, "one", "two", "other")
        [message] = one.messages
        assert (message.id, message.topic, message.key, message.type) == (id, "orders", "k", "order.paid")
        assert (message.payload, message.source) == ({"n": [1, "\u00e9"]}, f"/batuta/{client.namespace.name}")
        assert abs(message.time - SystemClock().now()) < 3600 * SECOND
        assert (two.messages, other.messages) == ([message], [])

    async def test_messages_of_one_key_come_in_order_also_when_attempts_fail(self, client: Batuta) -> None:
        seen: dict[str, list[int]] = defaultdict(list)
        tried: Counter[str] = Counter()
        working: Counter[str] = Counter()

        @job(name="ledger", retry=_QUICK)
        async def ledger(message: Message[int]) -> None:
            working[message.key] += 1
            assert working[message.key] == 1
            await asyncio.sleep(0)
            working[message.key] -= 1
            tried[message.id] += 1
            if message.payload % 4 == 0 and tried[message.id] < 2:
                raise ConnectionError("again")
            seen[message.key].append(message.payload)

        async with client.worker(subscriptions=[subscribe("orders", ledger)]):
            for number in range(12):
                for key in "abc":
                    await client.publish("orders", number, key=key)
            await until(lambda: sum(map(len, seen.values())) >= 36)
        assert seen == {key: list(range(12)) for key in "abc"}

    async def test_a_second_message_of_the_same_id_is_not_delivered(self, client: Batuta) -> None:
        seen = Seen()
        async with client.worker(subscriptions=[subscribe("orders", seen.job("once"))]):
            for payload in ("first", "second"):
                assert await client.publish("orders", payload, id="17") == "17"
            await client.publish("orders", "last")
            await until(lambda: "last" in seen.payloads and len(seen.payloads) >= 2)
            await caught_up(client, "once")
        assert sorted(seen.payloads) == ["first", "last"]

    async def test_an_activity_that_is_tried_again_publishes_the_same_messages(self, client: Batuta) -> None:
        seen = Seen()
        worker = client.worker(workflows=[teller], activities=[tell], subscriptions=[subscribe("t", seen.job("s"))])
        async with worker:
            handle = await client.start(teller, "t", [1, 2, 3])
            ids = await handle.result()
            await seen.have(3)
            await caught_up(client, "s")
        assert _tells[ids[0]] == 2
        assert [(one.id, one.payload) for one in seen.messages] == list(zip(ids, (1, 2, 3), strict=True))
        assert seen.messages[0].source.endswith("/bus-tell")

    async def test_a_message_starts_a_run_or_is_sent_to_one(self, client: Batuta) -> None:
        subscriptions = [subscribe("paid", started, name="starts"), subscribe("paid", paid, name="sends")]
        async with client.worker(workflows=[started, waiter], subscriptions=subscriptions):
            waiting = await client.start(waiter, id="order 4")
            first = await client.publish("paid", Paid(5), key="order 4")
            await client.publish("paid", Paid(7), key="order 4")
            assert await waiting.result(PATIENCE) == [5, 7]
            assert await result_of(client, f"starts:{first}") == 5

    async def test_subscriptions_whose_names_and_ids_read_alike_begin_runs_of_their_own(self, client: Batuta) -> None:
        subscriptions = [subscribe("paid", started, name="mail"), subscribe("bulk paid", started, name="mail:bulk")]
        async with client.worker(workflows=[started], subscriptions=subscriptions):
            await client.publish("paid", Paid(5), id="bulk:42")
            await client.publish("bulk paid", Paid(7), id="42")
            assert await result_of(client, "mail:bulk:42") == 5
            assert await result_of(client, "mail%3Abulk:42") == 7

    async def test_what_a_subscriber_cannot_read_is_a_dead_letter_and_the_next_comes(self, client: Batuta) -> None:
        seen: list[int] = []

        @job(name="strict")
        async def strict(message: Message[Paid]) -> None:
            seen.append(message.payload.amount)

        async with client.worker(subscriptions=[subscribe("paid", strict)]):
            bad = await client.publish("paid", {"amount": "much"}, key="k")
            await client.publish("paid", Paid(5), key="k")
            await until(lambda: seen == [5])
        [letter] = (await client.dead_letters.list()).letters
        assert (letter.reason, letter.name, letter.id) == (LetterReason.UNDELIVERED, "bus:strict", f"bus:strict:{bad}")
        assert "Expected `int`, got `str`" in letter.message

    async def test_a_message_that_fails_every_time_is_a_dead_letter_and_can_be_delivered_again(
        self, client: Batuta
    ) -> None:
        broken, seen = [True], Seen()

        @job(name="fragile", retry=Retry(attempts=2, first=0.01))
        async def fragile(message: Message[Any]) -> None:
            if broken:
                raise ConnectionError("down")
            seen.messages.append(message)

        async with client.worker(subscriptions=[subscribe("orders", fragile)]):
            await client.publish("orders", "x", id="17")
            await letters(client, 1)
            [letter] = (await client.dead_letters.list()).letters
            assert (letter.reason, letter.attempts) == (LetterReason.UNDELIVERED, 2)
            broken.clear()
            await client.dead_letters.reprocess(letter.run_id)
            await seen.have(1)
        assert seen.messages[0].id == "17"

    async def test_messages_wait_while_no_worker_has_the_subscription(self, client: Batuta) -> None:
        seen = Seen()
        subscription = subscribe("orders", seen.job("late"))
        async with client.worker(subscriptions=[subscription]):
            await client.publish("orders", 0, key="k")
            await seen.have(1)
        for number in (1, 2, 3):
            await client.publish("orders", number, key="k")
        async with client.worker(subscriptions=[subscription]):
            await seen.have(4)
            await caught_up(client, "late")
        assert seen.payloads == [0, 1, 2, 3]

    async def test_a_subscription_added_while_messages_are_published_misses_none(self, client: Batuta) -> None:
        early, late, stop = Seen(), Seen(), asyncio.Event()
        async with client.worker(subscriptions=[subscribe("orders", early.job("early"))]):
            publishing = asyncio.create_task(self._publish(client, stop))
            await early.have(5)
            async with client.worker(subscriptions=[subscribe("orders", late.job("late"))]):
                await late.have(5)
                stop.set()
                count = await publishing
                await early.have(count)
                await until(lambda: count - 1 in late.payloads)
                await caught_up(client, "early", "late")
        assert sorted(early.payloads) == list(range(count))
        assert sorted(late.payloads) == list(range(min(late.payloads), count))

    async def _publish(self, client: Batuta, stop: asyncio.Event) -> int:
        """One after the other. Returns how many."""
        number = 0
        while not stop.is_set():
            await client.publish("orders", number)
            await asyncio.sleep(0)
            number += 1
        return number

    async def test_what_cannot_be_published_is_refused_and_nothing_is_written(self, client: Batuta) -> None:
        wrong: Sequence[dict[str, Any]] = (
            {"topic": "", "payload": 1},
            {"topic": "x\n", "payload": 1},
            {"topic": "orders", "payload": object()},
            {"topic": "orders", "payload": 1, "key": "k" * 251},
            {"topic": "orders", "payload": 1, "id": ""},
            {"topic": "orders", "payload": 1, "type": "a\0b"},
        )
        for given in wrong:
            with pytest.raises(InvalidInput):
                await client.publish(**given)
        with pytest.raises(TooLarge, match="the payload of a message on topic 'orders'"):
            await client.publish("orders", "x" * 3_000_000)
        assert not (await client.bus.status()).topics

    async def test_a_deleted_subscription_gets_no_more(self, client: Batuta) -> None:
        seen = Seen()
        subscription: Subscription = subscribe("orders", seen.job("gone"))
        async with client.worker(subscriptions=[subscription]):
            pass
        assert await client.bus.delete("gone", reason="not needed")
        assert not await client.bus.delete("gone")
        await client.publish("orders", 1)
        async with client.worker(subscriptions=[subscription]):
            await client.publish("orders", 2)
            await until(lambda: 2 in seen.payloads)

    async def test_two_subscriptions_of_one_name_and_different_topics_are_refused(self, client: Batuta) -> None:
        seen = Seen()
        async with client.worker(subscriptions=[subscribe("orders", seen.job("one"))]):
            with pytest.raises(InvalidInput, match="subscription 'one' is of topic 'orders'"):
                async with client.worker(subscriptions=[subscribe("else", seen.job("one"))]):
                    pass


async def letters(client: Batuta, count: int) -> None:
    """Wait for so many dead letters."""
    end = time.monotonic() + PATIENCE
    while await client.dead_letters.count() < count:
        assert time.monotonic() < end, "there is no dead letter"
        await asyncio.sleep(0.01)
