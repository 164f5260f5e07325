"""Many processes on queues with limits, batches and debounced starts, all at once."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from batuta.clock import SECOND
from batuta.errors import BadData
from batuta.journal.queues import QueueLimits, Rate
from batuta.journal.records import Move, NewRun, RunFilter, StoredRun, WorkerInfo
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.stores.postgres import PostgresStore
from batuta.testing.conformance import MakeStore
from batuta.testing.conformance.kit import Pen, beat, claimed, live_worker, new_run
from batuta.testing.conformance.runs.close import last_word
from tests.stores.postgres.raw import DEADLINE_SECONDS, connection, until_blocked

DONE = Move(RunState.COMPLETED, outcome='{"value":1}')
PROCESSES = 4


@pytest.fixture(autouse=True)
def deadlocks_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """The store would try again after a deadlock: here it must tell."""
    monkeypatch.setattr("batuta.stores.postgres.database.connection.TRANSIENT", frozenset({"40001"}))


async def finish(store: Store, worker: WorkerInfo, stored_runs: list[StoredRun]) -> None:
    changes = [
        Pen.of(stored).change(1, consumed=[message.message_id for message in stored.messages], move=DONE)
        for stored in stored_runs
    ]
    assert await store.commit(worker.worker_id, changes) == {}


class Ledger:
    """Looks at the table itself, again and again, for as long as others work."""

    def __init__(self, url: str) -> None:
        self._url = url
        self.most = 0
        self.most_of_a_key = 0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        task = asyncio.create_task(self._watch())
        yield
        task.cancel()
        await asyncio.wait([task])

    async def _watch(self) -> None:
        query = "SELECT flow_key FROM batuta.runs WHERE owner IS NOT NULL"
        async with connection(self._url) as raw:
            while True:
                owned = Counter(row["flow_key"] for row in await raw.fetch(query))
                self.most = max(self.most, owned.total())
                self.most_of_a_key = max(self.most_of_a_key, *owned.values(), 0)
                await asyncio.sleep(0.001)


async def test_four_processes_never_go_beyond_the_limits_of_a_queue_and_its_keys(
    store: PostgresStore, make_store: MakeStore, postgres_url: str
) -> None:
    await store.limit_queue("default", QueueLimits(concurrency=50, key_concurrency=1))
    for number in range(4):
        await store.start_many([new_run(flow_key=f"k{n % 300}", priority=number % 2) for n in range(600)])
    ledger = Ledger(postgres_url)
    done = 0

    async def work(each: Store, dice: random.Random) -> None:
        nonlocal done
        worker = await live_worker(each)
        while done < 2_400:
            stored_runs = await claimed(each, worker, dice.choice([1, 10, 100]))
            await asyncio.sleep(0)
            if stored_runs and dice.random() < 0.05:  # handed back, and claimed again
                pen = Pen.of(stored_runs.pop())
                assert await pen.write(each, worker, 0, move=Move(RunState.PENDING)) is None
            await finish(each, worker, stored_runs)
            done += len(stored_runs)
            if dice.random() < 0.05:
                await beat(each, worker, reap=True)

    stores = [store, *[await make_store() for _ in range(PROCESSES - 1)]]
    async with ledger.watching(), asyncio.timeout(DEADLINE_SECONDS * 5):
        await asyncio.gather(*(work(each, random.Random(n)) for n, each in enumerate(stores)))
    assert await store.count_runs(RunFilter(states=(RunState.COMPLETED,))) == 2_400
    assert 1 <= ledger.most <= 50
    assert ledger.most_of_a_key == 1


@pytest.mark.parametrize("options", ["", "?statement_cache_size=0"])
async def test_limits_are_kept_whatever_isolation_the_database_begins_with(postgres_url: str, options: str) -> None:
    async with connection(postgres_url) as raw:
        database = await raw.fetchval("SELECT current_database()")
        await raw.execute(f"ALTER DATABASE \"{database}\" SET default_transaction_isolation = 'repeatable read'")
        stores = [PostgresStore(postgres_url + options) for _ in range(2)]
        for each in stores:
            await each.open()
        workers = [await live_worker(each, code={name: "v1"}) for each, name in zip(stores, "ab", strict=True)]
        await stores[0].limit_queue("default", QueueLimits(concurrency=1))
        await stores[0].start_many([new_run(name=name) for name in "ab"])
        await raw.execute("BEGIN")
        await raw.execute("SELECT FROM batuta.queues FOR UPDATE")  # both wait for it, and then come one after the other
        claims = [asyncio.create_task(claimed(*pair, 4)) for pair in zip(stores, workers, strict=True)]
        async with connection(postgres_url) as watcher:
            await until_blocked(watcher, 2)
        await raw.execute("COMMIT")
        assert sorted([len(stored_runs) for stored_runs in await asyncio.gather(*claims)]) == [0, 1]
        for each in stores:
            await each.close()


async def test_four_processes_keep_a_rate_together(store: PostgresStore, make_store: MakeStore) -> None:
    stores = [store, *[await make_store() for _ in range(PROCESSES - 1)]]
    workers = [await live_worker(each) for each in stores]
    await store.limit_queue("default", QueueLimits(rate=Rate(100, 10_000), key_rate=Rate(7, 10_000)))
    await store.start_many([new_run(flow_key=f"k{n % 20}") for n in range(1_000)])
    taken: list[StoredRun] = []
    for _ in range(20):
        pairs = zip(stores, workers, strict=True)
        for stored_runs in await asyncio.gather(*(claimed(each, worker, 4) for each, worker in pairs)):
            taken += stored_runs
    assert len(taken) == 100
    assert max(Counter(stored.run.flow_key for stored in taken).values()) <= 7


async def test_keys_take_turns_also_when_several_processes_claim(store: PostgresStore, make_store: MakeStore) -> None:
    stores = [store, *[await make_store() for _ in range(PROCESSES - 1)]]
    workers = [await live_worker(each) for each in stores]
    await store.start_many([new_run(flow_key="many") for _ in range(3_000)])
    await store.start_many([new_run(flow_key="few") for _ in range(20)])
    taken: list[StoredRun] = []
    for _ in range(4):
        pairs = zip(stores, workers, strict=True)
        for stored_runs in await asyncio.gather(*(claimed(each, worker, 10) for each, worker in pairs)):
            taken += stored_runs
    assert len({stored.run.run_id for stored in taken}) == 160
    assert Counter(stored.run.flow_key for stored in taken)["few"] == 20


async def test_however_a_batch_ends_what_comes_after_it_begins_once(
    store: PostgresStore, make_store: MakeStore
) -> None:
    """Members of several batches are finished, terminated and timed out, in mixed commits, by several processes."""
    stores = [store, *[await make_store() for _ in range(PROCESSES - 1)]]
    workers = [await live_worker(each) for each in stores]
    batches = 6
    members: list[NewRun] = []
    for number in range(batches):
        news = [new_run(timeout=SECOND if n % 10 == 0 else 0) for n in range(80)]
        await store.start_many(news, new_run(f"after-{number}", priority=-1))
        members += news
    random.Random(7).shuffle(members)
    taken = [await claimed(each, worker, 110) for each, worker in zip(stores, workers, strict=True)]
    for each in stores:
        each.shift_clock(2)

    async def work(each: Store, worker: WorkerInfo, stored_runs: list[StoredRun]) -> None:
        for first in range(0, len(stored_runs), 7):
            changes = [Pen.of(stored).change(1, move=DONE) for stored in stored_runs[first : first + 7]]
            await each.commit(worker.worker_id, changes)
            await each.commit(worker.worker_id, changes)  # as if the answer was lost

    async def end(each: Store, some: list[NewRun]) -> None:
        for new in some:
            await each.close_run(new.run_id, -1, last_word(Pen(new.run_id, 0)), RunState.TERMINATED, "enough")

    async with asyncio.timeout(DEADLINE_SECONDS * 3):
        await asyncio.gather(
            *(
                work(each, worker, stored_runs)
                for each, worker, stored_runs in zip(stores, workers, taken, strict=True)
            ),
            *(end(each, members[n::4][:40]) for n, each in enumerate(stores)),
            *(beat(each, worker) for each, worker in zip(stores, workers, strict=True)),
        )
        rest = [stored for stored in await claimed(store, workers[0], 500) if not stored.run.id.startswith("after")]
        await finish(store, workers[0], rest)
        await beat(store, workers[0])
    runs = [await store.get(f"after-{number}") for number in range(batches)]
    assert [run.awaits for run in runs] == [0] * batches
    last = {stored.run.id for stored in await claimed(store, workers[0], 500)}
    assert {run.id for run in runs if run.owner is None} <= last
    assert await store.count_runs(RunFilter(states=(RunState.PENDING,))) == 0


async def test_the_last_of_debounced_starts_is_never_lost(store: PostgresStore, make_store: MakeStore) -> None:
    """Starts race with claims: each ends up in a run that is claimed after it, unless a later one took its place."""
    stores = [store, *[await make_store() for _ in range(2)]]
    keys, rounds = [f"d{n}" for n in range(5)], 40
    seen: dict[str, list[str]] = {key: [] for key in keys}
    started: Counter[str] = Counter()

    async def begin(each: Store) -> None:
        for number in range(rounds):
            news = [new_run(debounce=key, start=f'{{"value":["{key}",{number}]}}') for key in keys]
            for key, outcome in zip(keys, await each.start_many(news), strict=True):
                assert isinstance(outcome, tuple)
                started[key] += outcome[1]

    async def work(each: Store) -> None:
        worker = await live_worker(each)
        for _ in range(rounds * 2):
            for stored in await claimed(each, worker, 3):
                seen[stored.messages[0].body.split('"')[3]].append(stored.messages[0].body)

    async with asyncio.timeout(DEADLINE_SECONDS * 3):
        await asyncio.gather(begin(stores[0]), begin(stores[1]), work(stores[2]))
        await work(stores[2])
    for key in keys:
        assert len(seen[key]) == started[key]
        assert seen[key][-1] == f'{{"value":["{key}",{rounds - 1}]}}'


async def test_a_refused_start_does_not_hold_up_the_rest_of_its_batch(store: PostgresStore) -> None:
    news = [new_run(f"member-{n}" if n != 5 else "bad\x00id") for n in range(20)]
    outcomes = await store.start_many(news, new_run("after"))
    assert [isinstance(outcome, BadData) for outcome in outcomes] == [n == 5 for n in range(21)]
    assert (await store.get("after")).awaits == 19


async def test_pausing_and_limiting_do_not_wait_for_running_work(store: PostgresStore, make_store: MakeStore) -> None:
    other = await make_store()
    worker = await live_worker(store)
    await store.start_many([new_run(flow_key=f"k{n % 3}") for n in range(300)])

    async def change() -> None:
        for number in range(30):
            await other.limit_queue("default", QueueLimits(concurrency=number % 4 + 1 if number % 3 else None))
            await other.pause_queue("default", number % 5 == 0)
        await other.limit_queue("default", QueueLimits())
        await other.pause_queue("default", False)

    async def work() -> None:
        done = 0
        while done < 300:
            stored_runs = await claimed(store, worker, 5)
            await finish(store, worker, stored_runs)
            done += len(stored_runs)

    async with asyncio.timeout(DEADLINE_SECONDS * 2):
        await asyncio.gather(change(), work())


async def test_a_claim_leaves_half_of_a_large_limit_to_others_and_asks_again_at_once(store: PostgresStore) -> None:
    await store.limit_queue("default", QueueLimits(concurrency=20))
    worker = await live_worker(store)
    await store.start_many([new_run(priority=priority) for priority in (5, 1) for _ in range(15)])
    first = await store.claim(worker, 100)
    assert [stored.run.priority for stored in first.stored_runs] == [5] * 10
    assert first.held
    assert first.again_at is not None
    assert first.again_at <= await store.now()
    second = await store.claim(worker, 100)
    assert [stored.run.priority for stored in second.stored_runs] == [5] * 5 + [1] * 5
    assert second.held
    assert second.again_at is None
