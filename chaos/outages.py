"""PostgreSQL goes away, comes back, and loses its sessions, while workers work."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import chain
from pathlib import Path

import asyncpg

from batuta.testing.servers import PostgresServer, StopMode
from chaos.calls import Begin
from chaos.case import HEARTBEAT_S, LEASE_S, Case
from chaos.places import Place, migrate
from chaos.process import WorkerProcess
from chaos.report import Tally
from chaos.stage import Stage, finish

WORKERS = 3
PATIENCE_S = 60.0


@asynccontextmanager
async def own_server() -> AsyncIterator[tuple[PostgresServer, Place]]:
    """A PostgreSQL that this scenario alone may stop and restart."""
    server = await asyncio.to_thread(PostgresServer, fsync=True)
    try:
        url = await asyncio.to_thread(server.create_database)
        await migrate(url)
        yield server, Place("postgres", url, "default")
    finally:
        server.close()


def load(name: str, count: int) -> list[Begin]:
    """Runs of all kinds."""
    kinds = [
        lambda id: Begin("order", id, [id]),
        lambda id: Begin("steps", id, [id, 12, 0.05]),
        lambda id: Begin("waits", id, [id, 0.8]),
        lambda id: Begin("trade", id, [id]),
    ]
    return [kinds[number % len(kinds)](f"{name}-{number}") for number in range(count)]


async def crew_at_work(case: Case, runs: int) -> tuple[list[WorkerProcess], list[str]]:
    """Workers that start runs of their own and take over from each other; their ids."""
    loads = [load(f"w{number}", runs // WORKERS) for number in range(WORKERS)]
    workers = [case.worker(begin=begin) for begin in loads]
    for worker in workers:
        await worker.ready()
    return workers, [begin.id for begin in chain(*loads)]


async def backends_terminated(stage: Stage, tally: Tally) -> None:
    """A random session of the workers is ended every few milliseconds."""
    seconds, runs = (30.0, 600) if stage.long else (5.0, 90)
    case = Case("backends", await stage.places.fresh("postgres"), stage.crew)
    async with case:
        workers, ids = await crew_at_work(case, runs)
        ended = await _terminate(case.place.url, stage, seconds)
        await case.settled(ids, seconds=PATIENCE_S)
        await all_alive(case, workers, tally)
        tally.note(f"{ended} sessions were ended in {seconds:g} s")
        await finish(case, tally)


async def _terminate(url: str, stage: Stage, seconds: float) -> int:
    connection = await asyncpg.connect(url)
    ended, deadline = 0, time.monotonic() + seconds
    try:
        while time.monotonic() < deadline:
            found = await connection.fetch(
                "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'batuta' "
                "AND pid <> pg_backend_pid()"
            )
            if found:
                pid = stage.chance.choice(found)["pid"]
                ended += await connection.fetchval("SELECT pg_terminate_backend($1)::int", pid)
            await asyncio.sleep(stage.chance.uniform(0.02, 0.08))
    finally:
        await connection.close()
    return ended


async def all_alive(case: Case, workers: list[WorkerProcess], tally: Tally) -> None:
    """Stop all of them: none may have ended by itself."""
    for worker in workers:
        code = await worker.stop()
        if code != 0:
            tally.violate(case.name, f"a worker did not survive: {code}\n{worker.log()}")


async def restarted(stage: Stage, tally: Tally) -> None:
    """PostgreSQL is restarted in every way there is, and a worker is killed beside it each time."""
    modes: list[StopMode] = ["immediate", "fast", "kill"]
    rounds, runs = (12, 600) if stage.long else (3, 90)
    async with own_server() as (server, place):
        case = Case("restarts", place, stage.crew)
        async with case:
            workers, ids = await crew_at_work(case, runs)
            for number in range(rounds):
                await asyncio.sleep(stage.chance.uniform(0.3, 0.8))
                await asyncio.to_thread(server.stop, modes[number % len(modes)])
                victim = workers.pop(0)
                victim.kill()
                tally.kills += 1
                await asyncio.sleep(stage.chance.uniform(0.0, 0.5))
                await asyncio.to_thread(server.start)
                workers.append(case.worker(begin=[Begin(b.workflow, b.id, b.args) for b in victim.job.begin]))
            await case.settled(ids, seconds=PATIENCE_S)
            await all_alive(case, workers, tally)
            await finish(case, tally)


async def longer_than_a_lease(stage: Stage, tally: Tally) -> None:
    """PostgreSQL is away for longer than every lease; nobody died, and nobody may be taken for dead."""

    async def away(server: PostgresServer) -> None:
        await asyncio.to_thread(server.stop, "immediate")
        await asyncio.sleep(LEASE_S * 2)
        await asyncio.to_thread(server.start)

    await _outage(stage, tally, "away", away)


async def frozen(stage: Stage, tally: Tally) -> None:
    """PostgreSQL keeps all connections and answers nobody for longer than every lease."""

    async def freeze(server: PostgresServer) -> None:
        processes = _processes(server)
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        try:
            await asyncio.sleep(LEASE_S * 2)
        finally:
            for pid in processes:
                os.kill(pid, signal.SIGCONT)

    await _outage(stage, tally, "frozen", freeze)


def _processes(server: PostgresServer) -> list[int]:
    """The server and its sessions."""
    assert server.pid is not None
    children = Path(f"/proc/{server.pid}/task/{server.pid}/children").read_text().split()
    return [server.pid, *map(int, children)]


async def _outage(stage: Stage, tally: Tally, name: str, happen: Callable[[PostgresServer], Awaitable[None]]) -> None:
    async with own_server() as (server, place):
        case = Case(f"outage-{name}", place, stage.crew)
        async with case:
            await asyncio.sleep(LEASE_S)
            begins = [
                [Begin("steps", f"w{worker}-{number}", [f"w{worker}-{number}", 2, LEASE_S * 4]) for number in range(5)]
                for worker in range(WORKERS)
            ]
            workers = [case.worker(begin=begin) for begin in begins]
            ids = [begin.id for begin in chain(*begins)]
            await case.until_recorded("begin", len(ids))
            await asyncio.sleep(LEASE_S + HEARTBEAT_S)  # from now on each of them may reap
            await happen(server)
            await case.settled(ids, seconds=PATIENCE_S)
            await all_alive(case, workers, tally)
            await finish(case, tally)
            _nobody_died(case, tally)


def _nobody_died(case: Case, tally: Tally) -> None:
    again = case.account.executed_again()
    if again:
        tally.violate(case.name, f"nobody died, yet {again.total()} activities were executed again after the outage")


async def recovery_races_restart(stage: Stage, tally: Tally, rounds: int = 2, runs: int = 100) -> None:
    """A worker dies with many runs; while the next one recovers them, PostgreSQL dies, too."""
    if stage.long:
        rounds, runs = 6, 250
    for number in range(rounds):
        async with own_server() as (server, place):
            case = Case(f"recovery-{number}", place, stage.crew)
            async with case:
                begin = [Begin("steps", f"r{n}", [f"r{n}", 4, 0.2]) for n in range(runs)]
                first = case.worker(begin=begin)
                await case.until_recorded("begin", runs * 2)
                first.kill()
                tally.kills += 1
                second = case.worker(begin=begin)
                await second.ready()
                await asyncio.sleep(0.1 + 0.2 * number)
                await asyncio.to_thread(server.stop, "immediate")
                await asyncio.to_thread(server.start)
                await case.settled([b.id for b in begin], seconds=PATIENCE_S)
                await all_alive(case, [second], tally)
                await finish(case, tally)
