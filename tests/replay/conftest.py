"""Replay tests run in virtual time."""

import asyncio
from collections.abc import Callable
from typing import Any

from batuta.testing import VirtualLoop


def pytest_asyncio_loop_factories(config: Any, item: Any) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    return {"virtual": VirtualLoop}
