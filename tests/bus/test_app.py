"""Subscriptions as a part of an app."""

from types import ModuleType
from typing import Any

from batuta import App, job
from batuta.bus import Message, subscribe


def test_an_app_of_a_module_has_its_subscriptions() -> None:
    module = ModuleType("shop")

    @job
    async def book(message: Message[Any]) -> None:
        pass

    module.__dict__.update(book=book, books=subscribe("orders", book))
    assert [one.topic for one in App.of_module(module).subscriptions] == ["orders"]
