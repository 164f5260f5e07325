"""Rows of the tables in the caches: kept while nothing is under way, dropped as soon as a change is asked for."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from batuta.cache import Cache, MemoryCache
from pixdict.caches import Caches, open_caches
from pixdict.connect.database import open_database
from pixdict.connect.keys import KeyTables
from pixdict.connect.keys.models import ClaimRow, EntryRow, How, Outcome
from tests.pixdict.caches.kit import Rows
from tests.pixdict.directory.kit import PHONE
from tests.pixdict.keys.kit import new_entry

ENTRY = EntryRow(id="e-1", status="PENDING", request_id="r-1", entry=new_entry().entry)
CLAIM = ClaimRow(id="c-1", side="CLAIMER", status="PENDING", key=PHONE)


@pytest.fixture
async def tables(tmp_path: Path) -> AsyncIterator[KeyTables]:
    database = await open_database(f"sqlite:///{tmp_path}/pixdict.db")
    yield KeyTables(database)
    await database.close()


@pytest.fixture
async def caches(tables: KeyTables) -> AsyncIterator[Caches]:
    async with Cache(MemoryCache()) as cache:
        found = open_caches(cache)
        tables.watch = found.rows(tables)
        yield found


async def is_entry_kept(caches: Caches) -> bool:
    by_id, by_key = Rows(None), Rows(None)
    await caches.entries.by_id("e-1", by_id)
    await caches.entries.by_key("PHONE", PHONE, by_key)
    assert by_id.reads == by_key.reads
    return not by_id.reads


async def is_claim_kept(caches: Caches) -> bool:
    table = Rows(None)
    await caches.claims.by_id("c-1", table)
    return not table.reads


# covers C-02
async def test_an_entry_is_not_kept_from_when_a_change_of_it_is_asked_for(tables: KeyTables, caches: Caches) -> None:
    await tables.insert_entry(ENTRY)
    await tables.store_entry("e-1", ENTRY.entry, "c" * 64)
    assert await is_entry_kept(caches)
    async with tables.change() as changes:
        assert await changes.ask_entry("e-1", "delete-1") is not None
        assert await is_entry_kept(caches)  # the change is not durable yet
    assert not await is_entry_kept(caches)
    await tables.answer_entry("e-1", "refused", Outcome(request="delete-1", how=How.REFUSED, status="ACTIVE"))
    assert await is_entry_kept(caches)


# covers C-03
async def test_a_claim_is_not_kept_from_when_an_act_on_it_is_asked_for(tables: KeyTables, caches: Caches) -> None:
    await tables.insert_claim(CLAIM)
    await tables.set_claim("c-1", "OPEN", "d-1")
    assert await is_claim_kept(caches)
    async with tables.change() as changes:
        assert await changes.ask_claim("c-1", "cancel-1") is not None
    assert not await is_claim_kept(caches)


async def test_a_change_is_not_refused_because_the_entry_of_its_claim_cannot_be_read(
    tables: KeyTables, caches: Caches, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(key: str) -> Any:
        raise RuntimeError("rubbish in the row")

    await tables.insert_claim(replace(CLAIM, status="OPEN"))
    monkeypatch.setattr(tables, "entry_of_key", broken)
    with caplog.at_level(logging.WARNING):
        async with tables.change() as changes:
            await changes.set_claim("c-1", "CONFIRMED")
    assert "the entry of claim c-1 cannot be read: RuntimeError('rubbish in the row')" in caplog.text
    found = await tables.claim("c-1")
    assert found is not None
    assert found.status == "CONFIRMED"
