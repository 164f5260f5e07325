"""A namespace starts as much as its quotas allow, and others never notice."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack
from typing import Any

import pytest

from batuta import (
    AlreadyStarted,
    Batuta,
    InvalidInput,
    Middleware,
    Quota,
    QuotaExceeded,
    Schedule,
    Signal,
    continue_as_new,
    every,
    job,
    run_child,
    workflow,
)
from batuta.engine.outgoing import backend_for
from batuta.errors import StoreUnavailable
from batuta.journal.quotas import Quota as Stored
from batuta.journal.quotas import QuotaView
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import VirtualLoop
from tests.engine.arena import Arena, until

go: Signal[None] = Signal("go", None)


@workflow
async def waits() -> None:
    await go.wait()


@workflow
async def echo(text: str) -> str:
    return text


@workflow
async def parent(children: int) -> int:
    texts = [await run_child(echo, "x") for _ in range(children)]
    return len(texts)


@workflow
async def counts_down(rest: int) -> int:
    if rest:
        continue_as_new(rest - 1)
    return rest


@job
def note(text: str) -> str:
    return text


class CountingStore(MemoryStore):
    """Counts what is asked about quotas; can be away; is looked at again as seldom as one on a disk."""

    poll_seconds: float | None = 1.0

    def __init__(self, database: MemoryDatabase, namespace: str = "default") -> None:
        super().__init__(database, namespace)
        self.looks = self.spends = 0
        self.away = False
        self.opened: asyncio.Event | None = None

    async def quotas(self) -> list[QuotaView]:
        self.looks += 1
        if self.away:
            raise StoreUnavailable("away")
        if self.opened is not None:
            await self.opened.wait()
        return await super().quotas()

    async def spend_starts(self, count: int, quota: Stored, ago: int = 0) -> None:
        self.spends += 1
        if self.away:
            raise StoreUnavailable("away")
        await super().spend_starts(count, quota, ago)


Make = Callable[..., Awaitable[Batuta]]


class House:
    """Clients of one database in memory, as of several processes."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        self.clock = loop.clock
        self._database = MemoryDatabase(self.clock)
        self.open = AsyncExitStack()

    async def client(self, namespace: str = "default", *middleware: Middleware) -> Batuta:
        return await self.client_of(MemoryStore(self._database, namespace), *middleware)

    async def client_of(self, store: MemoryStore, *middleware: Middleware) -> Batuta:
        client = Batuta(backend_for(store, self.clock, middleware), store.open, store.close)
        return await self.open.enter_async_context(client)

    def counting(self, namespace: str = "default") -> CountingStore:
        return CountingStore(self._database, namespace)

    async def worker(self, client: Batuta, **more: Any) -> None:
        await self.open.enter_async_context(
            client.worker(workflows=[waits, echo, parent, counts_down], jobs=[note], **more)
        )


@pytest.fixture
async def house() -> AsyncIterator[House]:
    made = House()
    yield made
    await made.open.aclose()


async def started(client: Batuta, many: int) -> int:
    """How many of so many starts, one after the other, were let in."""
    let_in = 0
    for _ in range(many):
        try:
            await client.start(waits)
            let_in += 1
        except QuotaExceeded:
            pass
    return let_in


async def open_runs(client: Batuta) -> int:
    return await client.count(kind="any", states=["pending", "running", "waiting"])


# -- open runs


async def test_no_more_runs_are_open_than_the_quota_says(house: House) -> None:
    client = await house.client()
    await client.quotas.set("open_runs", 3)
    for _ in range(3):
        await client.start(waits)
    with pytest.raises(QuotaExceeded) as refused:
        await client.enqueue(note, "one too many")
    assert await open_runs(client) == 3
    error = refused.value
    assert (error.quota, error.namespace, error.limit, error.used) == ("open_runs", "default", 3, 3)
    assert error.retry_after == pytest.approx(0.05)
    assert str(error) == ("quota open_runs of namespace 'default' is exceeded: 3 of 3 are open: try again in 0.05 s")


async def test_what_has_ended_makes_room(house: House) -> None:
    client = await house.client()
    await house.worker(client)
    await client.quotas.set("open_runs", 2)
    handles = [await client.start(waits) for _ in range(2)]
    with pytest.raises(QuotaExceeded):
        await client.start(waits)
    await handles[0].signal(go)
    await handles[0].result()
    await client.start(waits)
    with pytest.raises(QuotaExceeded):
        await client.start(waits)


async def test_short_runs_are_not_held_up_by_a_count_that_is_a_moment_old(house: House) -> None:
    client = await house.client()
    await house.worker(client)
    await client.quotas.set("open_runs", 1)
    for number in range(20):
        assert await (await client.start(echo, str(number))).result() == str(number)


async def test_starts_that_come_together_do_not_pass_the_quota_of_one_client(house: House) -> None:
    client = await house.client_of(house.counting())
    await client.quotas.set("open_runs", 10)
    for _ in range(3):
        await asyncio.gather(*(client.start(waits) for _ in range(25)), return_exceptions=True)
        assert await open_runs(client) == 10
        await asyncio.sleep(2)


async def test_several_clients_pass_it_by_what_they_start_in_a_second_and_no_more(house: House) -> None:
    clients = [await house.client_of(house.counting()) for _ in range(4)]
    await clients[0].quotas.set("open_runs", 10)
    await asyncio.sleep(1)
    for client in clients:
        await client.start(waits)  # who has not read it yet does so now
    await asyncio.sleep(0.1)
    assert 10 < sum([await started(client, 50) for client in clients]) < 40
    for _ in range(3):
        await asyncio.sleep(1)
        assert [await started(client, 50) for client in clients] == [0, 0, 0, 0]


async def test_a_refused_start_has_the_store_count_again_but_not_too_often(house: House) -> None:
    store = house.counting()
    client = await house.client_of(store)
    await client.quotas.set("open_runs", 1)
    await client.start(waits)
    before = store.looks
    await started(client, 100)
    assert store.looks == before
    for _ in range(10):
        await asyncio.sleep(0.06)
        await started(client, 100)
    assert store.looks == before + 10


# -- starts per second


async def test_a_burst_is_let_in_and_then_as_many_as_come_back(house: House) -> None:
    client = await house.client()
    await client.quotas.set("starts_per_second", 10)
    assert await started(client, 15) == 10
    with pytest.raises(QuotaExceeded) as refused:
        await client.start(waits)
    assert refused.value.retry_after == pytest.approx(0.1)
    assert (refused.value.quota, refused.value.limit, refused.value.used) == ("starts_per_second", 10, 10)
    await asyncio.sleep(refused.value.retry_after or 0)
    assert await started(client, 5) == 1
    await asyncio.sleep(0.5)
    assert await started(client, 15) == 5
    await asyncio.sleep(60)
    assert await started(client, 15) == 10


async def test_a_burst_may_be_larger_or_smaller_than_a_second(house: House) -> None:
    client = await house.client()
    await client.quotas.set("starts_per_second", 0.5, burst=4)
    assert await started(client, 6) == 4
    await asyncio.sleep(3)
    assert await started(client, 6) == 1
    await asyncio.sleep(1)
    assert await started(client, 6) == 1
    await client.quotas.set("starts_per_second", 100, burst=1)
    await asyncio.sleep(1)
    assert await started(client, 6) == 1


async def test_one_client_keeps_to_the_rate_over_a_long_time(house: House) -> None:
    client = await house.client()
    await client.quotas.set("starts_per_second", 7)
    let_in = 0
    for _ in range(1_000):
        let_in += await started(client, 3)
        await asyncio.sleep(0.02)
    assert 7 * 20 <= let_in <= 7 * 20 + 7


async def test_several_clients_together_keep_to_the_rate_over_a_long_time(house: House) -> None:
    clients = [await house.client_of(house.counting()) for _ in range(5)]
    await clients[0].quotas.set("starts_per_second", 10)
    let_in = 0
    for _ in range(1_000):
        for client in clients:
            let_in += await started(client, 1)
        await asyncio.sleep(0.1)
    assert 900 <= let_in <= 1_100


async def test_a_client_that_is_there_for_one_start_counts_too(house: House) -> None:
    first = await house.client()
    await first.quotas.set("starts_per_second", 3)
    let_in = 0
    for _ in range(10):
        async with AsyncExitStack() as alone:
            house.open, kept = alone, house.open
            let_in += await started(await house.client(), 1)
            house.open = kept
    assert let_in == 3


async def test_a_start_that_is_refused_takes_nothing_from_the_rate(house: House) -> None:
    client = await house.client()
    await client.quotas.set("starts_per_second", 1)
    await client.start(waits)
    for _ in range(50):
        assert await started(client, 1) == 0
    await asyncio.sleep(1)
    assert await started(client, 1) == 1


# -- payloads


async def test_a_large_input_is_refused_for_good(house: House) -> None:
    client = await house.client()
    await client.quotas.set("payload_bytes", 20)
    await client.start(echo, "x" * 16)
    for refused in (client.start(echo, "x" * 17), client.enqueue(note, "x" * 17)):
        with pytest.raises(QuotaExceeded, match="21 bytes of JSON, of 20: pass a reference") as caught:
            await refused
        assert (caught.value.quota, caught.value.used, caught.value.retry_after) == ("payload_bytes", 21, None)
    assert await open_runs(client) == 1


# -- all doors


async def test_a_batch_is_let_in_as_a_whole_or_not_at_all(house: House) -> None:
    client = await house.client()
    await client.quotas.set("open_runs", 5)
    calls = [note.call(str(n)) for n in range(5)]
    with pytest.raises(QuotaExceeded, match="these are 6: start fewer at once") as refused:
        await client.enqueue_many(calls, on_done=note.call("done"))
    assert refused.value.retry_after is None
    assert await open_runs(client) == 0
    await client.enqueue_many(calls[:4], on_done=note.call("done"))
    with pytest.raises(QuotaExceeded):
        await client.enqueue_many(calls[:1])
    await client.quotas.set("open_runs", 1)
    await client.enqueue_many([])
    assert await open_runs(client) == 5


async def test_a_batch_that_is_larger_than_the_burst_can_never_be_let_in(house: House) -> None:
    client = await house.client()
    await client.quotas.set("starts_per_second", 2)
    with pytest.raises(QuotaExceeded) as refused:
        await client.enqueue_many([note.call("a")] * 3)
    assert refused.value.retry_after is None
    await client.enqueue_many([note.call("a")] * 2)
    with pytest.raises(QuotaExceeded) as refused:
        await client.enqueue_many([note.call("a")] * 2)
    assert refused.value.retry_after == pytest.approx(1)


async def test_a_start_that_begins_nothing_is_not_refused(house: House) -> None:
    client = await house.client()
    await house.worker(client)
    handle = await client.start(waits, id="w")
    await (await client.start(echo, "x", id="closed")).result()
    await client.enqueue(note, "x", unique="u", delay=60)
    await client.quotas.set("open_runs", 1)
    assert (await client.start(waits, id="w")).id == "w"
    assert (await client.start(echo, "y", id="closed")).id == "closed"
    assert (await client.enqueue(note, "y", unique="u")).id == "note:u"
    with pytest.raises(AlreadyStarted):
        await client.start(waits, id="w", if_exists="reject")
    for refused in (
        client.start(echo, "x", id="closed", if_exists="restart"),
        client.start(waits, id="new"),
        client.enqueue(note, "x", unique="v"),
    ):
        with pytest.raises(QuotaExceeded):
            await refused
    await client.start(waits, id="w", signal=(go, None))
    await handle.result()
    with pytest.raises(QuotaExceeded):
        await client.start(waits, id="x", signal=(go, None))


async def test_work_that_has_begun_may_end_whatever_it_starts(house: House) -> None:
    client = await house.client()
    slow = Schedule("often", every(1), echo, "x")
    await house.worker(client, schedules=[slow])
    await client.quotas.set("open_runs", 1)
    await client.quotas.set("starts_per_second", 0.01)
    assert await (await client.start(parent, 3)).result() == 3
    await asyncio.sleep(100.5)
    assert await (await client.start(counts_down, 3)).result() == 0
    assert await client.count(workflow=echo) > 90
    with pytest.raises(QuotaExceeded):
        await client.start(echo, "x")
    assert (await client.schedules.trigger("often")) is not None


async def test_middleware_sees_that_a_start_is_refused(house: House) -> None:
    seen: list[str] = []

    class Looks(Middleware):
        async def start(self, starts: Any, proceed: Any) -> None:
            try:
                await proceed()
            except QuotaExceeded as error:
                seen.append(error.quota)
                raise

    client = await house.client("default", Looks())
    await client.quotas.set("open_runs", 1)
    await client.start(waits)
    with pytest.raises(QuotaExceeded):
        await client.start(waits)
    assert seen == ["open_runs"]


# -- whose quotas, and since when


async def test_another_namespace_starts_as_if_nothing_were(house: House) -> None:
    noisy, quiet = await house.client("noisy"), await house.client("quiet")
    store = house.counting("quiet")
    counted = await house.client_of(store)
    await noisy.quotas.set("open_runs", 5)
    await noisy.quotas.set("starts_per_second", 5)
    for _ in range(20):
        _, *others = await asyncio.gather(started(noisy, 50), started(quiet, 1), started(counted, 1))
        assert others == [1, 1]
        await asyncio.sleep(0.05)
    assert await open_runs(noisy) == 5
    assert await open_runs(quiet) == 40
    assert store.looks <= 3
    assert store.spends == 0


async def test_quotas_of_everybody_hold_for_those_without_their_own(house: House) -> None:
    everybody = await house.client("*")
    await everybody.quotas.set("open_runs", 2)
    a, b = await house.client("a"), await house.client("b")
    assert await started(a, 5) == 2
    assert (await a.quotas.list())[0].own is False
    await b.quotas.set("open_runs", None)
    assert await started(b, 5) == 5
    await b.quotas.clear("open_runs")
    assert await started(b, 5) == 0


async def test_a_client_learns_of_a_quota_within_a_second_of_starting_something(house: House) -> None:
    operator, client = await house.client(), await house.client()
    await started(client, 3)
    await operator.quotas.set("open_runs", 3)
    await asyncio.sleep(600)
    assert await started(client, 1) == 1  # it does not wait for the look that it asks for
    await asyncio.sleep(0.1)
    assert await started(client, 5) == 0
    await operator.quotas.clear("open_runs")
    await asyncio.sleep(1)
    assert await started(client, 5) == 5


async def test_a_client_that_is_opened_later_knows_it_from_the_first_start_on(house: House) -> None:
    await (await house.client()).quotas.set("open_runs", 1)
    late = await house.client_of(house.counting())
    assert await started(late, 3) == 1


async def test_a_client_without_quotas_looks_once_a_second_and_only_while_it_starts_things(house: House) -> None:
    store = house.counting()
    client = await house.client_of(store)
    assert store.looks == 1
    await asyncio.sleep(600)
    assert store.looks == 1
    for _ in range(100):
        await started(client, 3)
        await asyncio.sleep(0.05)
    assert 5 <= store.looks <= 7
    assert store.spends == 0


async def test_a_start_does_not_wait_for_the_first_look(house: House) -> None:
    store = house.counting()
    client = await house.client_of(store)
    await asyncio.sleep(2)
    store.opened = asyncio.Event()
    assert await started(client, 10) == 10
    assert store.looks == 2
    store.opened.set()


async def test_a_store_that_is_away_keeps_nobody_from_starting_without_quotas(house: House) -> None:
    store = house.counting()
    store.away = True
    client = await house.client_of(store)
    assert await started(client, 3) == 3
    await asyncio.sleep(2)
    assert await started(client, 3) == 3
    await asyncio.sleep(2)
    store.away = False
    await (await house.client()).quotas.set("open_runs", 6)
    await started(client, 1)
    await asyncio.sleep(0.1)
    assert await started(client, 3) == 0


async def test_where_the_quotas_cannot_be_read_any_more_a_start_says_so(house: House) -> None:
    store = house.counting()
    client = await house.client_of(store)
    await client.quotas.set("starts_per_second", 5)
    await started(client, 2)
    await asyncio.sleep(2)
    store.away = True
    with pytest.raises(StoreUnavailable):
        await client.start(waits)
    store.away = False
    assert await started(client, 10) == 5


async def test_a_change_is_known_at_once_to_the_client_that_made_it_also_while_it_looks(house: House) -> None:
    store = house.counting()
    client = await house.client_of(store)
    await asyncio.sleep(2)
    store.opened = asyncio.Event()
    await started(client, 1)
    await asyncio.sleep(0.1)
    assert store.looks == 2
    change = asyncio.ensure_future(client.quotas.set("open_runs", 1))
    await asyncio.sleep(0.1)
    store.opened.set()
    assert await change
    assert await started(client, 3) == 0


async def test_a_client_that_is_opened_again_goes_on_by_the_rate(house: House) -> None:
    store = house.counting()
    client = Batuta(backend_for(store, house.clock), store.open, store.close)
    for _ in range(3):
        async with client:
            await client.quotas.set("starts_per_second", 1, burst=2)
            assert await started(client, 3) == 2
            await asyncio.sleep(0.6)
            assert store.spends > 0
        await asyncio.sleep(2)


async def test_quotas_that_only_newer_versions_know_are_left_alone(house: House) -> None:
    store = house.counting()
    await store.set_quota(Stored(name="timers", limit=1))
    assert await started(await house.client_of(store), 3) == 3


async def test_a_client_that_cannot_be_opened_leaves_its_store_closed(house: House) -> None:
    closed: list[bool] = []

    class BrokenStore(CountingStore):
        async def quotas(self) -> list[QuotaView]:
            raise ZeroDivisionError

        async def close(self) -> None:
            closed.append(True)

    with pytest.raises(ZeroDivisionError):
        await house.client_of(BrokenStore(MemoryDatabase(house.clock)))
    assert closed == [True]


# -- what is told of them


async def test_quotas_are_listed_with_what_is_used(house: House) -> None:
    client = await house.client()
    assert await client.quotas.list() == []
    assert await client.quotas.set("open_runs", 10)
    assert not await client.quotas.set("open_runs", 10)
    await client.quotas.set("starts_per_second", 4, burst=8)
    await client.quotas.set("payload_bytes", None)
    await started(client, 6)
    await asyncio.sleep(1)
    await started(client, 1)
    assert await client.quotas.list() == [
        Quota(name="open_runs", limit=10, used=7),
        Quota(name="payload_bytes", limit=None),
        Quota(name="starts_per_second", limit=4, burst=8, used=2),
    ]
    assert await client.quotas.clear("open_runs")
    assert not await client.quotas.clear("open_runs")


async def test_changes_are_in_the_audit_log(house: House) -> None:
    client = await house.client()
    await client.quotas.set("open_runs", 10)
    await client.quotas.set("starts_per_second", 2.5, burst=9)
    await client.quotas.set("open_runs", None)
    await client.quotas.clear("open_runs")
    await client.quotas.clear("open_runs")
    found = [(act.verb, act.target, act.before, act.after) for act in (await client.audit()).rows]
    assert found == [
        ("clear quota", "open_runs", {"limit": None}, None),
        ("set quota", "open_runs", {"limit": 10}, {"limit": None}),
        ("set quota", "starts_per_second", None, {"limit": 2.5, "burst": 9}),
        ("set quota", "open_runs", None, {"limit": 10}),
    ]
    assert not (await client.verify_audit()).problem


@pytest.mark.parametrize(
    ("name", "limit", "burst"),
    [
        ("runs", 1, None),
        (None, 1, None),
        ("open_runs", 0, None),
        ("open_runs", -1, None),
        ("open_runs", 1.5, None),
        ("open_runs", True, None),
        ("open_runs", "10", None),
        ("open_runs", 10, 5),
        ("payload_bytes", 0, None),
        ("starts_per_second", 0, None),
        ("starts_per_second", -1, None),
        ("starts_per_second", float("nan"), None),
        ("starts_per_second", float("inf"), None),
        ("starts_per_second", True, None),
        ("starts_per_second", "5/s", None),
        ("starts_per_second", 5, 0),
        ("starts_per_second", 5, 1.5),
        ("starts_per_second", None, 5),
    ],
)
async def test_what_makes_no_sense_changes_nothing(house: House, name: Any, limit: Any, burst: Any) -> None:
    client = await house.client()
    with pytest.raises(InvalidInput):
        await client.quotas.set(name, limit, burst=burst)
    assert await client.quotas.list() == []
    with pytest.raises(InvalidInput, match="there are open_runs, payload_bytes, starts_per_second"):
        await client.quotas.clear("no_such")


# -- on every store


async def test_quotas_hold_on_every_store(arena: Arena) -> None:
    operator, client = await arena.client(), await arena.client()
    await arena.worker(client, waits)
    await operator.quotas.set("open_runs", 2)
    await operator.quotas.set("starts_per_second", 1000)
    await operator.quotas.set("payload_bytes", 100)

    async def is_refused() -> bool:
        try:
            handle = await client.start(waits)
        except QuotaExceeded:
            return True
        await handle.terminate("it was let in")
        return False

    handles = [await operator.start(waits, id=str(n)) for n in range(2)]
    with pytest.raises(QuotaExceeded):
        await operator.start(waits)
    await until(is_refused)
    assert {run.id for run in (await client.list(state="waiting")).runs} <= {"0", "1"}
    await handles[0].signal(go)
    await handles[0].result()

    async def is_let_in() -> bool:
        return await started(operator, 1) == 1

    await until(is_let_in)
    assert (await operator.quotas.list())[0].used == 2
