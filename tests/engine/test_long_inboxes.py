"""An inbox with more than fits into memory at once: whoever reads it, reads it in pages."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from batuta import Handle, Query, QueryFailed, RunState, Signal, Update, activity, workflow
from batuta.ids import RunId
from batuta.journal.records import PAGE_BYTES, Message, MessageKind, StoredRun, Unread
from batuta.journal.store import Store
from batuta.verify import verify
from tests.engine.arena import PATIENCE, Arena, until

SIZE = PAGE_BYTES // 5 * 3
COUNT = 6
long = Signal("long", str)
refused = Update("refused", str)
seen = Query("seen", str)


@activity
async def act() -> None:
    return None


@workflow
async def reads() -> str:
    found: list[str] = []

    @seen.handle
    def what() -> str:
        return "".join(found)

    await act()
    while len(found) < COUNT:
        found.append((await long.wait())[0])
    return "".join(found)


def _no(text: str) -> None:
    raise ValueError("no")


@workflow
async def reads_nothing() -> str:
    @refused.handle(validator=_no)
    def take(text: str) -> None:
        return None

    return "the end"


class Pages:
    """How much the store gives at once."""

    def __init__(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        self.longest = 0
        unread, load = store.unread, store.load

        async def counted(run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
            found = await unread(run_ids, after=after)
            self._note(*(page.messages for page in found.values()))
            return found

        async def loaded(run_id: RunId) -> StoredRun:
            stored = await load(run_id)
            self._note(stored.messages)
            return stored

        monkeypatch.setattr(store, "unread", counted)
        monkeypatch.setattr(store, "load", loaded)

    def _note(self, *pages: Sequence[Message]) -> None:
        self.longest = max([self.longest, *(sum(len(one.body) for one in page) for page in pages)])


async def test_queries_forks_and_verify_read_a_long_inbox_in_pages(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await arena.client()
    pages = Pages(arena.store(client), monkeypatch)
    worker = await arena.worker(client, reads, act)
    handle = await client.start(reads, id="long")

    await until(lambda: _is_waiting(handle))
    await worker.stop()
    for number in range(COUNT - 1):
        await handle.signal(long, str(number) * SIZE)
    assert await (await client.get("long", reads)).query(seen) == "01234"
    assert not (await verify(arena.store(client), [reads])).violations
    fork = await handle.fork("forked", at=1, reason="to see")
    assert (await fork.describe()).id == "forked"
    assert SIZE < pages.longest <= PAGE_BYTES + SIZE + 100


async def test_a_query_waits_for_a_run_that_ends_amid_a_later_page(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run reads what comes after that before it ends: only its own turns show how."""
    client = await arena.client()
    worker = await arena.worker(client, reads, act)
    handle = await client.start(reads, id="long")
    await until(lambda: _is_waiting(handle))
    await worker.stop()
    for number in range(COUNT + 1):
        await handle.signal(long, str(number) * (SIZE if number < COUNT - 1 else 1))
    elsewhere = await client.get("long", reads)
    with monkeypatch.context() as hurried:
        hurried.setattr("batuta.engine.backend.messaging._PATIENCE", 0.0)
        with pytest.raises(QueryFailed, match="more messages than are read together"):
            await elsewhere.query(seen)
    asking = asyncio.create_task(elsewhere.query(seen))
    await arena.worker(client, reads, act)
    assert await asking == await handle.result(PATIENCE) == "012345"


async def test_a_run_that_ends_reads_what_it_refuses_in_pages(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    client = await arena.client()
    pages = Pages(arena.store(client), monkeypatch)
    handle = await client.start(reads_nothing, id="long")
    for number in range(COUNT // 2):
        await handle.signal(long, str(number) * SIZE)
        await arena.store(client).send(handle.run_id, _update(number))
    await arena.worker(client, reads_nothing)
    assert await handle.result(PATIENCE) == "the end"
    assert len([line for line in await handle.journal() if line.body.name == long.name]) == COUNT // 2
    assert SIZE < pages.longest <= PAGE_BYTES + SIZE + 1000


async def _is_waiting(handle: Handle[Any]) -> bool:
    return (await handle.describe()).state is RunState.WAITING


def _update(number: int) -> Message:
    return Message(message_id=f"u{number}", kind=MessageKind.UPDATE, name="refused", body=f'["{"x" * SIZE}"]')
