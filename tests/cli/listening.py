"""A module with a subscription, for `batuta worker`."""

from batuta import App
from batuta.bus import Message, subscribe


async def greet(message: Message[str]) -> None:
    assert message.payload


greeting = subscribe("people", greet)
APP = App(subscriptions=[greeting])
