"""Two sessions and one row, with every interleaving made on purpose."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any
from zlib import crc32

import asyncpg
import pytest

from batuta.clock import SECOND
from batuta.errors import UnknownRun
from batuta.ids import new_message_id
from batuta.journal.audit import Act, Verb
from batuta.journal.entries import EntryKind, crc_holds
from batuta.journal.queues import QueueLimits
from batuta.journal.records import Effects, Message, MessageKind, Move, NewRun, Verdict
from batuta.journal.states import RunState
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.database.connection import Session
from batuta.stores.postgres.fast.column_encoding import job_texts
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import Pen, beat, live_worker, new_run, signal, start_owned
from batuta.testing.conformance.operators.bulk_operations import pause, resume
from batuta.testing.conformance.runs.close import last_word
from batuta.testing.conformance.runs.plain import ended, job
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection, until_blocked

WAYS = ["one entry", "last entry", "several entries", "everything"]


def change_in(way: str, pen: Pen, bystander: Pen):
    """The pen's next change, in a batch that takes the named way through the store."""
    match way:
        case "one entry":
            return [pen.change(1)]
        case "last entry":
            return [pen.change(1, move=Move(RunState.COMPLETED))]
        case "several entries":
            return [pen.change(2), bystander.change(1)]
        case _:
            return [pen.change(1, move=Move(RunState.WAITING)), bystander.change(0, consumed=["nothing"])]


@pytest.mark.parametrize("way", WAYS)
async def test_a_zombie_that_waits_for_a_terminate_is_refused(
    store: PostgresStore, postgres_url: str, way: str
) -> None:
    """The terminate is not yet committed when the zombie's statement begins: its snapshot shows an open run."""
    worker = await live_worker(store)
    pen, bystander = await start_owned(store, worker), await start_owned(store, worker)
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        closing = raw.transaction()
        await closing.start()
        entry = last_word(pen)
        columns = [[value] for value in (pen.run_id, pen.head, entry.kind, entry.at, entry.crc, entry.body, "")]
        assert await raw.fetch(store._sql["close_runs"], "default", "terminated", "enough", "", *columns, None)
        zombie = asyncio.create_task(store.commit(worker.worker_id, change_in(way, pen, bystander)))
        await until_blocked(watcher)
        await closing.commit()
        assert await zombie == {0: Verdict.REFUSED}
    entries = await store.journal(pen.run_id)
    assert [entry.kind for entry in entries] == [EntryKind.STARTED, EntryKind.TERMINATED]
    assert (await store.get_run(pen.run_id)).state is RunState.TERMINATED


@pytest.mark.parametrize("way", WAYS)
async def test_a_write_that_waits_for_its_own_first_try_counts_as_durable(
    store: PostgresStore, postgres_url: str, way: str
) -> None:
    """The reply was lost, and the first try is still running when the batch is written again."""
    worker = await live_worker(store)
    pen, bystander = await start_owned(store, worker), await start_owned(store, worker)
    changes = change_in(way, pen, bystander)
    entries = changes[0].entries
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        first_try = raw.transaction()
        await first_try.start()
        owner = None if changes[0].move else worker.worker_id
        update = "UPDATE batuta.runs SET head = $2, owner = $3 WHERE run_id = $1"
        await raw.execute(update, pen.run_id, changes[0].new_head, owner)
        for entry in entries:
            await raw.execute(
                "INSERT INTO batuta.journal (namespace, run_id, ord, epoch, kind, at, crc, body) "
                "VALUES ('default', $1, $2, 1, $3, $4, $5, $6)",
                pen.run_id,
                entry.ord,
                entry.kind,
                entry.at,
                entry.crc,
                entry.body,
            )
        again = asyncio.create_task(store.commit(worker.worker_id, changes))
        await until_blocked(watcher)
        await first_try.commit()
        assert await again == {}
    assert (await store.journal(pen.run_id))[1:] == entries


async def test_an_eviction_that_waits_for_a_message_finds_it(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    later = await store.now() + 600 * SECOND
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        sending = raw.transaction()
        await sending.start()
        await raw.fetch(store._sql["send_message"], "default", pen.run_id, "m", "signal", "go", "null")
        release = asyncio.create_task(pen.release(store, worker, wake_at=later))
        await until_blocked(watcher)
        await sending.commit()
        await release
    assert [stored.run.run_id for stored in (await store.claim(worker, 10)).stored_runs] == [pen.run_id]


async def test_a_message_that_waits_for_an_eviction_wakes_the_run(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        evicting = raw.transaction()
        await evicting.start()
        await raw.execute(
            "UPDATE batuta.runs SET state = 'waiting', owner = NULL WHERE run_id = $1",
            pen.run_id,
        )
        message = Message(message_id="m", kind=MessageKind.SIGNAL)
        sending = asyncio.create_task(store.send(pen.run_id, message))
        await until_blocked(watcher)
        await evicting.commit()
        assert await sending
    assert [stored.run.run_id for stored in (await store.claim(worker, 10)).stored_runs] == [pen.run_id]


async def test_a_claim_and_a_reaper_pass_by_what_others_hold(store: PostgresStore, postgres_url: str) -> None:
    await store.start(new_run("held"))
    await store.start(new_run("free"))
    dead = await live_worker(store)
    owned = [await start_owned(store, dead) for _ in range(2)]
    async with connection(postgres_url) as raw, raw.transaction():
        await raw.execute("SELECT FROM batuta.runs WHERE id = 'held' FOR UPDATE")
        await raw.execute("SELECT FROM batuta.runs WHERE run_id = $1 FOR UPDATE", owned[0].run_id)
        store.shift_clock(11)
        worker = await live_worker(store)
        assert (await beat(store, worker, reap=True)).reaped == 1
        assert {stored.run.id for stored in (await store.claim(worker, 10)).stored_runs} == {
            "free",
            f"run-{owned[1].run_id}",
        }


@asynccontextmanager
async def claim_under_way(store: PostgresStore, url: str, wanted: int) -> AsyncIterator[list[asyncpg.Record]]:
    """What another worker claims, and commits at the end of the block."""
    other = await live_worker(store)
    async with connection(url) as raw:
        await raw.fetch(store._sql["shift"], str(store._shift.micros))
        async with raw.transaction():
            codes = list(other.code), list(other.code.values())
            values = "default", other.worker_id, other.queues, *codes, wanted, None, None, None, None
            yield [row for row in await raw.fetch(store._sql["claim"], *values) if row["run_id"] is not None]


async def test_a_claim_that_waits_for_another_counts_what_it_took(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    await store.limit_queue("default", QueueLimits(concurrency=5, key_concurrency=2))
    await store.start_many([new_run(flow_key=key) for key in "abc" for _ in range(3)])
    async with connection(postgres_url) as watcher, claim_under_way(store, postgres_url, 4) as first:
        waiting = asyncio.create_task(store.claim(worker, 10))
        await until_blocked(watcher)
    second = await waiting
    assert len(first) == 4
    assert len(second.stored_runs) == 1
    assert second.held
    keys = [row["flow_key"] for row in first] + [second.stored_runs[0].run.flow_key]
    assert max(Counter(keys).values()) <= 2


async def test_a_claim_that_waited_tells_of_what_came_meanwhile_to_a_queue_that_is_full_now(
    store: PostgresStore, postgres_url: str
) -> None:
    worker = await live_worker(store)
    await store.limit_queue("default", QueueLimits(concurrency=1))
    await store.start(new_run())
    async with connection(postgres_url) as watcher, claim_under_way(store, postgres_url, 1) as first:
        waiting = asyncio.create_task(store.claim(worker, 10))
        await until_blocked(watcher)
        await store.start(new_run())
    claim = await waiting
    assert len(first) == 1
    assert (len(claim.stored_runs), claim.held) == (0, True)


@pytest.mark.parametrize("room", [None, {"B": 5, "a": 5}], ids=["any room", "some room"])
async def test_claims_lock_their_queues_in_one_order(
    store: PostgresStore, postgres_url: str, room: dict[str, int] | None
) -> None:
    worker = await live_worker(store, queues=["a", "B"])
    for queue in worker.queues:
        await store.limit_queue(queue, QueueLimits(concurrency=5))
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        async with raw.transaction():
            await raw.execute("SELECT FROM batuta.queues WHERE name = 'a' FOR NO KEY UPDATE")
            claiming = asyncio.create_task(store.claim(worker, 10, room))
            await until_blocked(watcher)
            free = await watcher.fetch("SELECT name FROM batuta.queues FOR NO KEY UPDATE SKIP LOCKED")
        await claiming
    assert free == []  # it had B already when it came to a


async def test_a_full_queue_that_another_has_locked_is_not_waited_for(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store, queues=["full", "other"])
    await store.limit_queue("full", QueueLimits(concurrency=1))
    await store.start(new_run(queue="full"))
    assert len((await store.claim(worker, 10)).stored_runs) == 1
    await store.start_many([new_run(queue=queue) for queue in ("full", "other")])
    async with connection(postgres_url) as raw, raw.transaction():
        await raw.execute("SELECT FROM batuta.queues WHERE name = 'full' FOR NO KEY UPDATE")
        async with asyncio.timeout(DEADLINE_SECONDS):
            claim = await store.claim(worker, 10)
    assert [stored.run.queue for stored in claim.stored_runs] == ["other"]
    assert claim.held


async def test_busy_stores_never_deadlock(
    store: PostgresStore, make_store: MakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes commit to the same runs in opposite order, while others reap, claim and send."""
    # The store tries again after a deadlock: here it must tell.
    monkeypatch.setattr("batuta.stores.postgres.database.connection.TRANSIENT", frozenset())
    other = await make_store()
    assert isinstance(other, PostgresStore)
    worker = await live_worker(store)
    pens = [await start_owned(store, worker) for _ in range(100)]
    results = await asyncio.gather(
        _commit_again_and_again(store, worker.worker_id, pens),
        _commit_again_and_again(other, worker.worker_id, pens[::-1]),
        _reap_again_and_again(other),
        *(_disturb(other, pen) for pen in pens[:8]),
    )
    assert results[2]  # runs were set free meanwhile
    for pen in pens:
        run = await store.get_run(pen.run_id)
        assert run.head > 0
        assert [entry.ord for entry in await store.journal(pen.run_id)] == list(range(run.head + 1))


async def _commit_again_and_again(store: PostgresStore, worker_id: str, pens: list[Pen]) -> None:
    mine = [Pen(pen.run_id, pen.epoch, pen.head, pen.last) for pen in pens]
    for round_number in range(30):
        # Every second batch takes the way through the function.
        move = Move(RunState.WAITING) if round_number % 2 else None
        changes = [pen.change(1, move=move if pen is mine[3] else None) for pen in mine]
        verdicts = await store.commit(worker_id, changes)
        for index, (pen, change) in enumerate(zip(mine, changes, strict=True)):
            if index not in verdicts:
                pen.wrote(change)
            else:  # whoever knows epoch and head may try: both processes keep wanting the same rows
                run = await store.get_run(pen.run_id)
                pen.epoch, pen.head = run.epoch, run.head


async def _reap_again_and_again(store: PostgresStore) -> int:
    """Each time all leases are over, and what was claimed meanwhile is set free."""
    reaped = 0
    async with connection(store.address.dsn) as raw:
        for _ in range(20):
            worker = await live_worker(store)
            values: tuple[Any, ...] = (
                "default",
                worker.worker_id,
                ["default"],
                ["flow"],
                ["v1"],
                5,
                None,
                None,
                None,
                None,
            )
            await raw.fetch(store._sql["claim"], *values)
            ages = "batuta.batuta_now() + 86400000000"
            reaped += await raw.fetchval(f"SELECT freed FROM batuta.reap('default', {ages}, 500, 1000, '')")
    return reaped


async def _disturb(store: PostgresStore, pen: Pen) -> None:
    for _ in range(10):
        await store.send(pen.run_id, Message(message_id=new_message_id(), kind=MessageKind.SIGNAL))


LOOK_SLOWLY = """
    CREATE SEQUENCE looks;
    CREATE OR REPLACE FUNCTION batuta.has_pause(chain uuid) RETURNS boolean LANGUAGE plpgsql VOLATILE AS $$
    BEGIN
        IF nextval('looks') = 1 THEN
            PERFORM pg_advisory_xact_lock_shared(42);
        END IF;
        RETURN EXISTS (
            SELECT FROM batuta.inbox i WHERE i.chain_id = chain AND i.consumed_at IS NULL AND i.kind = 'pause');
    END
    $$;
    SELECT pg_advisory_lock(42);
"""


async def test_a_run_whose_owner_lets_go_while_a_resume_looks_at_it_goes_on(
    store: PostgresStore, postgres_url: str
) -> None:
    """Its state is that of before, and its inbox must be, too: what is in neither would be passed over."""
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    assert await pause(store, pen.run_id) == [pen.run_id]
    async with connection(postgres_url) as raw, connection(postgres_url) as watcher:
        await raw.execute(LOOK_SLOWLY)
        resuming = asyncio.create_task(resume(store, pen.run_id))
        await until_blocked(watcher)
        letting_go = asyncio.create_task(store.commit(worker.worker_id, [pen.change(0, move=Move(RunState.PAUSED))]))
        blocked = asyncio.create_task(until_blocked(watcher, 2))
        await asyncio.wait([letting_go, blocked], return_when=asyncio.FIRST_COMPLETED)
        blocked.cancel()
        await asyncio.wait([blocked])
        await raw.execute("SELECT pg_advisory_unlock(42)")
        assert await letting_go == {}
        assert await resuming == [pen.run_id]
    assert (await store.get_run(pen.run_id)).state is RunState.WAITING


async def test_a_hand_over_waits_for_a_claim_and_counts_what_it_took(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    await store.limit_queue("default", QueueLimits(concurrency=5))
    await store.start_many([job() for _ in range(9)])
    first = (await store.claim(worker, 3)).stored_runs
    async with connection(postgres_url) as watcher, claim_under_way(store, postgres_url, 2) as second:
        waiting = asyncio.create_task(store.hand_over(worker, [ended(stored) for stored in first], 9))
        await until_blocked(watcher)
    answers, claim = await waiting
    assert (answers, len(second), len(claim.stored_runs)) == ({}, 2, 3)


async def test_a_slot_handover_does_not_block_other_commits(store: PostgresStore, postgres_url: str) -> None:
    worker = await live_worker(store)
    await store.limit_queue("default", QueueLimits(concurrency=5))
    await store.start_many([job() for _ in range(9)])
    first, second = (await store.claim(worker, 2)).stored_runs
    async with connection(postgres_url) as watcher, claim_under_way(store, postgres_url, 2):
        waiting = asyncio.create_task(store.hand_over(worker, [ended(first)], 1))
        await until_blocked(watcher)
        async with asyncio.timeout(DEADLINE_SECONDS):
            assert await store.commit(worker.worker_id, [ended(second)]) == {}
    assert (await waiting)[0] == {}


async def test_ends_are_synced_though_nothing_was_claimed(store: PostgresStore, postgres_url: str) -> None:
    """A claim that found nothing need not be; the ends of the same transaction must."""
    worker = await live_worker(store)
    await store.limit_queue("default", QueueLimits(concurrency=1))
    await store.start_many([job()])
    texts = job_texts([ended(stored) for stored in (await store.claim(worker, 1)).stored_runs])
    assert texts is not None
    asked = worker.worker_id, worker.queues, list(worker.code), list(worker.code.values()), 1, None
    async with connection(postgres_url) as raw, raw.transaction():
        await raw.execute("SET LOCAL synchronous_commit = on")
        rows = await raw.fetch(store._sql["hand_over"], store.namespace, *texts, *asked)
        assert [row["run_id"] for row in rows] == [None]
        assert await raw.fetchval("SHOW synchronous_commit") == "on"


# -- a run that moves whenever somebody looks


async def test_a_run_that_has_moved_and_had_children_since_it_was_seen_is_terminated_where_it_stands(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await live_worker(store)
    pens = [await start_owned(store, worker), await start_owned(store, worker)]
    unbegun, _ = await store.start(new_run())
    children: list[NewRun] = []
    write = Session.write

    async def after_a_step(session: Session, query: str, *args: Any, **options: Any) -> Any:
        if query == store._sql["close_as_act"]:
            for pen in pens:
                children.append(new_run(parent_run_id=pen.run_id))
                await pen.write(store, worker, effects=Effects(children=children[-1:]))
        return await write(session, query, *args, **options)

    monkeypatch.setattr(Session, "write", after_a_step)
    runs = [*(pen.run_id for pen in pens), unbegun.run_id]
    act = Act(actor="ann", verb=Verb.TERMINATE)
    assert set(await store.terminate_runs(runs, "genug für heute \U0001f642", act)) == set(runs)
    monkeypatch.undo()
    for run_id in runs:
        run, last = await store.outcome(run_id)
        assert last is not None
        assert (run.state, last.kind, last.ord) == (RunState.TERMINATED, EntryKind.TERMINATED, run.head)
        before = [None, *await store.journal(run_id)][run.head]
        assert crc_holds(last, before.crc if before is not None else 0)
        assert last.at >= (before.at if before is not None else 0)
    assert children
    for child in children:
        assert MessageKind.CANCEL in [one.kind for one in (await store.load(child.run_id)).messages]


@pytest.mark.parametrize("content", [b"", b"a", b"\x00\xff", '{"reason":"für \U0001f642"}'.encode(), bytes(range(256))])
@pytest.mark.parametrize("before", [0, 1, 0xFFFFFFFF, 1_794_854_145_365_674 ^ 12345])
async def test_the_checksum_is_that_of_everybody_else(
    store: PostgresStore, postgres_url: str, content: bytes, before: int
) -> None:
    async with connection(postgres_url) as raw:
        assert await raw.fetchval("SELECT batuta.crc32($1, $2)", content, before) == crc32(content, before & 0xFFFFFFFF)


# -- a run that is being deleted


@asynccontextmanager
async def deleting(url: str, pen: Pen) -> AsyncIterator[asyncpg.Connection[Any]]:
    """The run's row is deleted, and whoever wants it waits: within this block somebody must. Gives a watcher."""
    async with connection(url) as raw, connection(url) as watcher:
        transaction = raw.transaction()
        await transaction.start()
        await raw.execute("DELETE FROM batuta.runs WHERE run_id = $1", pen.run_id)
        yield watcher
        await until_blocked(watcher)
        await transaction.commit()


async def test_a_message_to_a_run_under_deletion_gets_unknown_run(store: PostgresStore, postgres_url: str) -> None:
    pen = await start_owned(store, await live_worker(store))
    async with deleting(postgres_url, pen):
        sending = asyncio.create_task(store.send(pen.run_id, signal("m")))
    with pytest.raises(UnknownRun):
        async with asyncio.timeout(DEADLINE_SECONDS):
            await sending


async def test_a_start_with_a_signal_begins_anew_when_the_run_of_its_id_is_being_deleted(
    store: PostgresStore, postgres_url: str
) -> None:
    pen = await start_owned(store, await live_worker(store), "one")
    new = new_run("one")
    async with deleting(postgres_url, pen):
        starting = asyncio.create_task(store.start(new, signal("m")))
    async with asyncio.timeout(DEADLINE_SECONDS):
        run, is_new = await starting
    assert (run.run_id, is_new) == (new.run_id, True)
    kinds = {one.kind for one in (await store.load(run.run_id)).messages}
    assert kinds == {MessageKind.SIGNAL, MessageKind.START}
