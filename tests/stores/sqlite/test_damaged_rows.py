"""A due run whose row cannot be read is parked, and the others go on."""

from __future__ import annotations

import sqlite3

import pytest

from batuta.journal.queues import QueueLimits
from batuta.journal.states import RunState
from batuta.stores.sqlite.store import SqliteStore
from batuta.testing.conformance.kit import live_worker, new_run


@pytest.mark.parametrize("limited", [False, True])
async def test_a_row_that_cannot_be_read_is_parked_and_the_others_go_on(store: SqliteStore, limited: bool) -> None:
    worker = await live_worker(store)
    damaged, good = new_run(), new_run()
    if limited:
        await store.limit_queue(good.queue, QueueLimits(concurrency=5))
    await store.start_many([damaged, good])
    connection = sqlite3.connect(store.path)
    connection.execute("UPDATE runs SET kind = 'nonsense' WHERE run_id = ?", (damaged.run_id.bytes,))
    connection.commit()
    connection.close()
    claimed = await store.claim(worker, 10)
    assert [stored.run.run_id for stored in claimed.stored_runs] == [good.run_id]
    parked = await store.get_run(damaged.run_id)
    assert parked.state is RunState.POISONED
    assert parked.reason.startswith("PayloadDamaged: its row cannot be read")
    assert await store.due_at(worker) is None
