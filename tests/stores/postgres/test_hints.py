"""Hints between processes, and what becomes of them when the connection does not hold."""

from __future__ import annotations

import asyncio

from batuta.ids import new_run_id
from batuta.journal.queues import QueueLimits
from batuta.journal.records import Hint, Move
from batuta.journal.states import RunState
from batuta.stores.contract.listeners import Listeners
from batuta.stores.postgres import PostgresStore
from batuta.stores.postgres.hints import FROM_A_GUEST, ROUNDS, Announcer, channel_of
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.commits.hints import Ear
from batuta.testing.conformance.kit import Pen, live_worker, new_run, start_owned
from batuta.testing.conformance.runs.plain import ended, job
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection
from tests.stores.postgres.test_faults import KILL


def is_catching_up(hint: Hint) -> bool:
    return hint.due and hint.closed is None


async def test_a_listener_that_was_disconnected_is_told_to_poll(store: PostgresStore, postgres_url: str) -> None:
    ear = Ear(store)
    await ear.hears(is_catching_up)
    ear.hints.clear()
    async with connection(postgres_url) as raw:
        await raw.execute(KILL)
    await ear.hears(is_catching_up)


async def test_hints_arrive_again_after_the_connection_was_lost(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    far = await make_store()
    ear = Ear(far)
    await ear.hears(is_catching_up)
    ear.hints.clear()
    async with connection(postgres_url) as raw:
        await raw.execute(KILL)
    await ear.hears(is_catching_up)
    ear.hints.clear()
    worker = await live_worker(store)
    pen = await start_owned(store, worker)
    assert await pen.write(store, worker, move=Move(RunState.COMPLETED)) is None
    await ear.hears(lambda hint: pen.run_id in (hint.closed or []))


async def test_many_closed_runs_are_heard_as_many(store: PostgresStore, make_store: MakeStore) -> None:
    worker = await live_worker(store)
    near, far = Ear(store), Ear(await make_store())
    for ear in (near, far):
        await ear.hears(is_catching_up)
        ear.hints.clear()
    news = [new_run() for _ in range(400)]
    changes = [Pen(new.run_id, 1).change(1, start=new, move=Move(RunState.COMPLETED)) for new in news]
    assert await store.commit(worker.worker_id, changes) == {}
    await near.hears(lambda hint: len(hint.closed or []) == 400)
    await far.hears(lambda hint: hint.closed is None)


async def test_a_place_that_a_worker_has_nothing_for_is_made_known(store: PostgresStore) -> None:
    """What waits for it is code that others have."""
    worker, other = await live_worker(store), await live_worker(store, code={"other": "v1"})
    await store.limit_queue("default", QueueLimits(concurrency=1))
    await store.start_many([job(), job(name="other")])
    [stored] = (await store.claim(worker, 1)).stored_runs
    assert (await store.claim(worker, 1)).held
    ear = Ear(store)
    answers, claim = await store.hand_over(worker, [ended(stored)], 1)
    assert (answers, claim.stored_runs) == ({}, [])
    await ear.hears(lambda hint: hint.due and stored.run.run_id in (hint.closed or ()))
    assert len((await store.claim(other, 1)).stored_runs) == 1


async def test_own_notifications_are_not_heard_twice(store: PostgresStore, make_store: MakeStore) -> None:
    near, far = Ear(store), Ear(await make_store())
    for ear in (near, far):
        await ear.hears(is_catching_up)
        ear.hints.clear()
    await store.start(new_run())
    await far.hears(lambda hint: hint.due)
    assert len(near.hints) == 1


async def test_hints_in_a_burst_are_sent_together() -> None:
    sent: list[list[str]] = []
    arrived = asyncio.Event()

    async def notify(payloads: list[str]) -> None:
        sent.append(payloads)
        arrived.set()

    announcer = Announcer(Listeners(), notify)
    announcer.open()
    for _ in range(500):
        announcer.tell(Hint(due=True))
    async with asyncio.timeout(DEADLINE_SECONDS):
        await arrived.wait()
    await announcer.close()
    assert len(sent) == 1
    assert [len(payloads) for payloads in sent] == [1]


async def test_no_payload_is_too_long_to_be_sent() -> None:
    sent: list[str] = []

    async def notify(payloads: list[str]) -> None:
        sent.extend(payloads)

    announcer = Announcer(Listeners(), notify)
    announcer.open()
    announcer.tell(Hint(due=True, messages=[new_run().run_id for _ in range(400)], closed=[new_run().run_id] * 140))
    await announcer.close()
    assert len(sent) >= 3
    assert max(len(payload) for payload in sent) < 8_000


async def test_a_listener_of_another_namespace_hears_nothing(store: PostgresStore, make_store: MakeStore) -> None:
    other, same = Ear(await make_store(namespace="other")), Ear(await make_store())
    for ear in (other, same):
        await ear.hears(is_catching_up)
        ear.hints.clear()
    await store.start(new_run())
    await same.hears(lambda hint: hint.due)
    assert other.hints == []


async def test_the_end_of_a_lone_run_is_announced_though_the_store_is_closed_at_once() -> None:
    sent: list[str] = []

    async def notify(payloads: list[str]) -> None:
        sent.extend(payloads)

    announcer = Announcer(Listeners(), notify)
    announcer.open()
    run_id = new_run_id()
    announcer.tell_after(Hint(closed=[run_id]))
    await announcer.close()
    assert len(sent) == 1
    assert str(run_id) in sent[0]


async def test_runs_that_can_be_claimed_are_announced_at_once() -> None:
    told: list[Hint] = []
    listeners = Listeners()
    listeners.bind()
    listeners.add(told.append)
    announcer = Announcer(listeners, _ignore)
    announcer.open()
    announcer.tell_after(Hint(closed=[new_run_id()]))
    announcer.tell_after(Hint(due=True, closed=[new_run_id()]))
    await asyncio.sleep(0)
    assert [hint.due for hint in told] == [True]
    for _ in range(ROUNDS + 2):
        await asyncio.sleep(0)
    assert [hint.due for hint in told] == [True, False]
    await announcer.close()


async def _ignore(_payloads: list[str]) -> None:
    pass


async def test_what_is_no_hint_of_ours_is_passed_over(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    ear = Ear(await make_store())
    await ear.hears(is_catching_up)
    ear.hints.clear()
    failed: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failed.append(context))
    channel = channel_of("batuta", store.namespace)
    async with connection(postgres_url) as raw:
        for said in ("", "null", '{"x":' + "[" * 7_000, FROM_A_GUEST):
            await raw.execute("SELECT pg_notify($1, $2)", channel, said)
    await ear.hears(lambda hint: hint.due)
    assert not failed
