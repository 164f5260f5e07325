"""Dead letters that come, are discarded, reprocessed and deleted at once, by several: counted right, no deadlock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from batuta.ids import RunId, new_run_id
from batuta.journal.audit import Act, Verb
from batuta.journal.forks import Fork
from batuta.journal.records import Move, Successor
from batuta.journal.states import RunState
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import MakeStore, Pen, live_worker, new_run
from batuta.testing.conformance.operators.dead_letters import dead, discard
from tests.stores.postgres.raw import connection

pytestmark = pytest.mark.usefixtures("new_postgres_url")

LETTERS = """
    SELECT fingerprint, state, name, reason, count(*), min(at), max(at) FROM batuta.dead_letters
    GROUP BY fingerprint, state, name, reason ORDER BY 1, 2, 3, 4
"""
GROUPS = """
    SELECT fingerprint, state, name, reason, count, first_at, last_at FROM batuta.letter_groups ORDER BY 1, 2, 3, 4
"""
DEADLOCKS = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()"


def forks(sources: list[RunId]) -> list[Fork]:
    """Each keeps the one entry of its source."""
    new = [Successor(run_id=new_run_id(), name="flow") for _ in sources]
    return [
        Fork(source=source, head=0, new=each, keep=0, letter=True) for source, each in zip(sources, new, strict=True)
    ]


async def test_letters_that_come_and_go_are_counted_right(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    stores: list[Any] = [store, *[await make_store() for _ in range(3)]]
    chance, made = random.Random(5), list[RunId]()

    async def give_up(own: Any) -> None:
        worker = await live_worker(own)
        for _ in range(25):
            changes = []
            for new in [new_run() for _ in range(20)]:
                effects = dead(f"f{chance.randrange(5)}")
                changes.append(Pen(new.run_id, 1).change(1, start=new, move=Move(RunState.FAILED), effects=effects))
            assert await own.commit(worker.worker_id, changes) == {}
            made.extend(change.run_id for change in changes)

    async def often(work: Callable[[list[RunId]], Awaitable[Any]], count: int) -> None:
        while len(made) < 100:
            await asyncio.sleep(0.001)
        for _ in range(30):
            await work(chance.sample(made, count))

    await asyncio.gather(
        *(give_up(own) for own in stores[:3]),
        often(lambda some: stores[3].discard_letters(some, discard()), 30),
        often(lambda some: stores[2].discard_letters(some, discard()), 30),
        often(lambda some: stores[1].fork(forks(some), Act(actor="ann", verb=Verb.REPROCESS)), 10),
        often(lambda some: stores[0].delete_runs(some, Act(actor="ann", verb=Verb.DELETE)), 5),
    )
    async with connection(postgres_url) as raw:
        letters = [tuple(row) for row in await raw.fetch(LETTERS)]
        assert letters == [tuple(row) for row in await raw.fetch(GROUPS)]
        assert {row[1] for row in letters} == {"open", "discarded", "reprocessed"}
        assert await raw.fetchval(DEADLOCKS) == 0
