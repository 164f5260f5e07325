"""Updates: a request into a run, and its answer, on every store."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from batuta import (
    Batuta,
    Handle,
    InvalidInput,
    Query,
    RunClosed,
    RunFailed,
    RunState,
    Signal,
    UnknownRun,
    Update,
    UpdateFailed,
    UpdateInterrupted,
    UpdateRejected,
    activity,
    continue_as_new,
    handlers_done,
    info,
    now,
    random,
    workflow,
)
from batuta.engine.worker import waiters
from batuta.errors import NotSerialisable, TooLarge
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import parked, replay_all, world

executed: list[str] = []


@dataclass
class Item:
    sku: str
    count: int = 1


add_item = Update("add_item", int)
reset = Update("reset")
slowly = Update("slowly", str)
done = Signal("done")


class SoldOut(Exception):
    def __init__(self, sku: str) -> None:
        super().__init__(f"no {sku} left")
        self.sku = sku


@activity
async def reserve(sku: str) -> str:
    executed.append(sku)
    return f"reserved {sku}"


@workflow
async def basket() -> list[str]:
    items: list[str] = []

    def enough(item: Item) -> None:
        if item.count < 1:
            raise ValueError("at least one")
        if len(items) >= 3:
            raise ValueError(f"the basket is full, on {now():%A}, of {info().id}")

    @add_item.handle(validator=enough)
    async def add(item: Item) -> int:
        if item.sku == "rare":
            raise SoldOut(item.sku)
        items.append(await reserve(item.sku))
        return len(items)

    @reset.handle
    def forget() -> None:
        items.clear()

    await done.wait()
    return items


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()


# -- on every store


async def test_an_update_is_answered_by_the_run_wherever_it_is_asked(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, basket, reserve)
    handle = await client.start(basket, id="b")
    for count, asking in enumerate((handle, await other.get("b", basket)), start=1):
        assert await asking.update(add_item, Item(f"sku-{count}"), timeout=PATIENCE) == count
    assert await (await other.get("b")).update("add_item", {"sku": "sku-3"}) == 3
    await handle.signal(done)
    assert await handle.result(PATIENCE) == ["reserved sku-1", "reserved sku-2", "reserved sku-3"]
    await replay_all(arena.store(client), {"basket": basket})


async def test_an_answer_wakes_a_waiter_in_another_process(arena: Arena, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "_LOOK_AGAIN", 86_400.0)
    client, other = await arena.client(), await arena.client()
    await other.start(basket, id="b")
    await arena.worker(client, basket, reserve)
    handle: Handle[Any] = await other.get("b")
    for count in range(1, 4):
        assert await handle.update(add_item, Item("x"), timeout=PATIENCE) == count


async def test_a_rejected_update_leaves_no_trace_in_the_run(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, basket, reserve)
    handle = await client.start(basket, id="b")
    for asking in (handle, await other.get("b")):
        with pytest.raises(UpdateRejected, match="at least one") as caught:
            await asking.update(add_item, Item("x", 0), timeout=PATIENCE)
        assert isinstance(caught.value.__cause__, ValueError)
        assert (caught.value.name, caught.value.id) == ("add_item", "b")
    await until_state(handle, RunState.WAITING)
    assert [str(line.kind) for line in await handle.journal()] == ["started"]
    assert (await arena.store(client).load(handle.run_id)).messages == []


async def test_an_update_that_was_rejected_is_looked_at_anew_when_it_is_asked_again(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    worker = await arena.worker(client, basket, reserve)
    handle = await client.start(basket, id="b")
    asking = [handle, await other.get("b", basket)]
    for count in range(3):
        assert await handle.update(add_item, Item(f"{count}")) == count + 1
    for one in asking * 2:
        with pytest.raises(UpdateRejected, match="the basket is full"):
            await one.update(add_item, Item("late"), update_id="mine", timeout=PATIENCE)
    await until_state(handle, RunState.WAITING)
    with pytest.raises(UpdateRejected, match="the basket is full"):
        await asking[1].update(add_item, Item("late"), update_id="mine", timeout=PATIENCE)
    await handle.update(reset)
    for one in asking * 2:
        assert await one.update(add_item, Item("late"), update_id="mine", timeout=PATIENCE) == 1
    await worker.stop()
    assert await handle.update(add_item, Item("late"), update_id="mine", timeout=PATIENCE) == 1
    assert executed == ["0", "1", "2", "late"]
    await replay_all(arena.store(client), {"basket": basket})


async def test_the_answer_to_an_earlier_try_is_not_taken_for_that_of_this_one(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found between the moment from which an answer may come, and the sending."""
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, basket, reserve)
    handle: Handle[Any] = await client.start(basket, id="b")
    for count in range(3):
        assert await handle.update(add_item, Item(f"{count}")) == count + 1
    asking: Handle[Any] = await other.get("b")
    with pytest.raises(UpdateRejected):
        await asking.update(add_item, Item("late"), update_id="mine")
    await handle.update(reset)
    store = arena.store(other)
    send, looking = store.send, other._backend._waiters.answers  # type: ignore[attr-defined]

    async def after_a_look(*args: Any) -> bool:
        for one in list(looking.waiting):
            looking.look_for(one)
        await until(lambda: answered(looking.waiting))
        return await send(*args)

    monkeypatch.setattr(store, "send", after_a_look)
    assert await asking.update(add_item, Item("late"), update_id="mine", timeout=PATIENCE) == 1


async def answered(waiting: dict[Any, Any]) -> bool:
    return not waiting


async def test_an_error_of_the_handler_reaches_the_caller_and_the_run_goes_on(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, basket, reserve)
    handle = await other.start(basket)
    with pytest.raises(UpdateFailed, match="SoldOut: no rare left") as caught:
        await handle.update(add_item, Item("rare"), timeout=PATIENCE)
    assert isinstance(caught.value.__cause__, SoldOut)
    assert caught.value.__cause__.sku == "rare"
    await handle.signal(done)
    assert await handle.result(PATIENCE) == []


async def test_the_same_update_is_done_once_and_answered_whenever_it_is_asked(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, basket, reserve)
    handle = await client.start(basket, id="b")
    asking = [handle, await other.get("b"), handle]
    asked = [one.update(add_item, Item("x"), update_id="u1", timeout=PATIENCE) for one in asking]
    assert await asyncio.gather(*asked) == [1, 1, 1]
    assert executed == ["x"]
    await handle.signal(done)
    await handle.result(PATIENCE)
    assert await handle.update(add_item, Item("x"), update_id="u1") == 1, "also when the run is closed"
    with pytest.raises(RunClosed):
        await handle.update(add_item, Item("x"), update_id="u2")


async def test_updates_wait_for_a_worker(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    handle = await other.start(basket)
    with pytest.raises(TimeoutError):
        await handle.update(add_item, Item("x"), update_id="u1", timeout=0.05)
    asking = asyncio.create_task(handle.update(add_item, Item("x"), update_id="u1", timeout=PATIENCE))
    await arena.worker(client, basket, reserve)
    assert await asking == 1
    assert executed == ["x"]


async def test_an_update_is_sent_also_when_no_time_is_left_for_its_answer(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    started = await other.start(basket)

    async def both_done() -> bool:
        return executed == ["x", "x"]

    for handle in (await client.get_run(started.run_id), started):
        with pytest.raises(TimeoutError):
            await handle.update(add_item, Item("x"), update_id=f"u{handle is started}", timeout=0)
    await arena.worker(client, basket, reserve)
    await until(both_done)


async def test_a_run_that_ends_without_an_answer_says_so(arena: Arena) -> None:
    @workflow
    async def never_answers() -> None:
        @slowly.handle
        async def wait() -> str:
            await asyncio.sleep(3600)
            return "at last"

        await done.wait()

    client, other = await arena.client(), await arena.client()
    await arena.worker(client, never_answers)
    for end in (_complete, _terminate):
        handle = await client.start(never_answers)
        asking = [
            asyncio.create_task(one.update(slowly, timeout=PATIENCE)) for one in (handle, await other.get(handle.id))
        ]
        while len(await handle.journal()) < 3:
            await asyncio.sleep(0.01)
        await end(handle)
        for one in asking:
            with pytest.raises(RunClosed, match="ended before it answered update 'slowly'"):
                await one


async def _complete(handle: Handle[Any]) -> None:
    await handle.signal(done)


async def _terminate(handle: Handle[Any]) -> None:
    await handle.terminate()


async def test_a_closed_or_unknown_run_takes_no_updates(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, basket, reserve)
    handle = await client.start(basket)
    await handle.signal(done)
    await handle.result(PATIENCE)
    with pytest.raises(RunClosed):
        await handle.update(reset, timeout=PATIENCE)
    with pytest.raises(UnknownRun):
        await (await client.get("nobody")).update(reset)


async def test_many_updates_at_once_are_each_answered(arena: Arena) -> None:
    @workflow
    async def counts() -> int:
        total = 0

        @add_item.handle
        def add(number: int) -> int:
            nonlocal total
            total += number
            return total

        await done.wait()
        return total

    client, other = await arena.client(), await arena.client()
    await arena.worker(client, counts)
    handle = await client.start(counts, id="c")
    elsewhere = await other.get("c", counts)
    asked = [one.update(add_item, 1, timeout=PATIENCE) for one in (handle, elsewhere) for _ in range(20)]
    assert sorted(await asyncio.gather(*asked)) == list(range(1, 41))
    await handle.signal(done)
    assert await handle.result(PATIENCE) == 40


# -- in virtual time


async def test_an_update_without_a_handler_is_rejected_with_the_names_of_handled_ones() -> None:
    async with world(basket, reserve) as env:
        handle = await env.start(basket)
        with pytest.raises(UpdateRejected, match=r"it takes: add_item, reset"):
            await handle.update("no such thing")


async def test_arguments_that_do_not_fit_are_rejected() -> None:
    async with world(basket, reserve) as env:
        handle = await env.start(basket)
        for args in ((), ("x",), (Item("x"), 2), ({"sku": 3},), (None,)):
            with pytest.raises(UpdateRejected):
                await handle.update(add_item, *args)
        with pytest.raises(NotSerialisable):
            await handle.update(add_item, object())
        with pytest.raises(TooLarge):
            await handle.update(add_item, "x" * 3_000_000)
        odd: Any
        for odd in (Signal("add_item", int), None, ""):
            with pytest.raises(InvalidInput):
                await handle.update(odd)
        assert [str(line.kind) for line in await handle.journal()] == ["started"]


async def test_a_function_defines_the_arguments_and_the_answer_of_updates_and_queries() -> None:
    @Update
    async def put(item: Item, count: int = 1) -> str: ...  # type: ignore[empty-body]

    @Query
    def total(of: str) -> int: ...  # type: ignore[empty-body]

    @workflow
    async def shelf() -> None:
        counts: dict[str, int] = {}

        @put.handle
        def _(item: Item, count: int = 1) -> str:
            counts[item.sku] = item.count * count
            return f"{count} times {item.sku}"

        total.handle(lambda of: counts[of])
        await done.wait()

    async with world(shelf) as env:
        handle = await env.start(shelf)
        assert await handle.update(put, Item("tea", 2), 3) == "3 times tea"
        assert await handle.update("put", Item("cup")) == "1 times cup"
        assert await handle.query(total, "tea") == 6
        unfit: Any
        for unfit in ((), ("tea",), (Item("tea"), "two"), (Item("tea"), 1, 2)):
            with pytest.raises(InvalidInput, match="the input of update 'put'"):
                await handle.update(put, *unfit)
        with pytest.raises(InvalidInput, match="the input of query 'total'"):
            await handle.query(total, 5)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=r"update 'put' is not called: give it to `handle\.update`"):
        put(Item("tea"))
    made: Any = Update
    with pytest.raises(InvalidInput, match="give no other"):
        made(lambda: 1, int)


async def test_an_answer_that_does_not_fit_its_type_is_a_failure() -> None:
    @workflow
    async def mistaken() -> None:
        add_item.handle(lambda: "many")
        reset.handle(object)
        await done.wait()

    async with world(mistaken) as env:
        handle = await env.start(mistaken)
        with pytest.raises(UpdateFailed, match="does not fit"):
            await handle.update(add_item)
        with pytest.raises(UpdateFailed, match="no JSON form"):
            await handle.update(reset)
        await env.advance(10)
        assert (await handle.describe()).state is RunState.WAITING


async def test_the_validator_sees_what_the_turns_before_did() -> None:
    async with world(basket, reserve) as env:
        handle = await env.start(basket, id="b")
        asked = [handle.update(add_item, Item(f"{n}")) for n in range(3)]
        assert await asyncio.gather(*asked) == [1, 2, 3]
        with pytest.raises(UpdateRejected, match="the basket is full, on Tuesday, of b"):
            await handle.update(add_item, Item("4"))
        await handle.update(reset)
        assert await handle.update(add_item, Item("4")) == 1


def _draws() -> None:
    random().random()


def _starts_a_task() -> None:
    nap = asyncio.sleep(1)
    try:
        asyncio.create_task(nap)  # noqa: RUF006 - it must not even begin
    finally:
        nap.close()


def _waits() -> Any:
    return asyncio.sleep(1)


@pytest.mark.parametrize("validator", [_draws, _starts_a_task, _waits])
async def test_a_validator_that_does_more_than_look_parks_the_run(validator: Any) -> None:
    @workflow(name="validated")
    async def careless() -> None:
        reset.handle(lambda: None, validator=validator)
        await done.wait()

    @workflow(name="validated")
    async def careful() -> None:
        reset.handle(lambda: None, validator=lambda: None)
        await done.wait()

    async with world(careless) as env:
        handle = await env.start(careless)
        asking = asyncio.create_task(handle.update(reset))
        assert "the validator of update 'reset' may only look" in await parked(env, handle)
        await env.deploy([careful])
        await asking  # it was not lost
        await handle.signal(done)
        await handle.result()


async def test_a_validator_cannot_be_async() -> None:
    @workflow
    async def odd() -> None:
        async def check() -> None: ...

        reset.handle(lambda: None, validator=check)

    async with world(odd) as env:
        with pytest.raises(RunFailed, match="must be a plain function"):
            await (await env.start(odd)).result()


async def test_an_update_survives_a_crash_at_any_moment_of_its_handler() -> None:
    @activity
    async def slow(number: int) -> int:
        await asyncio.sleep(10)
        return number

    @workflow
    async def two_steps() -> str:
        @add_item.handle
        async def add(number: int) -> int:
            return await slow(number) + await slow(number)

        await done.wait()
        return "done"

    for moment in (0, 5, 15, 25):
        for always_replay in (False, True):
            async with world(two_steps, slow, always_replay=always_replay) as env:
                handle = await env.start(two_steps)
                asking = asyncio.create_task(handle.update(add_item, 4))
                await env.advance(moment)
                await env.crash()
                assert await asking == 8
                await handle.signal(done)
                assert await handle.result() == "done"


async def test_a_run_that_ends_in_the_turn_of_its_answer_gives_both() -> None:
    @workflow
    async def ends_when_told() -> str:
        told = asyncio.Event()

        @slowly.handle
        def tell() -> str:
            told.set()
            return "told"

        await told.wait()
        return "ended"

    async with world(ends_when_told) as env:
        handle = await env.start(ends_when_told)
        assert await handle.update(slowly) == "told"
        assert await handle.result() == "ended"


async def test_waiting_for_answers_in_vain_leaves_nothing_behind() -> None:
    async with world(basket, reserve) as env:
        handle = await env.start(basket)
        await env.settle()
        await env.worker.stop()
        for number in range(10):
            with pytest.raises(TimeoutError):
                await handle.update(add_item, Item("x"), update_id=str(number), timeout=1)
        backend: Any = env.client._backend
        assert backend._waiters.answers.waiting == {}
        await env.deploy()


async def test_the_client_tells_who_waits_when_it_is_closed() -> None:
    from batuta import connect
    from batuta.errors import WorkerError

    client: Batuta = connect("memory://")
    async with client:
        handle = await client.start(basket)
        asking = asyncio.create_task(handle.update(reset))
        await asyncio.sleep(0.01)
    with pytest.raises(WorkerError, match="closed while"):
        await asking


async def test_an_id_names_an_update_among_those_of_its_name() -> None:
    approve, reject = Update("approve", str), Update("reject", str)

    @workflow
    async def decides() -> None:
        approve.handle(lambda: "approved")
        reject.handle(lambda: "rejected")
        await asyncio.sleep(100)

    async with world(decides) as env:
        handle = await env.start(decides)
        assert await handle.update(approve, update_id="order-1") == "approved"
        assert await handle.update(reject, update_id="order-1") == "rejected"
        assert await handle.update(approve, update_id="order-1") == "approved"


async def test_an_update_that_a_run_leaves_unanswered_when_it_continues_says_so() -> None:
    go_on, slow = Signal("go_on"), Update("slow")

    @workflow
    async def continues(times: int) -> int:
        slow.handle(lambda: asyncio.sleep(100))
        if times:
            await go_on.wait()
            continue_as_new(times - 1)
        return times

    async with world(continues) as env:
        handle = await env.start(continues, 1)
        asked = asyncio.create_task(handle.update(slow))
        await env.advance(1)
        await handle.signal(go_on)
        with pytest.raises(UpdateInterrupted, match=r"'slow' .* continued as new before it answered"):
            await asked
        assert await handle.result() == 0


async def test_an_update_that_was_interrupted_is_not_done_twice_under_its_id_but_under_another() -> None:
    begun: list[str] = []
    go_on, slow, stop = Signal("go_on"), Update("slow", str), Signal("stop")

    @activity
    async def begin(said: str) -> None:
        begun.append(said)

    @workflow
    async def continues(times: int) -> str:
        @slow.handle
        async def handle_it(said: str) -> str:
            await begin(said)
            if times:
                await asyncio.sleep(100)
            return said.upper()

        if times:
            await go_on.wait()
            continue_as_new(times - 1)
        await stop.wait()
        return "done"

    async with world(continues, begin) as env:
        handle = await env.start(continues, 1)
        asked = asyncio.create_task(handle.update(slow, "one", update_id="1"))
        await env.advance(1)
        await handle.signal(go_on)
        with pytest.raises(UpdateInterrupted):
            await asked
        with pytest.raises(UpdateInterrupted, match="another id"):
            await handle.update(slow, "one", update_id="1")
        assert begun == ["one"]
        assert await handle.update(slow, "one", update_id="2") == "ONE"
        assert begun == ["one", "one"]
        await handle.signal(stop)
        await handle.result()


async def test_a_run_can_wait_for_its_handlers_before_it_continues_or_ends() -> None:
    handled: list[int] = []
    go_on, note, slow = Signal("go_on"), Signal("note", int), Update("slow", int)

    @workflow
    async def patient(times: int) -> int:
        @slow.handle
        async def answer(seconds: int) -> int:
            await asyncio.sleep(seconds)
            return seconds

        @note.handle
        async def take(number: int) -> None:
            await asyncio.sleep(number)
            handled.append(number)

        await handlers_done()
        await go_on.wait()
        await handlers_done()
        if times:
            continue_as_new(times - 1)
        return info().entries

    async with world(patient) as env:
        handle = await env.start(patient, 1)
        for seconds in (10, 20):
            asked = asyncio.create_task(handle.update(slow, seconds))
            await handle.signal(note, seconds + 5)
            await env.advance(1)
            await handle.signal(go_on)
            await env.crash()
            assert await asked == seconds
        await handle.result()
    assert handled[-1] == 25
    assert set(handled) == {15, 25}
