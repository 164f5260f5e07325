"""How far subscriptions of a broker are behind: in the status, over HTTP and in the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import pytest

from batuta import connect, job
from batuta.authoring.client import bus as of_clients
from batuta.bus import Broker, Message, subscribe
from batuta.bus.broker import Receive, Sent
from batuta.client import Batuta
from batuta.journal.bus.messages import StoredMessage
from batuta.metrics import Metrics, exposition
from batuta.metrics.gauges import store_metrics
from batuta.server.metrics import WithBacklog

SAYS = {"books": 7, "mails": None}


class Slow:
    """A broker that knows of one subscription, not of another, and hangs or fails for the rest."""

    name = "slow"

    async def send(self, messages: Sequence[StoredMessage]) -> Sent:
        return Sent(numbers=[], away="it is not asked for that")

    async def consume(self, topic: str, name: str, *, from_start: bool, begun: Callable[[], None], to: Receive) -> None:
        begun()
        await asyncio.Event().wait()

    async def behind(self, topic: str, name: str) -> int | None:
        if name == "hangs":
            await asyncio.Event().wait()
        if name == "fails":
            raise ConnectionError("away")
        return SAYS[name]

    async def close(self) -> None: ...


@job
async def take(message: Message[int]) -> None: ...


async def behind(client: Batuta) -> dict[str, int | None]:
    return {one.name: one.behind for one in (await client.bus.status()).subscriptions}


async def test_the_broker_is_asked_for_each_subscription_and_may_hang_or_fail(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(of_clients, "_PATIENCE", 0.05)
    broker: Broker = Slow()
    subscriptions = [subscribe("orders", take, name=name) for name in ("books", "mails", "hangs", "fails")]
    async with connect("memory://", bus=broker) as client:
        async with client.worker(subscriptions=subscriptions):
            assert await behind(client) == {"books": 7, "mails": None, "hangs": None, "fails": None}
            text = exposition(Metrics(), await store_metrics([WithBacklog(client)])).decode()
    assert "how far subscription 'fails' is behind is not known" in caplog.text
    found = [line for line in text.splitlines() if line.startswith("batuta_bus_behind")]
    assert found == ['batuta_bus_behind{namespace="default",subscription="books"} 7.0']


async def test_subscriptions_of_the_store_itself_have_no_backlog_elsewhere() -> None:
    async with connect("memory://") as client, client.worker(subscriptions=[subscribe("orders", take, name="books")]):
        assert await behind(client) == {"books": None}


class Counted(Slow):
    """Says when several ask it at once."""

    def __init__(self) -> None:
        self.asked, self.most = 0, 0

    async def behind(self, topic: str, name: str) -> int | None:
        self.asked += 1
        self.most = max(self.most, self.asked)
        for _ in range(5):
            await asyncio.sleep(0)
        self.asked -= 1
        return 1


async def test_few_questions_are_put_to_the_broker_at_once() -> None:
    broker = Counted()
    subscriptions = [subscribe("orders", take, name=f"n-{number}") for number in range(12)]
    async with connect("memory://", bus=broker) as client, client.worker(subscriptions=subscriptions):
        assert {*(await behind(client)).values()} == {1}
    assert broker.most == 4
