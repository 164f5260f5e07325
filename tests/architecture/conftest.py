"""Two million nodes of syntax trees are kept for the tests of one module, and no longer."""

import gc
from collections.abc import Iterator

import pytest

from tests.architecture.source import parse


@pytest.fixture(autouse=True, scope="module")
def trees() -> Iterator[None]:
    """The collector would walk over them again and again, and find nothing; after them in every test of the process."""
    gc.disable()
    yield
    parse.cache_clear()
    gc.enable()
