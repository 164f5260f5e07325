"""Messages that other programs send through a broker: one that is odd holds up no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from msgspec import DecodeError

from batuta import Retry, connect
from batuta.authoring.client import bus as of_clients
from batuta.bus import Broker, Message, subscribe
from batuta.bus.broker import Receive, Sent
from batuta.bus.cloudevents import event_of, received
from batuta.journal.bus.messages import NewMessage, StoredMessage
from batuta.testing.buses import until


def event(**fields: Any) -> bytes:
    return json.dumps({"specversion": "1.0", "id": "a", "source": "/x", "type": "t", "data": 1} | fields).encode()


def read(data: bytes, *, key: str = "", id: str = "1:2:3") -> NewMessage:
    return received("orders", "books", data, id=id, key=key, time=5)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"[" * 100_000, "recursion"),
        (b'{"a":' * 100_000, "recursion"),
        (event(time="2020-01-01T00:00:00"), "no time zone"),
        (event(time="2020-01-01"), "no time zone"),
        (event(time="soon"), "isoformat"),
        (event(data_base64="!!"), "base64"),
        (event(specversion="2.0"), "'2.0' is not known"),
        (b'{"amount":1e999}', "out of range"),
        (b"\0", "malformed"),
        (b"", "truncated"),
    ],
)
def test_what_cannot_be_read_becomes_a_message_that_says_why(data: bytes, why: str) -> None:
    found = json.loads(read(data, key="k").body)
    assert why in found["problem"]
    assert found["key"] == "k"


@pytest.mark.parametrize("odd", ["\0", "a\nb", "x" * 300])
def test_every_store_can_keep_keys_and_ids_of_strangers(odd: str) -> None:
    for one in (
        read(b"1", key=odd),
        read(b"{", key=odd),
        read(event(partitionkey=odd)),
        read(event(subject=odd)),
        read(event(id=odd, source="/batuta/default")),
    ):
        assert one.key.isprintable()
        assert one.id.isprintable()
        assert len(one.key) <= 250 >= len(one.id)
    assert read(b"1", key=odd).key == read(b"2", key=odd).key != read(b"1", key=odd + "x").key


def test_a_message_that_is_nested_too_deeply_is_refused_by_name_and_listed_without_its_payload() -> None:
    body = '{"id":"1","topic":"orders","payload":' + "[" * 100_000 + "]" * 100_000 + "}"
    message = StoredMessage(topic="orders", id="1", body=body, number=1, at=1, taken=False)
    with pytest.raises(DecodeError):
        event_of(message)
    assert of_clients._view(message).payload is None


class Stranger:
    """A broker with messages of other programs."""

    name = "stranger"

    def __init__(self, *messages: tuple[bytes, str]) -> None:
        self._messages = messages

    async def send(self, messages: Sequence[StoredMessage]) -> Sent:
        return Sent(numbers=[one.number for one in messages])

    async def consume(self, topic: str, name: str, *, from_start: bool, begun: Callable[[], None], to: Receive) -> None:
        begun()
        numbered = enumerate(self._messages)
        await to([received(topic, name, data, id=f"m-{number}", key=key, time=5) for number, (data, key) in numbered])
        await asyncio.Event().wait()

    async def behind(self, topic: str, name: str) -> int | None:
        return None

    async def close(self) -> None: ...


@pytest.mark.parametrize("store", ["sqlite", "postgres"])
async def test_an_odd_message_holds_up_no_other(request: pytest.FixtureRequest, store: str) -> None:
    broker: Broker = Stranger(
        (b"[" * 100_000, ""),
        *((b"[" * depth + b"]" * depth, "") for depth in range(880, 1_000)),  # some are read in part
        (event(id="b", time="2020-01-01T00:00:00"), ""),
        (event(id="c\0", source="/batuta/default"), ""),
        (b"1", "\0"),
        (b"42", "k"),
    )
    heard: list[Any] = []

    async def hear(message: Message[Any]) -> None:
        heard.append(message.payload)

    listening = subscribe("orders", hear, name="books", retry=Retry(attempts=1))
    async with connect(request.getfixturevalue(f"{store}_url"), bus=broker) as client:
        async with client.worker(subscriptions=[listening]):
            await until(lambda: 42 in heard)
            assert 1 in heard
