"""A streaming standby that lacks what the primary acknowledged last is promoted."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import asyncpg
import pytest

from batuta import activity, connect, workflow
from batuta.errors import StoreError
from batuta.journal.entries import crc_holds
from batuta.journal.records import Move, Verdict
from batuta.journal.states import RunState
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import Pen, beat, claim_one, live_worker, new_run, start_owned
from batuta.testing.servers import PostgresServer
from batuta.verify import verify

pytestmark = pytest.mark.extra

PATIENCE = 60.0
T = TypeVar("T")


class Pair:
    """A primary and its standby. After the failover the standby has the primary's port."""

    def __init__(self, primary: PostgresServer, standby: PostgresServer) -> None:
        self._primary, self._standby = primary, standby
        self.url = primary.create_database()

    async def replicated(self) -> None:
        """Wait until the standby has all that is committed, and let it receive nothing more."""
        raw = await asyncpg.connect(self._primary.url)
        lag = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= $1::pg_lsn"
        now = await raw.fetchval("SELECT pg_current_wal_insert_lsn()")
        async with asyncio.timeout(PATIENCE):
            while not await raw.fetchval(lag, now):
                await asyncio.sleep(0.01)
        await raw.close()
        await asyncio.to_thread(self._standby.detach)

    async def fail_over(self) -> None:
        await asyncio.to_thread(self._primary.stop, "kill")
        await asyncio.to_thread(self._standby.promote, self._primary.port)


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    primary = await asyncio.to_thread(PostgresServer, fsync=True)
    with primary:
        standby = await asyncio.to_thread(lambda: PostgresServer(fsync=True, standby_of=primary))
        with standby:
            yield Pair(primary, standby)


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(url)
    await store.migrate()
    await store.open()
    try:
        yield store
    finally:
        await store.close()


async def in_the_end(call: Callable[[], Awaitable[T]]) -> T:
    """Call until the store is back."""
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                return await call()
            except StoreError:
                await asyncio.sleep(0.05)


async def test_after_a_failover_only_the_worker_known_to_the_new_primary_writes(pair: Pair) -> None:
    """The claim of the first is lost, and the second claims the run there: both have epoch 1 and the same head."""
    async with opened(pair.url) as store:
        first, second = await live_worker(store), await live_worker(store)
        await store.start(new_run("one"))
        await pair.replicated()
        lost = Pen.of(await claim_one(store, first))
        assert await lost.write(store, first, text="lost") is None
        in_flight = lost.change(1, text="in flight")
        await pair.fail_over()
        await in_the_end(lambda: store.register(second))
        known = Pen.of(await claim_one(store, second))
        assert known.epoch == lost.epoch
        assert await known.write(store, second) is None
        # The next write of the first expects just that head; and the one before might seem to be there already.
        assert await store.commit(first.worker_id, [in_flight]) == {0: Verdict.REFUSED}
        behind = Pen(lost.run_id, lost.epoch).change(1, text="lost")
        assert await store.commit(first.worker_id, [behind]) == {0: Verdict.REFUSED}
        assert await known.write(store, second, move=Move(RunState.COMPLETED)) is None
        written = await store.journal(known.run_id)
        assert crc_holds(written[1], written[0].crc)
        assert [entry.ord for entry in written] == [0, 1]


async def test_a_worker_notices_that_the_new_primary_is_on_another_timeline(pair: Pair) -> None:
    async with opened(pair.url) as store:
        worker = await live_worker(store)
        await pair.replicated()
        before = await beat(store, worker)
        await pair.fail_over()
        after = await in_the_end(lambda: beat(store, worker))
        assert after.alive
        assert after.timeline != before.timeline


executed: list[str] = []
gate = asyncio.Event()


@activity
async def pay(order: str, n: int) -> int:
    executed.append(f"{order}/{n}")
    if n == 1:
        await gate.wait()
    return n


@workflow
async def walk(order: str) -> list[int]:
    return [await pay(order, n) for n in range(3)]


async def test_runs_whose_claims_were_lost_come_to_their_end_with_whole_journals(pair: Pair) -> None:
    """Two clients with a worker each; after the failover either may claim what the other still has in memory."""
    executed.clear()
    gate.clear()
    settings: dict[str, Any] = {"lease": 3.0, "heartbeat": 0.5, "grace": 1.0}
    async with connect(pair.url) as client, connect(pair.url) as other:
        handles = [await client.start(walk, f"o-{n}", id=f"o-{n}") for n in range(20)]
        await pair.replicated()
        async with (
            client.worker(workflows=[walk], activities=[pay], **settings),
            other.worker(workflows=[walk], activities=[pay], **settings),
        ):
            async with asyncio.timeout(PATIENCE):
                while sum(one.endswith("/1") for one in executed) < len(handles):
                    await asyncio.sleep(0.01)
            await pair.fail_over()
            gate.set()
            for handle in handles:
                assert await handle.result(PATIENCE) == [0, 1, 2]
    async with opened(pair.url) as store:
        assert (await verify(store, patience=0)).holds
        journals = [await store.journal((await store.get(f"o-{n}")).run_id) for n in range(20)]
        assert [[entry.ord for entry in journal] for journal in journals] == [[0, 1, 2, 3]] * 20


async def test_a_start_that_was_acknowledged_and_lost_can_be_made_again(pair: Pair) -> None:
    async with opened(pair.url) as store:
        worker = await live_worker(store)
        await pair.replicated()
        pen = await start_owned(store, worker, "again")
        await pair.fail_over()
        assert await in_the_end(lambda: pen.write(store, worker)) is Verdict.REFUSED
        assert (await in_the_end(lambda: store.start(new_run("again"))))[1]
