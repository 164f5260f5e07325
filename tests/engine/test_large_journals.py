"""Journals with large entries are read in pages: nobody who reads all of one holds all of it."""

import asyncio
import tracemalloc
from collections.abc import Awaitable, Callable

import pytest

from batuta import Signal, connect, workflow
from batuta.codecs import Encryption, Keys
from batuta.connect import store_for
from batuta.journal import paging
from batuta.stores.coded.key_rotation import rotate
from batuta.verify import Report, verify

ONE, TWO = (Keys({f"key-{number}": bytes([number]) * 32}) for number in (1, 2))
BOTH = Keys({"key-2": bytes([2]) * 32, "key-1": bytes([1]) * 32})
COUNT, SIZE = 40, 200_000
MOST = 6_000_000
"""Bytes. All of the journal has 8 MB, and what is read is also decrypted, decoded and encrypted."""
word = Signal("word", str)


@workflow
async def listens() -> str:
    for _ in range(COUNT):
        await word.wait()
    return "done"


async def _peak(work: Callable[[], Awaitable[object]]) -> int:
    tracemalloc.start()
    try:
        await work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


async def test_who_checks_a_journal_or_encrypts_it_again_holds_a_part_of_it(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, real_time: None
) -> None:
    monkeypatch.setattr(paging, "PAGE_BYTES", SIZE)
    async with connect(sqlite_url, codec=Encryption(ONE)) as client:
        async with client.worker(workflows=[listens]):
            handle = await client.start(listens, id="long")
            for number in range(COUNT):
                await handle.signal(word, str(number % 10) * SIZE)
            assert await handle.result(60) == "done"
    store = store_for(sqlite_url, codec=Encryption(BOTH))
    await store.open()
    try:
        assert await _peak(lambda: verify(store)) < MOST
        assert await _peak(lambda: rotate(store)) < MOST
        assert (await rotate(store)).rewritten == 0
    finally:
        await store.close()
    report = await _verified(sqlite_url, TWO)
    assert (report.violations, report.sealed) == ([], 0)


async def _verified(url: str, keys: Keys) -> Report:
    store = store_for(url, codec=Encryption(keys))
    await store.open()
    try:
        return await verify(store, [listens])
    finally:
        await store.close()


@pytest.mark.parametrize("most", [1, 3, 1_000])
async def test_a_journal_that_the_store_has_closed_is_encrypted_again_across_pages(
    url: str, most: int, monkeypatch: pytest.MonkeyPatch, real_time: None
) -> None:
    monkeypatch.setattr(paging, "_FIRST", most)
    monkeypatch.setattr(paging, "_MOST", most)
    async with connect(url, codec=Encryption(ONE)) as client:
        async with client.worker(workflows=[listens]):
            handle = await client.start(listens, id="long")
            for number in range(5):
                await handle.signal(word, str(number))
            async with asyncio.timeout(60):
                while len(await handle.journal()) < 6:
                    await asyncio.sleep(0.01)
            await handle.terminate("enough")
    store = store_for(url, codec=Encryption(BOTH))
    await store.open()
    try:
        assert (await rotate(store)).rewritten == 1
        assert (await rotate(store)).rewritten == 0
    finally:
        await store.close()
    report = await _verified(url, TWO)
    assert (report.violations, report.sealed) == ([], 0)
