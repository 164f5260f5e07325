"""The planner must find runs by their key, on a table that it knows nothing about and on a large one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from batuta.ids import new_run_id
from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.records import Effects, IfExists, Move, Output, OutputKind, RunFilter, Send, Successor, Verdict
from batuta.journal.states import RunState
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance.kit import beat, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.runs.children import child_of
from batuta.testing.conformance.runs.close import last_word
from batuta.testing.conformance.runs.plain import ended, job
from tests.stores.postgres.raw import connection, flush_statistics, nodes, plan_of, scans_of

pytestmark = pytest.mark.usefixtures("new_postgres_url")

FENCES = ["commit_entry", "commit_last_entry", "commit_entries"]

FILL = """
    INSERT INTO batuta.runs (run_id, chain_id, epoch, head, claimed_head, priority, created_at, closed_at, namespace,
                             id, kind, name, code, queue, state, owner, wake_at)
    SELECT gen_random_uuid(), gen_random_uuid(), 1, 0, -1, 0, n, CASE WHEN n % 10 > 2 THEN n END, 'default', n::text,
           'workflow', 'flow', 'flow', 'default',
           CASE WHEN n % 10 > 2 THEN 'completed' WHEN n % 10 = 0 THEN 'running' ELSE 'waiting' END,
           CASE WHEN n % 10 = 0 THEN 'someone' END,
           CASE WHEN n % 10 IN (1, 2) THEN 9000000000000000 + n END
    FROM generate_series(1, 30000) n
"""
FILLED = "batuta.runs"


async def test_runs_are_found_by_their_keys(store: PostgresStore, filled: str) -> None:
    session = await store._commit_session.connect()
    for name in FENCES:
        plan = await plan_of(session, store._sql[name])
        scans = scans_of(plan, "runs")
        assert {(scan["Node Type"], scan["Index Name"]) for scan in scans} == {("Index Scan", "runs_pkey")}, name
        assert all(scan["Index Cond"].startswith("(run_id = ") for scan in scans), name
        # Nothing but nested loops, which keep the order of the arrays: rows are locked in the order they come in.
        assert not [node for node in nodes(plan) if "Join" in node["Node Type"] or "Sort" in node["Node Type"]], name
    for name, index in [("list_runs", "runs_pkey"), ("list_notable_runs", "runs_notable")]:
        plan = await plan_of(session, store._sql[name])
        scans = scans_of(plan, "runs")
        assert [(scan["Index Name"], scan["Scan Direction"]) for scan in scans] == [(index, "Backward")]
        assert not [node for node in nodes(plan) if "Sort" in node["Node Type"]], name
    for name in ("list_children", "count_children"):
        scans = scans_of(await plan_of(session, store._sql[name]), "runs")
        assert [scan["Index Name"] for scan in scans] == ["runs_children"], name
    scans = scans_of(await plan_of(session, store._sql["count_open"]), "runs")
    assert [scan["Index Name"] for scan in scans] == ["runs_owned", "runs_due", "runs_idle"]
    scans = scans_of(await plan_of(session, store._sql["quotas"]), "runs")
    assert [(scan["Node Type"], scan["Index Name"]) for scan in scans] == [
        ("Index Only Scan", index) for index in ("runs_owned", "runs_due", "runs_idle")
    ]
    await check_that_sleepers_cost_a_claim_nothing(store, session)


async def test_effects_on_other_runs_find_them_by_key(store: PostgresStore, postgres_url: str) -> None:
    """Statements in functions show no plan; what they have read does. Plans are made on an empty table and kept."""
    session = await store._commit_session.connect()
    await _reach_out(store, "early")
    scanned = await _whole_tables_read(session)
    async with connection(postgres_url) as raw:
        await raw.execute(FILL)
        await raw.fetch("SELECT pg_stat_force_next_flush()")  # else it is counted when that session is gone
    read = await _blocks_read(session)
    await _reach_out(store, "late")
    await flush_statistics(store)
    assert await _blocks_read(session) - read < 1_500
    assert await _whole_tables_read(session) == scanned


async def _reach_out(store: PostgresStore, prefix: str) -> None:
    """Everything that concerns more than one run."""
    worker = await live_worker(store)
    pens = [await start_owned(store, worker, f"{prefix}-{n}") for n in range(5)]
    effects = Effects(
        outputs=[Output(kind=kind, name="x", ord=1, at=1, value="1") for kind in OutputKind],
        children=[child_of(pens[0]), child_of(pens[0], prefix, if_exists=IfExists.RESTART)],
        sends=[Send(seq=n, id=f"{prefix}-{n}", message=signal("m")) for n in (1, 3)],
    )
    changes = [
        pens[0].change(1, effects=effects),
        pens[1].change(1, move=Move(RunState.WAITING)),
        pens[2].change(
            1, effects=Effects(successor=Successor(run_id=new_run_id(), name="flow")), move=Move(RunState.CONTINUED)
        ),
        pens[3].change(1, move=Move(RunState.COMPLETED, outcome="{}", children=True)),
    ]
    assert await store.commit(worker.worker_id, changes) == {3: Verdict.UNREAD}
    pens[0].wrote(changes[0])
    again = Send(seq=9, id=f"{prefix}-4", message=signal("unheard of"), again=True)
    assert await pens[0].write(store, worker, 0, effects=Effects(sends=[again])) is None
    assert await store.close_run(pens[0].run_id, 1, last_word(pens[0]), RunState.TERMINATED, "enough")
    await store.start(new_run(f"{prefix}-4"), signal("m"))
    await store.send(pens[4].run_id, signal("n"))
    await store.get(prefix)
    await store.outputs(pens[0].run_id)
    await store.answers([(pens[0].run_id, "x")])
    assert await pens[4].write(store, worker, move=Move(RunState.FAILED)) is Verdict.UNREAD
    assert await pens[4].write(store, worker, consumed=["m"], move=Move(RunState.FAILED)) is Verdict.UNREAD
    await store.start_many([job(queue=prefix) for _ in range(6)])
    worker.queues = [prefix]
    first = (await store.claim(worker, 2)).stored_runs
    _, claim = await store.hand_over(worker, [ended(stored) for stored in first], 2)
    assert await store.commit(worker.worker_id, [ended(stored) for stored in claim.stored_runs]) == {}


async def _whole_tables_read(session: Any) -> dict[str, int]:
    rows = await session.fetch("SELECT relname, seq_scan FROM pg_stat_user_tables WHERE schemaname = 'batuta'")
    tables = ("runs", "journal", "inbox", "outputs", "attempts")
    return {row["relname"]: row["seq_scan"] for row in rows if row["relname"] in tables}


async def check_that_sleepers_cost_a_claim_nothing(store: PostgresStore, session: Any) -> None:
    worker = await live_worker(store)
    read = await _blocks_read(session)
    values: tuple[Any, ...] = (
        "default",
        worker.worker_id,
        ["default"],
        ["flow"],
        ["v1"],
        10,
        None,
        None,
        None,
        None,
    )
    assert await session.fetch(store._sql["claim"], *values) == []
    assert await _blocks_read(session) - read < 200


async def _blocks_read(session: Any) -> int:
    await session.fetch("SELECT pg_stat_force_next_flush()")
    await session.fetch("SELECT pg_stat_clear_snapshot()")
    found: int = await session.fetchval(
        """SELECT heap_blks_read + heap_blks_hit + idx_blks_read + idx_blks_hit
           FROM pg_statio_user_tables WHERE schemaname = 'batuta' AND relname = 'runs'"""
    )
    return found


async def test_moving_the_head_stays_on_the_page(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(100)]
    for _ in range(5):
        changes = [pen.change(1) for pen in pens]
        assert await store.commit(worker.worker_id, changes) == {}
        for pen, change in zip(pens, changes, strict=True):
            pen.wrote(change)
    session = await store._commit_session.connect()
    await session.fetch("SELECT pg_stat_force_next_flush()")
    row = await session.fetchrow(
        "SELECT n_tup_upd, n_tup_hot_upd FROM pg_stat_user_tables WHERE schemaname = 'batuta' AND relname = 'runs'"
    )
    assert row is not None
    assert row["n_tup_upd"] == 500
    # Were the head in an index, none would stay. How many find room depends on how soon old versions may be pruned,
    # which any open snapshot delays; the first moves always do.
    assert row["n_tup_hot_upd"] >= 100


async def test_a_list_of_notable_states_gives_what_a_plain_list_gives(store: PostgresStore) -> None:
    worker = await live_worker(store)
    for state in (RunState.FAILED, RunState.COMPLETED, RunState.CANCELLED, RunState.POISONED):
        pen = await start_owned(store, worker, f"a-{state}")
        await pen.write(store, worker, move=Move(state))
    wanted = RunFilter(states=(RunState.FAILED, RunState.POISONED))
    page = await store.list_runs(wanted)
    assert [run.id for run in page.runs] == ["a-poisoned", "a-failed"]
    assert await store.count_runs(wanted) == 2


WAITING = """
    INSERT INTO batuta.runs (run_id, chain_id, epoch, head, claimed_head, priority, created_at, namespace, id, kind,
                             name, code, queue, state, wake_at, flow_key)
    SELECT gen_random_uuid(), gen_random_uuid(), 0, -1, -1, 0, n, 'default', n::text, 'job', 'flow', 'flow', 'default',
           'pending', n, {key}
    FROM generate_series(1, 50000) n
"""


@pytest.mark.parametrize("key", ["''", "'k' || n % 1000", "CASE WHEN n > 10 THEN 'big' ELSE 'small' END"])
@pytest.mark.parametrize(
    "limits",
    [
        QueueLimits(),
        QueueLimits(concurrency=500),
        QueueLimits(concurrency=50, key_concurrency=1),
        QueueLimits(rate=Rate(100, 1), key_rate=Rate(5, 1)),
    ],
)
async def test_a_claim_reads_little_however_much_is_due(
    store: PostgresStore, postgres_url: str, key: str, limits: QueueLimits
) -> None:
    """Its plans are made while the table is small, and kept."""
    worker = await live_worker(store)
    await store.limit_queue("default", limits)
    await store.start_many([new_run(flow_key=flow_key) for flow_key in ("", "a", "b", "b") for _ in range(5)])
    for _ in range(3):
        await store.claim(worker, 2)
        await store.due_at(worker)
    async with connection(postgres_url) as raw:
        await raw.execute(WAITING.format(key=key))
    read = await _blocks_read_by_all(store)
    for _ in range(5):
        await store.claim(worker, 10)
        await store.due_at(worker)
    assert await _blocks_read_by_all(store) - read < 10_000


LASTING = """
    INSERT INTO batuta.runs (run_id, chain_id, epoch, head, claimed_head, priority, created_at, closed_at, namespace,
                             id, kind, name, code, queue, state, deadline, expires_at)
    SELECT gen_random_uuid(), gen_random_uuid(), 1, 0, -1, 0, n, CASE WHEN n % 2 = 0 THEN n END, 'default', n::text,
           'workflow', 'flow', CASE WHEN n % 4 = 1 THEN 'other' ELSE 'flow' END, 'default',
           CASE WHEN n % 2 = 0 THEN 'completed' WHEN n % 4 = 1 THEN 'needs_code' ELSE 'waiting' END,
           CASE WHEN n % 2 = 0 THEN n WHEN n % 3 > 0 THEN 9000000000000000 END,
           CASE WHEN n % 3 <> 1 THEN 9000000000000000 END
    FROM generate_series(1, 20000) n
"""


async def test_a_heartbeat_reads_little_however_many_wait_for_their_end_or_other_code(
    store: PostgresStore, postgres_url: str
) -> None:
    """Nor what has ended over its time. Each heart has a session of its own, with plans that are made anew."""
    worker = await live_worker(store)
    async with connection(postgres_url) as raw:
        await raw.execute(LASTING)
        for statement in ("SELECT", "ANALYZE batuta.runs"):
            await raw.execute(statement)
            read = await _blocks_read_by_all(store)
            for _ in range(5):
                await beat(store, worker, reap=True)
            assert await _blocks_read_by_all(store) - read < 1_500, statement


async def _blocks_read_by_all(store: PostgresStore) -> int:
    await flush_statistics(store)
    return await _blocks_read(await store._commit_session.connect())


def test_pages_of_an_inbox_follow_one_order_whatever_the_database_has(store: PostgresStore) -> None:
    """The server of the tests has but one order, and a plan does not say which it follows."""
    compared = re.findall(r"(\S+ *\S+) > \$3", store._sql["inbox"])
    assert compared == ["AND i.message_id", 'COLLATE "C"']
