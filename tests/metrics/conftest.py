"""Metrics are made in virtual time, but where they go over a socket."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batuta.testing import VirtualLoop


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"real": asyncio.SelectorEventLoop} if "real_time" in item.fixturenames else {"virtual": VirtualLoop}


@pytest.fixture
def real_time() -> None:
    """Asked for by tests that talk to something outside this process."""
