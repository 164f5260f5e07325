"""Pruning waits for nobody, and reads no more than it must."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from batuta.journal.audit import Act, Verb
from batuta.journal.records import IfExists
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import live_worker, start_owned
from batuta.testing.conformance.operators.deleting import closed_chain, closed_run, there
from batuta.testing.conformance.operators.retention import LONG, keep, prune_all
from tests.stores.postgres.raw import connection, flush_statistics, until_blocked

pytestmark = pytest.mark.usefixtures("new_postgres_url")

PAGES = "SELECT sum(heap_blks_read + heap_blks_hit) FROM pg_statio_user_tables WHERE relname = 'runs'"

FILL = """
    INSERT INTO batuta.runs (run_id, chain_id, epoch, head, claimed_head, priority, created_at, closed_at, namespace,
                             id, kind, name, code, queue, state)
    SELECT u, u, 1, 0, -1, 0, n, CASE WHEN n % 10 > 2 THEN n END, CASE WHEN n % 2 = 0 THEN 'default' ELSE 'other' END,
           n::text, 'workflow', 'flow', 'flow', 'default', CASE WHEN n % 10 > 2 THEN 'completed' ELSE 'waiting' END
    FROM (
        SELECT n, ('00000000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid AS u FROM generate_series(1, 20000) n
    ) r
"""


async def test_locked_runs_are_pruned_in_the_next_round(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    chain = await closed_chain(store, worker, "long")
    locked, free = await closed_run(store, worker), await closed_run(store, worker)
    await keep(store)
    store.shift_clock(61)
    async with connection(postgres_url) as raw:
        transaction = raw.transaction()
        await transaction.start()
        await raw.execute(
            "SELECT 1 FROM batuta.runs WHERE run_id = ANY ($1) FOR UPDATE", [locked.run_id, chain[0].run_id]
        )
        assert await prune_all(store) == 1
        assert await there(store) == {locked.run_id, *(pen.run_id for pen in chain)}
        await transaction.rollback()
    assert free.run_id not in await there(store)
    assert await prune_all(store) == 3


async def test_a_start_that_takes_an_id_over_and_a_deletion_do_not_harm_each_other(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    old = await closed_run(store, worker, "id")
    other = await make_store()
    async with connection(postgres_url) as raw:
        transaction = raw.transaction()
        await transaction.start()
        await raw.execute("SELECT 1 FROM batuta.runs WHERE run_id = $1 FOR UPDATE", old.run_id)
        deleting = asyncio.ensure_future(other.delete_runs([old.run_id], Act(actor="ann", verb=Verb.DELETE)))
        async with connection(postgres_url) as watcher:
            await until_blocked(watcher)
            starting = asyncio.ensure_future(start_owned(store, worker, "id", if_exists=IfExists.RESTART))
            await until_blocked(watcher, 2)
        await transaction.rollback()
    new = await starting
    assert await deleting == [old.run_id]
    assert await there(store) == {new.run_id}
    assert (await store.get("id")).run_id == new.run_id


@pytest.mark.parametrize("analysed", [False, True])
async def test_a_step_reads_no_more_than_its_runs_of_a_large_table(
    store: PostgresStore, postgres_url: str, analysed: bool
) -> None:
    async with connection(postgres_url) as raw:
        await raw.execute(FILL)
        if analysed:
            await raw.execute("ANALYZE batuta.runs")
        await keep(store, LONG)

        async def pages() -> Any:
            await flush_statistics(store)
            return await raw.fetchval(PAGES)

        step = await store.prune(100)
        assert step.deleted == 60
        before = await pages()
        step = await store.prune(100, step.last)
        assert step.deleted == 60
        assert 0 < await pages() - before < 2_000
