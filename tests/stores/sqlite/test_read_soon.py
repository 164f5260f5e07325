"""Lists are read on the thread of the event loop, unless they look through many rows."""

import threading
from typing import Any

import pytest

import batuta
from batuta.stores.sqlite import listing
from batuta.stores.sqlite.database import readers


@pytest.mark.parametrize(("instructions", "here"), [(5_000, True), (1, False)])
async def test_a_list_that_is_not_brief_is_read_in_another_thread(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, instructions: int, here: bool
) -> None:
    threads: list[Any] = []
    page_of = listing._page

    def noticed(*args: Any) -> Any:
        threads.append(threading.current_thread())
        return page_of(*args)

    monkeypatch.setattr(listing, "_page", noticed)
    monkeypatch.setattr(readers, "_ASKED", instructions)
    async with batuta.connect(sqlite_url) as client:
        for number in range(20):
            await client.start("order", number, id=f"o{number}")
        for _ in range(3):
            assert len((await client.list(limit=50)).runs) == 20
    assert (threads[-1] is threading.main_thread()) is here
    assert len(threads) == (3 if here else 6)
