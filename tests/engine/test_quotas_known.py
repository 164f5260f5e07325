"""Whose quotas hold, since when a client knows of them, and what is told of them."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from batuta import InvalidInput, Quota, QuotaExceeded, connect
from batuta.errors import StoreUnavailable
from batuta.stores.memory import MemoryDatabase
from tests.engine.arena import Arena, until
from tests.engine.quotakit import CountingStore, House, go, open_runs, started, waits

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
    await b.quotas.delete("open_runs")
    assert await started(b, 5) == 0


async def test_a_client_learns_of_a_quota_within_a_second_of_starting_something(house: House) -> None:
    operator, client = await house.client(), await house.client()
    await started(client, 3)
    await operator.quotas.set("open_runs", 3)
    await asyncio.sleep(600)
    assert await started(client, 1) == 1  # it does not wait for the look that it asks for
    await asyncio.sleep(0.1)
    assert await started(client, 5) == 0
    await operator.quotas.delete("open_runs")
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


async def test_an_unreachable_store_does_not_stop_starts_without_quotas(house: House) -> None:
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
    client = house.unopened(store)
    for _ in range(3):
        async with client:
            await client.quotas.set("starts_per_second", 1, burst=2)
            assert await started(client, 3) == 2
            await asyncio.sleep(0.6)
            assert store.spends > 0
        await asyncio.sleep(2)


async def test_quotas_that_only_newer_versions_know_are_left_alone(house: House) -> None:
    store = house.counting()
    await store.set_quota(Quota(name="timers", limit=1))
    assert await started(await house.client_of(store), 3) == 3


async def test_a_client_that_cannot_be_opened_leaves_its_store_closed(house: House) -> None:
    closed: list[bool] = []

    class BrokenStore(CountingStore):
        async def quotas(self) -> list[Quota]:
            raise ZeroDivisionError

        async def close(self) -> None:
            closed.append(True)

    with pytest.raises(ZeroDivisionError):
        await house.client_of(BrokenStore(MemoryDatabase(house.clock)))
    assert closed == [True]


async def test_a_database_that_does_not_answer_holds_up_no_end_of_a_client(house: House) -> None:
    store = house.counting()
    client = await house.client_of(store)
    await asyncio.sleep(1.1)
    store.opened = asyncio.Event()
    await client.start(waits)  # it does not wait for the look
    begun = house.clock.monotonic()
    await client.__aexit__(None, None, None)
    assert house.clock.monotonic() - begun < 2
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "batuta-quotas"]


@pytest.mark.parametrize("seconds", [0.0, 0.7])
async def test_a_client_that_never_learns_the_outcome_does_not_count_the_start(house: House, seconds: float) -> None:
    store = house.counting()
    client = await house.client_of(store)
    await client.quotas.set("starts_per_second", 5)
    store.opened = asyncio.Event()
    await client.start(waits)
    await asyncio.sleep(seconds)
    begun = house.clock.monotonic()
    await client.__aexit__(None, None, None)
    assert house.clock.monotonic() - begun < 2
    await asyncio.sleep(0)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "batuta-quotas"]


async def test_a_client_that_is_given_up_while_it_opens_leaves_nothing_behind(house: House) -> None:
    store = house.counting()
    store.opened = asyncio.Event()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await house.client_of(store)
    assert not [task for task in asyncio.all_tasks() if task.get_name() == "batuta-quotas"]


async def test_a_start_that_waits_for_a_look_is_told_that_its_client_was_closed(house: House) -> None:
    store = house.counting()
    client = await house.client_of(store)
    await client.quotas.set("open_runs", 5)
    await asyncio.sleep(1.1)
    store.opened = asyncio.Event()
    starting = asyncio.ensure_future(client.start(waits))
    await asyncio.sleep(0)
    await client.__aexit__(None, None, None)
    with pytest.raises(StoreUnavailable, match="closed"):
        await starting


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
    assert await client.quotas.delete("open_runs")
    assert not await client.quotas.delete("open_runs")


async def test_changes_are_in_the_audit_log(house: House) -> None:
    client = await house.client()
    await client.quotas.set("open_runs", 10)
    await client.quotas.set("starts_per_second", 2.5, burst=9)
    await client.quotas.set("open_runs", None)
    await client.quotas.delete("open_runs")
    await client.quotas.delete("open_runs")
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
        pytest.param("starts_per_second", 10**400, None, id="starts_per_second-huge"),
        ("starts_per_second", True, None),
        ("starts_per_second", "5/s", None),
        ("starts_per_second", 5, 0),
        ("starts_per_second", 5, 1.5),
        ("starts_per_second", None, 5),
    ],
)
async def test_an_invalid_request_changes_nothing(house: House, name: Any, limit: Any, burst: Any) -> None:
    client = await house.client()
    with pytest.raises(InvalidInput):
        await client.quotas.set(name, limit, burst=burst)
    assert await client.quotas.list() == []
    with pytest.raises(InvalidInput, match="there are open_runs, payload_bytes, starts_per_second"):
        await client.quotas.delete("no_such")


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


async def test_starts_from_other_event_loops_go_by_the_quotas_and_put_them_to_no_sleep(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/quotas.db"
    async with connect(url) as client, connect(url) as operator:

        async def has_to_look() -> bool:
            return client._backend._guard.awake  # type: ignore[attr-defined]  # of the native backend

        async def is_refused() -> bool:
            return await asyncio.to_thread(asyncio.run, started(client, 1)) == 0

        await until(has_to_look)
        assert not await is_refused()
        await operator.quotas.set("open_runs", 1)
        await until(is_refused)
        assert await started(client, 1) == 0
        assert await asyncio.to_thread(asyncio.run, client.quotas.delete("open_runs"))
        assert await started(client, 1) == 1
