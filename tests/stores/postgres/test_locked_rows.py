"""Rows that somebody else holds, as a forgotten psql or an open transaction does: only who needs them waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from batuta import Queue, activity, connect, workflow
from batuta.clock import SECOND
from batuta.errors import StoreUnavailable
from batuta.ids import RunId
from batuta.journal.audit import Act, Verb
from batuta.journal.records import Effects, Move, Run, Send, StartOutcome, Verdict
from batuta.journal.states import RunState
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import Pen, beat, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.runs.namespaces import OTHER, OWN, VERBS, Scene, attempted, furnish, plan
from batuta.verify import verify
from tests.stores.postgres.raw import connection, until_blocked
from tests.stores.postgres.test_timeouts import HOLD

PATIENCE = 60.0


@asynccontextmanager
async def held(url: str, *run_ids: RunId) -> AsyncIterator[Any]:
    """Somebody's open transaction that has locked the rows of these runs."""
    async with connection(url) as raw, raw.transaction():
        for run_id in run_ids:
            await raw.execute(HOLD, run_id)
        yield raw


# -- workers


class Gates:
    """Made anew for each test: an event belongs to its event loop."""

    gate: asyncio.Event
    later: asyncio.Event


@pytest.fixture(autouse=True)
async def gates() -> None:
    Gates.gate, Gates.later = asyncio.Event(), asyncio.Event()


@activity
async def step(n: int) -> int:
    return n


@activity
async def waits() -> None:
    await Gates.gate.wait()


@activity
async def waits_longer() -> int:
    await Gates.later.wait()
    return 7


@workflow
async def once() -> int:
    return await step(1)


@workflow
async def both() -> int:
    await asyncio.gather(waits(), waits_longer())
    return await step(1)


@workflow
async def walk(steps: int) -> int:
    await waits()
    return sum([await step(n) for n in range(steps)])


async def test_other_runs_and_new_starts_of_a_worker_go_on_while_a_row_is_locked(postgres_url: str) -> None:
    async with connect(postgres_url) as client:
        async with client.worker(workflows=[walk], activities=[step, waits], grace=1.0):
            locked = await client.start(walk, 3, id="locked")
            others = [await client.start(walk, 3) for _ in range(20)]
            async with held(postgres_url, locked.run_id):
                Gates.gate.set()
                assert [await handle.result(PATIENCE) for handle in others] == [3] * 20
                for _ in range(3):
                    assert await (await client.start(walk, 4)).result(PATIENCE) == 6
                assert not (await locked.describe()).closed_at
            assert await locked.result(PATIENCE) == 3
            assert [line.ord for line in await locked.journal()] == list(range(5))
    store = PostgresStore(postgres_url)
    await store.open()
    assert (await verify(store, patience=0)).holds
    await store.close()


async def test_later_changes_of_a_run_are_written_after_its_waiting_ones(postgres_url: str) -> None:
    async with connect(postgres_url) as client:
        async with client.worker(workflows=[both], activities=[step, waits, waits_longer], grace=1.0) as worker:
            handle = await client.start(both)
            async with held(postgres_url, handle.run_id), connection(postgres_url) as watcher:
                Gates.gate.set()
                await until_blocked(watcher)
                Gates.later.set()
                session = worker.session
                assert session is not None
                async with asyncio.timeout(PATIENCE):
                    while not session.committer._behind:
                        await asyncio.sleep(0.005)
            assert await handle.result(PATIENCE) == 1
            assert [line.ord for line in await handle.journal()] == [0, 1, 2, 3]
            assert session.committer._behind == set()


async def test_starts_go_on_while_the_id_of_one_is_in_an_open_transaction(postgres_url: str) -> None:
    """With a worker in the process, which begins runs itself, and without."""
    Gates.gate.set()
    async with connect(postgres_url) as client, connect(postgres_url) as other, connection(postgres_url) as raw:
        async with client.worker(workflows=[walk], activities=[step, waits], grace=1.0):
            async with raw.transaction():
                first = await other.start(walk, 1, id="twice", transaction=raw)
                second = [asyncio.create_task(one.start(walk, 1, id="twice")) for one in (client, other)]
                for n in range(3):
                    assert await (await client.start(walk, n)).result(PATIENCE) == sum(range(n))
                    assert await (await other.start(walk, n)).result(PATIENCE) == sum(range(n))
                assert [task for task in second if task.done()] == []
            assert {(await task).run_id for task in second} == {first.run_id}


async def test_a_start_whose_id_stays_in_an_open_transaction_is_refused(postgres_url: str) -> None:
    url = f"{postgres_url}?lock_timeout=0.5"
    async with connect(url) as client, connect(url) as other, connection(postgres_url) as raw:
        async with client.worker(workflows=[walk], activities=[step, waits], grace=1.0):
            async with raw.transaction():
                await other.start(walk, 1, id="twice", transaction=raw)
                for one in (client, other):
                    async with asyncio.timeout(PATIENCE):
                        with pytest.raises(StoreUnavailable, match="something holds a transaction open"):
                            await one.start(walk, 1, id="twice")


async def test_a_queue_whose_row_is_locked_holds_up_no_other_queue(postgres_url: str) -> None:
    queues: list[str | Queue] = ["default", Queue("limited", concurrency=5), Queue("rated", rate="100/s")]
    async with connect(postgres_url) as outside, connect(postgres_url) as client:
        async with client.worker(workflows=[once], activities=[step], queues=queues):
            async with connection(postgres_url) as raw, raw.transaction():
                await raw.execute("SELECT FROM batuta.queues WHERE name IN ('limited', 'rated') FOR UPDATE")
                held_up = [await outside.start(once, queue=queue) for queue in ("limited", "rated")]
                async with asyncio.timeout(PATIENCE):
                    for _ in range(3):
                        assert await (await outside.start(once)).result() == 1
                assert [(await handle.describe()).state for handle in held_up] == ["pending"] * 2
            async with asyncio.timeout(PATIENCE):
                assert [await handle.result() for handle in held_up] == [1, 1]


# -- commits


@pytest.mark.parametrize("kind", ["step", "end", "eviction", "send"])
async def test_changes_that_need_no_locked_row_are_written(store: PostgresStore, postgres_url: str, kind: str) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(50)]
    elsewhere = await start_owned(store, worker, "elsewhere")
    ways: dict[str, dict[str, Any]] = {
        "step": {},
        "end": {"move": Move(RunState.COMPLETED)},
        "eviction": {"move": Move(RunState.WAITING)},
        "send": {"effects": Effects(sends=[Send(seq=1, id="elsewhere", message=signal("m"))])},
    }
    parts = ways[kind]
    changes = [pen.change(1, **(parts if kind != "send" or index == 7 else {})) for index, pen in enumerate(pens)]
    blocker = elsewhere.run_id if kind == "send" else pens[7].run_id
    async with held(postgres_url, blocker):
        assert await store.commit(worker.worker_id, changes) == {7: Verdict.BUSY}
        assert await store.commit(worker.worker_id, changes[7:8]) == {0: Verdict.BUSY}
        assert [(await store.get_run(pen.run_id)).head for pen in pens] == [1] * 7 + [0] + [1] * 42
    assert await store.commit(worker.worker_id, changes[7:8]) == {}
    assert [(await store.get_run(pen.run_id)).head for pen in pens] == [1] * 50


async def test_of_many_starts_only_the_one_whose_id_is_in_an_open_transaction_waits(
    store: PostgresStore, postgres_url: str
) -> None:
    async with connection(postgres_url) as raw, raw.transaction():
        caller = await store.enter(raw, [new_run("twice")])
        await caller.start_many([new_run("twice")])
        runs = [new_run(None if n != 33 else "twice") for n in range(100)]
        outcomes = await store.start_many(runs)
        assert [n for n, outcome in enumerate(outcomes) if not isinstance(outcome, tuple)] == [33]
        assert isinstance(outcomes[33], StoreUnavailable)
        found = [outcome[0].run_id for outcome in outcomes if isinstance(outcome, tuple)]
        assert found == [run.run_id for run in runs if run.id != "twice"]


async def test_owned_starts_and_steps_of_a_batch_with_such_a_start_are_written(
    store: PostgresStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(5)]
    news = [new_run(None if n != 3 else "twice") for n in range(20)]
    changes = [pen.change(1) for pen in pens]
    changes += [Pen(new.run_id, epoch=1).change(1, start=new) for new in news]
    async with connection(postgres_url) as raw, raw.transaction():
        caller = await store.enter(raw, [new_run("twice")])
        await caller.start_many([new_run("twice")])
        answers = await store.commit(worker.worker_id, changes)
        assert set(answers.values()) == {Verdict.BUSY}
        assert not set(answers) & set(range(5))
        left = [changes[index] for index in sorted(answers)]
        answers = await store.commit(worker.worker_id, left)  # beside the others, where there is more time
        assert [left[index].start.id for index in answers] == ["twice"]  # type: ignore[union-attr]


# -- heartbeats and stops


async def test_a_heartbeat_does_not_wait_for_an_overdue_run_that_is_locked(
    store: PostgresStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    for index in range(12):
        await store.start(new_run(f"late-{index}", timeout=SECOND))
    store.shift_clock(2)
    async with held(postgres_url, (await store.get("late-5")).run_id):
        assert (await beat(store, worker)).alive
        assert [await state_of(store, index) for index in range(12)].count(RunState.TIMED_OUT) == 11
    await beat(store, worker)
    assert await state_of(store, 5) is RunState.TIMED_OUT


async def state_of(store: PostgresStore, index: int) -> RunState:
    return (await store.get(f"late-{index}")).state


async def test_a_worker_signs_off_though_a_run_of_it_is_locked(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    worker, other = await live_worker(store), await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(3)]
    async with held(postgres_url, pens[1].run_id):
        await store.retire(worker.worker_id)
        assert [(await store.get_run(pen.run_id)).owner for pen in pens] == [None, worker.worker_id, None]
    assert (await beat(store, other, reap=True)).reaped == 1


# -- clients


async def test_verbs_that_wait_for_a_row_do_not_hold_up_the_others(store: PostgresStore, postgres_url: str) -> None:
    runs = [_run(outcome) for outcome in await store.start_many([new_run() for _ in range(12)])]
    assert len(runs) > store.address.pool_size * 2
    async with held(postgres_url, *(run.run_id for run in runs[:10])):
        sends = [asyncio.create_task(store.send(run.run_id, signal("m"))) for run in runs[:10]]
        async with asyncio.timeout(PATIENCE):
            for n in range(5):
                assert await store.send(runs[11].run_id, signal(f"m{n}"))
        assert [task for task in sends if task.done()] == []
    assert await asyncio.gather(*sends) == [True] * 10


async def test_a_bulk_terminate_waits_for_a_row_and_closes_all(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(3)]
    act, wanted = Act(actor="ada", verb=Verb.TERMINATE, reason="enough"), [pen.run_id for pen in pens]
    async with held(postgres_url, pens[1].run_id), connection(postgres_url) as watcher:
        ending = asyncio.create_task(store.terminate_runs(wanted, "enough", act))
        await until_blocked(watcher)
    async with asyncio.timeout(PATIENCE):
        assert set(await ending) == set(wanted)
    assert [(await store.get_run(run_id)).state for run_id in wanted] == [RunState.TERMINATED] * 3


def _run(outcome: StartOutcome) -> Run:
    assert isinstance(outcome, tuple)
    return outcome[0]


async def test_no_verb_waits_for_rows_of_another_namespace(make_store: MakeStore, postgres_url: str) -> None:
    theirs, store = await furnish(await make_store(OWN), plan()), await make_store(OTHER)
    async with connection(postgres_url) as raw, raw.transaction():
        await raw.execute("SELECT FROM batuta.runs WHERE namespace = $1 FOR UPDATE", OWN)
        for verb in VERBS:
            for line in VERBS[verb]:
                mine = Scene(store, await live_worker(store), theirs.ids, dict(theirs.pens))
                try:
                    answer = repr(await asyncio.wait_for(attempted(line(mine)), PATIENCE / 4))
                except TimeoutError:
                    answer = StoreUnavailable.__name__
                assert StoreUnavailable.__name__ not in answer, f"{verb} waits for a row of another namespace"
