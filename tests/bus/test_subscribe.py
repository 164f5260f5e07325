"""What can subscribe to a topic."""

from typing import Any

import pytest
from msgspec import Struct

from batuta import InvalidInput, Signal, activity, job, workflow
from batuta.bus import Message, subscribe


class Order(Struct):
    id: str


@job
async def gets_the_payload(order: Order) -> None: ...


@workflow
async def begins_with_the_payload(order: Order) -> None: ...


async def says_nothing(message) -> None: ...


@pytest.mark.parametrize(
    "handler",
    [gets_the_payload, begins_with_the_payload, says_nothing, Signal("paid", Order), Signal("go")],
    ids=lambda one: getattr(one, "name", "function"),
)
def test_a_handler_of_the_payload_is_refused_as_its_id_would_be_that_of_the_message(handler: Any) -> None:
    with pytest.raises(InvalidInput, match=r"gets the whole message, .* declare it for Message\[\.\.\.\]"):
        subscribe("orders", handler)


@activity
async def books(message: Message[Order]) -> None: ...


@pytest.mark.parametrize("handler", [books, "books", None])
def test_what_cannot_get_messages_is_refused(handler: Any) -> None:
    with pytest.raises(InvalidInput, match="cannot get messages: give a job"):
        subscribe("orders", handler)


def test_messages_of_any_payload_can_be_had() -> None:
    async def whole(message: Message) -> None: ...

    async def anything(message: Any) -> None: ...

    for handler in (whole, anything):
        assert subscribe("orders", handler, name="all").name == "all"
