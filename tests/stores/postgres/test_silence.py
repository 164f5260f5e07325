"""A connection that is dead and does not say so, as behind a NAT that forgot it: nobody waits for it for long."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from batuta import Batuta, Query, Signal, activity, connect, workflow
from batuta.errors import OutcomeUnknown, StoreError, StoreUnavailable
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.database import connection as sessions
from batuta.testing.conformance.kit import live_worker, new_run, start_owned
from chaos.wire import Wire
from tests.stores.postgres.raw import connection, until_blocked

BOUND = 25.0
"""Far above what it takes, and below the 40 s after which a statement was given up."""
COMMITTING = """
    SELECT client_port FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE '%INSERT INTO%journal%' AND pid <> pg_backend_pid()
"""
EVERYTHING = "SELECT client_port FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"


@pytest.fixture
async def wire(postgres_url: str) -> AsyncIterator[Wire]:
    async with Wire(postgres_url) as made:
        yield made


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is bounded is bounded by less."""
    monkeypatch.setattr(sessions, "SILENCE_SECONDS", 0.5)
    monkeypatch.setattr(sessions, "LOOK_SECONDS", 0.5)
    monkeypatch.setattr(sessions, "CONNECT_SECONDS", 2.0)


async def silence(wire: Wire, url: str, which: str) -> None:
    async with connection(url) as raw:
        ports = [row[0] for row in await raw.fetch(which)]
    assert wire.silence(ports) > 0


async def test_a_commit_whose_connection_died_in_silence_is_written_on_another(wire: Wire, postgres_url: str) -> None:
    store = PostgresStore(wire.url)
    await store.open()
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    assert await pen.write(store, worker) is None
    await silence(wire, postgres_url, COMMITTING)
    change = pen.change(1)
    async with asyncio.timeout(BOUND):
        with pytest.raises(OutcomeUnknown):
            await store.commit(worker.worker_id, [change])
        assert await store.commit(worker.worker_id, [change]) == {}
    await store.close()


async def test_reads_go_on_on_another_connection(wire: Wire, postgres_url: str) -> None:
    store = PostgresStore(wire.url)
    await store.open()
    await store.start(new_run("there"))
    await silence(wire, postgres_url, EVERYTHING)
    async with asyncio.timeout(BOUND):
        assert (await store.get("there")).id == "there"
    await store.close()


async def test_a_commit_that_the_server_is_at_work_on_is_waited_for(store: PostgresStore, postgres_url: str) -> None:
    """However many looks that takes: here it waits for a lock."""
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    session = store._commit_session
    before = await session.connect()
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        async with raw.transaction():
            await raw.execute("SELECT FROM batuta.runs WHERE run_id = $1 FOR UPDATE", pen.run_id)
            writing = asyncio.create_task(pen.write(store, worker))
            await until_blocked(watcher)
            assert session._asked_at is not None
            assert await session._is_at_work(before.get_server_pid())
            await session._look(before, session._asked_at)
            assert not writing.done()
        assert await writing is None
    assert await session.connect() is before


async def test_dead_peers_are_looked_for_by_the_system(store: PostgresStore) -> None:
    raw: Any = (await store._commit_session.connect())._transport.get_extra_info("socket")  # type: ignore[attr-defined]
    assert raw.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        assert 0 < raw.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) <= 15_000


async def test_who_waits_for_a_connection_while_none_works_is_told(wire: Wire, hasty: None) -> None:
    store = PostgresStore(f"{wire.url}?pool_size=1")
    await store.open()
    await store.start(new_run("there"))
    wire.fall_silent()
    async with asyncio.timeout(BOUND):
        told = await asyncio.gather(*(store.get("there") for _ in range(12)), return_exceptions=True)
    assert all(isinstance(one, StoreUnavailable) for one in told)
    await store.close()


# -- a worker and its clients

executed: list[str] = []
gates: list[asyncio.Event] = []
go, asked = Signal("go", str), Query("asked", str)


@activity
async def waits(text: str) -> str:
    executed.append(text)
    await gates[0].wait()
    return text


@workflow
async def greets(text: str) -> str:
    return await waits(text)


async def test_a_worker_whose_commits_go_into_the_void_goes_on_in_seconds(wire: Wire, postgres_url: str) -> None:
    executed.clear()
    gates[:] = [asyncio.Event()]
    async with connect(wire.url) as client, client.worker(workflows=[greets], activities=[waits]):
        handle = await client.start(greets, "hello")
        while not executed:
            await asyncio.sleep(0.01)
        await silence(wire, postgres_url, COMMITTING)
        gates[0].set()
        assert await handle.result(BOUND) == "hello"
        assert executed == ["hello"]


Verb = Callable[[Batuta, Any], Awaitable[object]]
VERBS: dict[str, Verb] = {
    "start": lambda client, _: client.start(greets, "hello", id="another"),
    "signal": lambda _, handle: handle.signal(go, "on"),
    "query": lambda _, handle: handle.query(asked),
    "cancel": lambda _, handle: handle.cancel(),
    "terminate": lambda _, handle: handle.terminate(),
    "describe": lambda _, handle: handle.describe(),
    "journal": lambda _, handle: handle.journal(),
    "result": lambda _, handle: handle.result(BOUND / 4),
    "count": lambda client, _: client.count(),
    "get": lambda client, _: client.get("there"),
}


async def test_no_verb_of_a_client_waits_for_ever_in_an_outage(wire: Wire, hasty: None) -> None:
    async with connect(f"{wire.url}?pool_size={len(VERBS)}") as client:
        handle = await client.start(greets, "hello", id="there")
        wire.fall_silent()
        async with asyncio.timeout(BOUND):
            told = await asyncio.gather(*(ask(client, handle) for ask in VERBS.values()), return_exceptions=True)
        for verb, error in zip(VERBS, told, strict=True):
            assert isinstance(error, StoreError | TimeoutError), (verb, error)


async def test_a_start_beside_a_worker_ends_in_an_outage_once_a_step_is_queued(wire: Wire, hasty: None) -> None:
    executed.clear()
    gates[:] = [asyncio.Event()]
    async with connect(wire.url) as client, client.worker(workflows=[greets], activities=[waits], grace=0.1):
        await client.start(greets, "hello")
        while not executed:
            await asyncio.sleep(0.01)
        wire.fall_silent()
        gates[0].set()
        async with asyncio.timeout(BOUND):
            while True:
                starts = [client.start(greets, "more", id=f"more-{number}") for number in range(3)]
                told = await asyncio.gather(*starts, return_exceptions=True)
                if all(isinstance(one, StoreUnavailable | OutcomeUnknown) for one in told):
                    break
