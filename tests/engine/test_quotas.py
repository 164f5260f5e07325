"""A namespace starts as much as its quotas allow."""

import asyncio
from typing import Any

import pytest

from batuta import AlreadyStarted, Middleware, QuotaExceeded, Schedule, every
from tests.engine.quotakit import House, counts_down, echo, go, note, open_runs, parent, started, waits

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


async def test_ended_runs_free_the_quota(house: House) -> None:
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
        async with house.unopened(house.counting()) as alone:
            let_in += await started(alone, 1)
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
    await (await client.enqueue(note, "x", unique="done", unique_for=60)).result()
    await client.quotas.set("open_runs", 1)
    assert (await client.start(waits, id="w")).id == "w"
    assert (await client.start(echo, "y", id="closed")).id == "closed"
    assert (await client.enqueue(note, "y", unique="u")).id == "note:u"
    assert await (await client.enqueue(note, "y", unique="done", unique_for=60)).result() == "x"
    with pytest.raises(AlreadyStarted):
        await client.start(waits, id="w", if_exists="reject")
    for refused in (
        client.start(echo, "x", id="closed", if_exists="restart"),
        client.start(waits, id="new"),
        client.enqueue(note, "x", unique="v"),
        client.enqueue(note, "x", unique="done"),
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
