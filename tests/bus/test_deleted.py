"""A subscription that is deleted while its worker runs."""

from __future__ import annotations

import logging

import pytest

from batuta import connect
from batuta.bus import Message, deliveries, subscribe
from tests.engine.arena import until

got: list[int] = []


async def books(message: Message[int]) -> None:
    got.append(message.payload)


async def ships(message: Message[int]) -> None: ...


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres"])
async def test_its_worker_says_so_once_and_the_next_one_gets_messages_again(
    kind: str,
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(deliveries, "_LOOK_EVERY", 0.02)
    got.clear()
    url = "memory://" if kind == "memory" else request.getfixturevalue(f"{kind}_url")
    both = [subscribe("orders", books), subscribe("orders", ships)]

    async def is_said() -> bool:
        return "subscription 'books' was deleted" in caplog.text

    async def is_booked() -> bool:
        return bool(got)

    async def is_booked_again() -> bool:
        return len(got) > 1

    async with connect(url) as client:
        async with client.worker(subscriptions=both):
            await client.publish("orders", 1)
            await until(is_booked)
            assert not await is_said()
            assert await client.bus.delete("books")
            await until(is_said)
            await client.publish("orders", 2)
        async with client.worker(subscriptions=both):
            await client.publish("orders", 3)
            await until(is_booked_again)
        assert got == [1, 3]
    said = [one for one in caplog.records if "was deleted" in one.getMessage()]
    assert len(said) == 1
    assert said[0].levelno == logging.WARNING
    assert "no messages of topic 'orders' until a worker that has it starts" in said[0].getMessage()
