"""Closed runs are kept as long as the rules say, on every store; then a worker deletes them."""

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from batuta import Batuta, InvalidInput, Retention, UnknownRun, activity, job, run_child, workflow
from batuta.engine.worker.outage import Outage
from batuta.engine.worker.pruner import Pruner, steps
from batuta.errors import RunFailed, StoreUnavailable
from batuta.ids import RunId
from batuta.journal.bus.messages import SubscriptionRow
from batuta.journal.retention import Pruned, parse_age, shown_age
from batuta.settings import Settings
from batuta.stores.memory import MemoryStore
from batuta.verify import verify
from tests.engine.arena import Arena, until

QUICKLY: dict[str, Any] = {"prune_every": 0.05, "lease": 600.0}


@workflow
async def total(number: int) -> int:
    return number + 1


@workflow
async def breaks() -> None:
    raise ValueError("broken")


@workflow
async def family(number: int) -> int:
    return await run_child(total, number)


@activity
def weigh() -> int:
    return 1


@job
def mail() -> None: ...


async def is_gone(client: Batuta, id: str) -> bool:
    try:
        await client.get(id)
    except UnknownRun:
        return True
    return False


async def test_a_worker_deletes_what_was_kept_for_long_enough(arena: Arena) -> None:  # covers B-14
    client = await arena.client()
    rules = [Retention("1min"), Retention(None, state="failed")]
    await arena.worker(client, total, breaks, mail, retention=rules, **QUICKLY)
    assert await (await client.start(total, 1, id="old")).result() == 2
    await (await client.enqueue(mail, id="sent")).result()
    broken = await client.start(breaks, id="broken")
    with pytest.raises(RunFailed):
        await broken.result()
    arena.store(client).shift_clock(61)
    assert await (await client.start(total, 2, id="new")).result() == 3
    await until(lambda: is_gone(client, "old"))
    await until(lambda: is_gone(client, "sent"))
    assert {run.id for run in (await client.list(kind="any")).runs} == {"broken", "new"}
    assert (await verify(arena.store(client))).holds


async def test_a_family_is_deleted_from_the_youngest_on(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, family, total, retention=[Retention(60)], **QUICKLY)
    assert await (await client.start(family, 1, id="parent")).result() == 2
    arena.store(client).shift_clock(61)
    await until(lambda: is_gone(client, "parent"))
    assert await client.count(kind="any") == 0


async def test_only_one_of_several_workers_prunes(arena: Arena) -> None:
    clients = [await arena.client() for _ in range(3)]
    workers = [await arena.worker(client, total, retention=[Retention(60)]) for client in clients]
    mine = []
    for worker in workers:
        session = worker.session
        assert session is not None
        if await session._pruner._is_mine():
            mine.append(session.info.worker_id)
    assert len(mine) == 1


async def test_another_worker_goes_on_when_that_one_is_gone(arena: Arena) -> None:
    clients = [await arena.client() for _ in range(2)]
    workers = [await arena.worker(client, total, retention=[Retention(60)], **QUICKLY) for client in clients]
    ids = {worker.session.info.worker_id: worker for worker in workers if worker.session is not None}
    await ids[min(ids)].stop()
    await (await clients[0].start(total, 1, id="old")).result()
    for client in clients:
        arena.store(client).shift_clock(61)
    await until(lambda: is_gone(clients[0], "old"))


async def test_messages_of_the_bus_are_deleted_also_where_no_worker_has_subscriptions(arena: Arena) -> None:
    client = await arena.client()
    store = arena.store(client)
    if store.poll_seconds is None:
        return  # in memory workers with subscriptions do it
    await store.put_subscription(SubscriptionRow(name="books", topic="orders"))
    ids = [await client.publish("news", number) for number in range(3)]
    waiting = await client.publish("orders", 1)
    store.shift_clock(61)
    fresh = await client.publish("news", 3)
    await arena.worker(client, total, bus_keep=60, **QUICKLY)

    async def kept() -> list[str]:
        return [one.id for topic in ("news", "orders") for one in (await client.bus.messages(topic)).messages]

    async def is_pruned() -> bool:
        return not set(ids) & set(await kept())

    await until(is_pruned)
    assert await kept() == [fresh, waiting]


async def test_a_person_prunes_by_hand(arena: Arena) -> None:
    client = await arena.client()
    worker = await arena.worker(client, total)
    for number in range(5):
        await (await client.start(total, number)).result()
    await worker.stop()
    assert await client.retention.prune() == 0
    assert await client.retention.set("2min", workflow="total", state="completed")
    assert not await client.retention.set(timedelta(minutes=2), workflow="total", state="completed")
    arena.store(client).shift_clock(121)
    assert await client.retention.prune(dry_run=True) == 5
    assert await client.count() == 5
    assert await client.retention.prune() == 5
    assert await client.count() == 0
    rows = await arena.store(client).audit()
    assert [(row.verb, row.target, row.after) for row in rows] == [
        ("prune", "retention", "null"),
        ("set retention", "total completed", '{"keep":120000000}'),
        ("prune", "retention", "null"),
        ("prune", "retention", '{"deleted":5}'),
    ]


async def test_rules_are_set_listed_and_dropped(arena: Arena) -> None:
    client = await arena.client()
    await client.retention.set("30d")
    await client.retention.set(None, state="failed")
    await client.retention.set(timedelta(hours=1), workflow="total")
    found = await client.retention.list()
    assert found == [Retention(2_592_000.0), Retention(None, state="failed"), Retention(3_600.0, "total")]
    assert await client.retention.delete(state="failed")
    assert not await client.retention.delete(state="failed")
    assert len(await client.retention.list()) == 2


async def test_a_worker_sets_the_rules_that_it_declares_and_leaves_others(arena: Arena) -> None:
    client = await arena.client()
    await client.retention.set("1d", workflow="other")
    await client.retention.set("1d")
    await arena.worker(client, total, retention=[Retention("2d")])
    assert await client.retention.list() == [Retention(172_800.0), Retention(86_400.0, "other")]


@pytest.mark.parametrize(
    "bad",
    [
        lambda: Retention(59),
        lambda: Retention(-1),
        lambda: Retention("soon"),
        lambda: Retention("30x"),
        lambda: Retention("1s"),
        lambda: Retention(float("nan")),
        lambda: Retention(float("inf")),
        lambda: Retention(True),
        lambda: Retention([1]),  # type: ignore[arg-type]  # what a user may give
        lambda: Retention("1d", state="running"),
        lambda: Retention("1d", state="no state"),
        lambda: Retention("1d", workflow="\x00"),
    ],
)
def test_a_rule_that_makes_no_sense_is_refused(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        bad()


async def test_deleting_an_impossible_rule_is_refused() -> None:
    client = await Arena(MemoryStore).client()
    with pytest.raises(InvalidInput, match="closed state"):
        await client.retention.delete(state="running")


async def test_a_worker_refuses_invalid_and_duplicate_rules() -> None:
    client = await Arena(MemoryStore).client()
    with pytest.raises(InvalidInput, match="is not a Retention"):
        client.worker(workflows=[total], retention=["30d"])  # type: ignore[list-item]  # what a user may give
    with pytest.raises(InvalidInput, match="given twice"):
        client.worker(workflows=[total], retention=[Retention("1d"), Retention("2d")])


@pytest.mark.parametrize("text", ["30d", "12h", "90min", "75s", "forever"])
def test_an_age_is_shown_as_it_is_typed(text: str) -> None:
    assert shown_age(parse_age(text)) == text


class Slow:
    """A store that takes its time to prune, and counts."""

    poll_seconds = 1.0

    async def retention(self) -> list[Any]:
        return []

    def __init__(self, takes: float, rounds: int) -> None:
        self.takes, self.left, self.limits = takes, rounds, list[int]()
        self.busy = 0.0

    async def prune(self, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        self.limits.append(limit)
        await asyncio.sleep(self.takes)
        self.busy += self.takes
        self.left -= 1
        return Pruned(1, RunId(int=1) if self.left else None, self.takes)


async def test_pruning_takes_no_more_than_its_share_of_the_time() -> None:
    store: Any = Slow(0.03, 20)
    loop = asyncio.get_running_loop()
    begun = loop.time()
    assert sum([step.deleted async for step in steps(store, 0.1)]) == 20
    assert store.busy / (loop.time() - begun) <= 0.11


async def test_steps_become_smaller_where_they_take_long_and_larger_where_they_do_not() -> None:
    slow: Any = Slow(1.0, 10)
    async for _ in steps(slow, 1.0):
        pass
    assert slow.limits[-1] < slow.limits[0]
    assert min(slow.limits) > 0
    quick: Any = Slow(0.001, 10)
    async for _ in steps(quick, 1.0):
        pass
    assert quick.limits[-1] > quick.limits[0]


class Kept(Slow):
    """One in which all runs are still kept."""

    async def prune(self, limit: int, after: RunId | None = None, *, dry_run: bool = False) -> Pruned:
        step = await super().prune(limit, after, dry_run=dry_run)
        return Pruned(0, step.last, step.busy)


async def test_looking_at_what_is_still_kept_is_done_more_rarely_the_longer_it_takes() -> None:
    loop = asyncio.get_running_loop()
    stores: dict[Any, Any] = {kind: kind(0.03, 100) for kind in (Slow, Kept)}
    pruners = {kind: Pruner(one, "w", Settings(), loop.time, Outage(loop.time)) for kind, one in stores.items()}
    for pruner in pruners.values():
        await pruner._round()
    assert pruners[Slow]._pause == Settings().prune_every
    assert pruners[Kept]._pause == pytest.approx(300)


async def test_a_store_that_is_away_is_asked_again(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await store.open()
    asked = asyncio.Event()

    async def workers() -> Any:
        if "away" in caplog.text:
            asked.set()
        raise StoreUnavailable("away")

    store.workers = workers  # type: ignore[method-assign]  # a fault
    store.poll_seconds = 1.0
    now = asyncio.get_running_loop().time
    pruner = Pruner(store, "w", Settings(prune_every=1.0), now, Outage(now))
    pruner.start()
    async with asyncio.timeout(60):
        await asked.wait()
    await pruner.stop()


async def test_runs_are_deleted_though_messages_of_the_bus_cannot_be(caplog: pytest.LogCaptureFixture) -> None:
    store = MemoryStore()
    await store.open()
    pruned = asyncio.Event()

    async def bus_turn(*_: Any) -> Any:
        raise RuntimeError("rubbish on the bus")

    async def prune(*_: Any, **__: Any) -> Pruned:
        pruned.set()
        return Pruned(0, None, 0.0)

    faulty: Any = store
    faulty.bus_turn, faulty.prune = bus_turn, prune
    store.poll_seconds = 1.0
    await store.set_retention(Retention("1min"))
    now = asyncio.get_running_loop().time
    pruner = Pruner(store, "", Settings(prune_every=0.05), now, Outage(now))
    pruner.start()
    async with asyncio.timeout(60):
        await pruned.wait()
    await pruner.stop()
    assert "deleting messages of the bus that were kept for long enough fails" in caplog.text
    assert "rubbish on the bus" in caplog.text
