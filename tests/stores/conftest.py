"""A store on a database of each kind."""

from collections.abc import AsyncIterator

import pytest

from batuta.connect import store_for
from batuta.journal.store import Store


@pytest.fixture
async def store(url: str) -> AsyncIterator[Store]:
    new = store_for(url)
    await new.migrate()
    await new.open()
    yield new
    await new.close()
