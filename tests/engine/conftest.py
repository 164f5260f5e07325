"""Engine tests run in virtual time, but for those that go through every store."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from batuta.testing import VirtualLoop

REAL_TIME = {"arena", "real_time"}
"""Fixtures whose tests need seconds that are seconds."""


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    real = REAL_TIME & set(item.fixturenames)
    return {"real": asyncio.SelectorEventLoop} if real else {"virtual": VirtualLoop}


@pytest.fixture
def real_time() -> None:
    """Asked for by tests that talk to something outside this process."""
