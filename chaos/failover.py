"""A standby that lacks what the primary acknowledged last is promoted, while workers work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg

from batuta.errors import StoreError
from batuta.testing.servers import PostgresServer
from chaos.case import Case
from chaos.outages import PATIENCE_S, WORKERS, all_alive
from chaos.places import Place, migrate
from chaos.report import Tally
from chaos.stage import Stage, finish


@asynccontextmanager
async def _pair() -> AsyncIterator[tuple[PostgresServer, PostgresServer, Place]]:
    primary = await asyncio.to_thread(PostgresServer, fsync=True)
    with primary:
        standby = await asyncio.to_thread(lambda: PostgresServer(fsync=True, standby_of=primary))
        with standby:
            url = await asyncio.to_thread(primary.create_database)
            await migrate(url)
            yield primary, standby, Place("postgres", url, "default")


async def _caught_up(primary: PostgresServer) -> None:
    """Wait until the standby has all that is committed by now."""
    connection = await asyncpg.connect(primary.url)
    try:
        now = await connection.fetchval("SELECT pg_current_wal_insert_lsn()")
        query = "SELECT count(*) FROM pg_stat_replication WHERE replay_lsn >= $1::pg_lsn"
        async with asyncio.timeout(PATIENCE_S):
            while not await connection.fetchval(query, now):
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


async def lossy(stage: Stage, tally: Tally) -> None:
    """Claims, entries and ends are lost; another worker may claim what its first owner still has in memory, with the
    same epoch. What was acknowledged before the standby was cut off must come to its end, once."""
    rounds, runs = (5, 120) if stage.long else (1, 45)
    for number in range(rounds):
        async with _pair() as (primary, standby, place), Case(f"lossy-{number}", place, stage.crew) as case:
            workers = [case.worker() for _ in range(WORKERS)]
            for worker in workers:
                await worker.ready()
            await case.store.pause_queue("default", True)
            ids = [f"r{n}" for n in range(runs)]
            for n, id in enumerate(ids):
                await (case.start("waits", id, id, 0.8) if n % 3 == 0 else case.start("steps", id, id, 8, 0.1))
            await _caught_up(primary)
            await asyncio.to_thread(standby.detach)
            await case.store.pause_queue("default", False)
            await case.until_recorded("begin", runs)
            await asyncio.sleep(stage.chance.uniform(0.0, 0.6))
            await asyncio.to_thread(primary.stop, "kill")
            await asyncio.to_thread(standby.promote, primary.port)
            await _resume(case)
            await case.settled(ids, seconds=PATIENCE_S)
            await all_alive(case, workers, tally)
            await finish(case, tally, deaths=1)  # the failover


async def _resume(case: Case) -> None:
    """The queue is paused on the new primary, too."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                await case.store.pause_queue("default", False)
                return
            except StoreError:
                await asyncio.sleep(0.05)
