"""Signals: sent once, received once, in order, on every store."""

import asyncio
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from batuta import InvalidInput, RunClosed, RunFailed, RunState, Signal, UnknownRun, activity, publish, workflow
from batuta.errors import NotSerialisable, TooLarge
from batuta.ids import RunId
from batuta.journal.records import PAGE_BYTES, Claim, Message, Unread
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import commands, replay_all, world

approve = Signal("approve", bool)
item = Signal("item", int)
done = Signal("done")


@activity
async def double(number: int) -> int:
    return number * 2


@workflow
async def waits_for_approval(seconds: float | None = None) -> str:
    try:
        return "approved" if await approve.wait(timeout=seconds) else "declined"
    except TimeoutError:
        return "nobody answered"


@workflow
async def adds_up(until_sum: int) -> list[int]:
    received: list[int] = []
    async for number in item:
        received.append(number)
        if sum(received) >= until_sum:
            break
    return received


@workflow
async def handles() -> list[Any]:
    received: list[Any] = []

    @item.handle
    async def take(number: int) -> None:
        received.append(await double(number))

    await done.wait()
    return received


@workflow
async def handles_late() -> list[int]:
    received: list[int] = []
    await double(1)
    item.handle(received.append)
    await done.wait()
    return received


@workflow
async def works_first() -> list[int]:
    await double(1)
    return [await item.wait(), await item.wait()]


long = Signal("long", str)


@workflow
async def reads_on(count: int) -> list[str]:
    """The first letter of each long signal."""
    return [(await long.wait())[0] for _ in range(count)]


@workflow
async def ends_at_once(gate: str) -> int:
    """How many it was sent before its end."""
    received: list[str] = []
    long.handle(received.append)
    await pause(gate)
    return len(received)


@activity
async def pause(gate: str) -> None:
    await gates.setdefault(gate, asyncio.Event()).wait()


gates: dict[str, asyncio.Event] = {}

EVERYTHING = (waits_for_approval, adds_up, handles, handles_late, works_first, double)
BY_NAME = {one.name: one for one in (waits_for_approval, adds_up, handles, handles_late, works_first)}


# -- on every store


async def test_a_run_waits_for_a_signal_outside_memory_and_is_woken_by_it(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(waits_for_approval, id="x")
    await until_state(handle, RunState.WAITING)
    assert (await handle.describe()).wake_at is None
    await (await other.get("x")).signal(approve, True)
    assert await handle.result(PATIENCE) == "approved"
    await replay_all(arena.store(client), BY_NAME)


async def test_signals_are_received_in_the_order_in_which_they_were_sent(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    handle = await other.start(adds_up, 55)
    for number in range(1, 6):
        await handle.signal(item, number)
    await arena.worker(client, *EVERYTHING)
    for number in range(6, 11):
        await handle.signal(item, number)
    assert await handle.result(PATIENCE) == list(range(1, 11))
    await replay_all(arena.store(client), BY_NAME)


async def test_long_signals_are_read_in_pages_in_their_order_and_once(
    arena: Arena, monkeypatch: pytest.MonkeyPatch
) -> None:
    client, other = await arena.client(), await arena.client()
    store = arena.store(client)
    pages: list[list[int]] = []
    unread, claim = store.unread, store.claim

    def note(messages: Sequence[Message]) -> None:
        pages.append([len(one.body) for one in messages])

    async def unread_noted(run_ids: Sequence[RunId], *, after: int = 0) -> dict[RunId, Unread]:
        found = await unread(run_ids, after=after)
        for one in found.values():
            note(one.messages)
        return found

    async def claim_noted(*given: Any) -> Claim:
        found = await claim(*given)
        for stored in found.stored_runs:
            note(stored.messages)
        return found

    monkeypatch.setattr(store, "unread", unread_noted)
    monkeypatch.setattr(store, "claim", claim_noted)
    handle = await other.start(reads_on, 16)
    for letter in "abcdefgh":
        await handle.signal(long, letter * 900_000)
    worker = await arena.worker(client, reads_on)
    for letter in "ijklmnop":
        await handle.signal(long, letter * 900_000)
    assert await handle.result(PATIENCE) == list("abcdefghijklmnop")
    assert max(map(sum, pages)) <= PAGE_BYTES + 1_000_000
    assert worker.session is not None
    await replay_all(store, {reads_on.name: reads_on})


async def test_a_run_does_not_end_before_it_has_read_every_page(arena: Arena) -> None:
    gates.clear()
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, ends_at_once, pause)
    handle = await client.start(ends_at_once, "g")
    await until_state(handle, RunState.RUNNING)
    for letter in "abcdefgh":
        await (await other.get(handle.id)).signal(long, letter * 900_000)
    gates.setdefault("g", asyncio.Event()).set()
    assert await handle.result(PATIENCE) == 8
    await replay_all(arena.store(client), {ends_at_once.name: ends_at_once})


async def test_a_signal_with_an_id_that_was_sent_before_is_not_delivered_again(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(adds_up, 3)
    for _ in range(5):
        await handle.signal(item, 1, message_id="the first")
    await until_state(handle, RunState.WAITING)
    await handle.signal(item, 1, message_id="the first")
    await handle.signal(item, 2, message_id="the second")
    assert await handle.result(PATIENCE) == [1, 2]


async def test_signals_wait_for_a_run_that_does_not_listen_yet(arena: Arena) -> None:
    client = await arena.client()
    handle = await client.start(works_first)
    await handle.signal(item, 1)
    await handle.signal(item, 2)
    await arena.worker(client, *EVERYTHING)
    assert await handle.result(PATIENCE) == [1, 2]


async def test_a_handler_receives_every_signal_and_may_call_activities(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await other.start(handles)
    for number in range(5):
        await handle.signal("item", number)
    await until(lambda: _entries(handle, 11))
    await handle.signal(done)
    assert await handle.result(PATIENCE) == [0, 2, 4, 6, 8]
    await replay_all(arena.store(client), BY_NAME)


async def _entries(handle: Any, count: int) -> bool:
    return bool((await handle.describe()).entries >= count)


async def test_a_start_can_bring_a_signal_to_a_run_that_is_new_or_not(arena: Arena) -> None:
    client, other = await arena.client(), await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await other.start(adds_up, 6, id="sum", signal=(item, 1))
    again = await client.start(adds_up, 6, id="sum", signal=("item", 2))
    for _ in range(2):
        await other.start(adds_up, 6, id="sum", signal=(item, 3, "the last"))
    assert again.run_id == handle.run_id
    assert sorted(await handle.result(PATIENCE)) == [1, 2, 3]
    with pytest.raises(RunClosed):
        await client.start(adds_up, 6, id="sum", signal=(item, 4))
    fresh = await client.start(adds_up, 4, id="sum", signal=(item, 4), if_exists="restart")
    assert await fresh.result(PATIENCE) == [4]


async def test_a_closed_or_unknown_run_takes_no_signals(arena: Arena) -> None:
    client = await arena.client()
    await arena.worker(client, *EVERYTHING)
    handle = await client.start(waits_for_approval, 0.01)
    assert await handle.result(PATIENCE) == "nobody answered"
    with pytest.raises(RunClosed):
        await handle.signal(approve, True)
    with pytest.raises(UnknownRun):
        await (await client.get("nobody")).signal(approve, True)


# -- in virtual time


async def test_a_run_that_completes_without_all_signals_says_how_many(caplog: pytest.LogCaptureFixture) -> None:
    async with world(adds_up) as env:
        await env.client.pause_queue("default")
        handle = await env.start(adds_up, 3, signal=(item, 1))
        for number in (2, 3, 4):
            await handle.signal(item, number)
        await handle.signal(done)
        await env.client.resume_queue("default")
        assert await handle.result() == [1, 2]
        await env.settle()
    said = [record.getMessage() for record in caplog.records if "has not received" in record.msg]
    assert said == [f"run {handle.id} completed, and its code has not received all signals: 2 of 'item', 1 of 'done'"]


async def test_waiting_for_a_signal_can_have_an_end() -> None:
    async with world(waits_for_approval) as env:
        handle = await env.start(waits_for_approval, 3600)
        await env.advance(3599)
        assert (await handle.describe()).state is RunState.WAITING
        begun = env.now
        assert await handle.result() == "nobody answered"
        assert (env.now - begun).total_seconds() >= 1


async def test_a_signal_that_is_there_already_needs_no_timer() -> None:
    @workflow
    async def looks_late() -> bool:
        await double(1)
        return await approve.wait(timeout=60)

    async with world(looks_late, double) as env:
        handle = await env.start(looks_late, signal=(approve, True))
        assert await handle.result()
        assert await commands(handle) == ["activity double", "complete"]


async def test_a_handler_gets_what_came_before_it_was_there() -> None:
    async with world(handles_late, double) as env:
        handle = await env.start(handles_late, signal=(item, 7))
        await env.settle()
        await handle.signal(item, 8)
        await handle.signal(done)
        assert await handle.result() == [7, 8]


async def test_several_may_wait_and_each_signal_reaches_one() -> None:
    @workflow
    async def several() -> list[int]:
        return await asyncio.gather(*(item.wait() for _ in range(3)))

    async with world(several) as env:
        handle = await env.start(several)
        for number in (1, 2, 3):
            await handle.signal(item, number)
        assert await handle.result() == [1, 2, 3]


async def test_a_signal_that_comes_as_its_receiver_gives_up_goes_to_the_next() -> None:
    @workflow
    async def gives_up() -> list[int]:
        first, second = asyncio.create_task(item.wait()), asyncio.create_task(item.wait())

        @done.handle
        async def give_up(_: None) -> None:
            number = await item.wait()  # the third in line
            received.append(number)

        received: list[int] = []
        got = await first
        second.cancel()
        await asyncio.sleep(1)
        return [got, *received]

    async with world(gives_up) as env:
        handle = await env.start(gives_up, signal=(done, None))
        await handle.signal(item, 5)
        await handle.signal(item, 6)
        assert await handle.result() == [5, 6]


async def test_a_value_that_does_not_fit_is_passed_over_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    async with world(waits_for_approval) as env:
        handle = await env.start(waits_for_approval)
        await handle.signal("approve", "certainly")
        await handle.signal("approve", 2)
        await env.advance(10)
        assert (await handle.describe()).state is RunState.WAITING
        assert await handle.published("batuta.misfits", dict[str, int]) == {"approve": 2}
        assert "passes over a signal: the value of signal 'approve' does not fit" in caplog.text
        await handle.signal(approve, True)
        assert await handle.result() == "approved"
        assert [line.body.name for line in await handle.journal()] == ["", "approve", "approve", "approve"]


async def test_values_that_cannot_be_sent_are_refused_by_the_client() -> None:
    async with world(waits_for_approval) as env:
        handle = await env.start(waits_for_approval)
        signal: Any
        for signal, value, error in (
            (approve, "yes", InvalidInput),
            (approve, object(), NotSerialisable),
            ("approve", object(), NotSerialisable),
            ("approve", "x" * 3_000_000, TooLarge),
            ("", True, InvalidInput),
            (7, True, InvalidInput),
        ):
            with pytest.raises(error):
                await handle.signal(signal, value)
        for message_id in ("", f"cancel:{handle.run_id}", f"start:{handle.run_id}"):  # it would be cancelled in vain
            with pytest.raises(InvalidInput, match="message id"):
                await handle.signal(approve, True, message_id=message_id)
        odd: Any
        for odd in (approve, (approve,), (approve, True, "id", 4), (approve, "yes")):
            with pytest.raises(InvalidInput):
                await env.start(waits_for_approval, signal=odd)
        assert len(await handle.journal()) == 1


async def test_an_error_in_a_handler_fails_the_run() -> None:
    @workflow
    async def fragile() -> None:
        @item.handle
        def refuse(number: int) -> None:
            raise ValueError(f"no {number} please")

        await done.wait()

    async with world(fragile) as env:
        handle = await env.start(fragile)
        await handle.signal(item, 13)
        with pytest.raises(RunFailed, match="no 13 please") as caught:
            await handle.result()
        assert isinstance(caught.value.__cause__, ValueError)


async def test_a_generator_exit_in_a_handler_fails_the_run() -> None:
    @workflow
    async def fragile() -> None:
        @item.handle
        def refuse(number: int) -> None:
            raise GeneratorExit(f"no {number} please")

        await done.wait()

    async with world(fragile) as env:
        handle = await env.start(fragile)
        await handle.signal(item, 13)
        with pytest.raises(RunFailed, match="no 13 please"):
            await handle.result()


async def test_a_handler_that_is_cancelled_before_its_end_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    @workflow
    async def fragile() -> str:
        never = asyncio.get_running_loop().create_future()

        @item.handle
        async def waits(number: int) -> None:
            never.cancel()
            await never

        await done.wait()
        return "done"

    async with world(fragile) as env:
        handle = await env.start(fragile)
        await handle.signal(item, 13)
        await handle.signal(done, None)
        assert await handle.result() == "done"
    told = [one.getMessage() for one in caplog.records if "cancelled before" in one.getMessage()]
    assert told == [f"the handler of signal 'item' of run {handle.id} was cancelled before it came to its end"]


async def test_a_run_with_a_handler_waits_for_something() -> None:
    @workflow
    async def waits_for_an_event() -> str:
        event = asyncio.Event()
        done.handle(lambda _: event.set())
        await event.wait()
        return "set"

    async with world(waits_for_an_event) as env:
        handle = await env.start(waits_for_an_event)
        await env.settle()
        assert (await handle.describe()).state is RunState.WAITING
        await handle.signal(done)
        assert await handle.result() == "set"


async def test_waiting_for_what_a_handler_receives_is_an_error() -> None:
    @workflow
    async def confused() -> None:
        item.handle(print)
        await item.wait()

    async with world(confused) as env:
        with pytest.raises(RunFailed, match="has a handler"):
            await (await env.start(confused)).result()


async def test_signals_survive_crashes_and_always_replay() -> None:
    for always_replay in (False, True):
        async with world(handles, double, always_replay=always_replay) as env:
            handle = await env.start(handles)
            for number in range(6):
                await handle.signal(item, number)
                if number % 2:
                    await env.settle()
                await env.crash()
            await env.settle()
            await handle.signal(done)
            assert await handle.result() == [0, 2, 4, 6, 8, 10]


async def test_a_hundred_signals_at_once_cost_one_claim() -> None:
    async with world(adds_up) as env:
        handle = await env.start(adds_up, 100)
        await env.settle()
        for _ in range(100):
            await handle.signal(item, 1)
        assert len(await handle.result()) == 100
        assert len(set(await env.store.epochs(handle.run_id))) < 10


async def test_outside_a_workflow_a_signal_can_only_be_sent() -> None:
    from batuta.errors import WorkerError

    for use in (item.wait(), item.__anext__()):
        with pytest.raises(WorkerError, match="outside a workflow"):
            await use
    with pytest.raises(WorkerError):
        item.handle(print)
    with pytest.raises(WorkerError):
        publish("x", 1)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\nb", 7])
def test_a_signal_needs_a_name_that_can_be_printed(name: Any) -> None:
    with pytest.raises(InvalidInput):
        Signal(name, int)


def test_a_signal_needs_a_type_that_has_a_json_form() -> None:
    with pytest.raises(NotSerialisable):
        Signal("x", asyncio.Event)


async def test_an_id_names_a_signal_among_those_of_its_name() -> None:
    paid, shipped = Signal("paid", int), Signal("shipped", int)

    @workflow
    async def follows() -> list[int]:
        return [await paid.wait(), await shipped.wait()]

    async with world(follows) as env:
        handle = await env.start(follows)
        for signal, value in ((paid, 1), (paid, 2), (shipped, 3)):
            await handle.signal(signal, value, message_id="order-1")
        assert await handle.result() == [1, 3]


async def test_names_with_colons_do_not_meet_other_names() -> None:
    long, short = Signal("paid:part", int), Signal("paid", int)

    @workflow
    async def follows() -> list[int]:
        return [await long.wait(), await short.wait()]

    async with world(follows) as env:
        handle = await env.start(follows)
        await handle.signal(long, 1, message_id="1")
        await handle.signal(short, 2, message_id="part:1")
        assert await handle.result() == [1, 2]


async def test_a_handler_that_cannot_take_the_value_is_refused_when_it_is_given() -> None:
    go, amount = Signal("go"), Signal("amount", int)

    def two(a: object, b: object) -> None: ...
    def named(*, a: object) -> None: ...

    @workflow
    async def careless() -> str:
        with pytest.raises(InvalidInput, match=r"<lambda>' of signal 'amount' must take one argument"):
            amount.handle(lambda: None)  # type: ignore[misc, arg-type]  # that is what is tested
        for signal, handler in itertools.product((go, amount), (two, named)):
            with pytest.raises(InvalidInput, match="must take"):
                signal.handle(handler)  # type: ignore[attr-defined]  # the same
        return "refused"

    async with world(careless) as env:
        assert await env.run(careless) == "refused"


async def test_a_handler_of_a_signal_without_a_value_may_do_without_an_argument() -> None:
    go = Signal("go")

    class Counter:
        def __init__(self) -> None:
            self.count = 0

        async def more(self) -> None:
            self.count += 1

        def more_of(self, value: None) -> None:
            assert value is None
            self.count += 10

        def perhaps(self, *values: None) -> None:
            assert values == (None,)
            self.count += 100

    @workflow
    async def counts() -> list[int]:
        counters = [Counter(), Counter(), Counter()]
        handlers: list[Any] = [counters[0].more, counters[1].more_of, counters[2].perhaps]
        for handler in handlers:
            go.handle(handler)
            await Signal("next").wait()
        return [counter.count for counter in counters]

    async with world(counts) as env:
        handle = await env.start(counts)
        for _ in range(3):
            await handle.signal(go)
            await handle.signal(go)
            await handle.signal("next")
        assert await handle.result() == [2, 20, 200]


async def test_a_partial_or_decorated_handler_is_given_what_it_takes() -> None:
    go, add = Signal("go"), Signal("add", int)

    def noticed(fn: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(fn)
        def wrapper(*args: Any) -> Any:
            return fn(*args)

        return wrapper

    @workflow
    async def counts() -> list[Any]:
        got: list[Any] = []

        def nothing() -> None:
            got.append("nothing")

        for handler in (functools.partial(got.append, "partial"), noticed(nothing), noticed(got.append), got.clear):
            go.handle(handler)
            await Signal("next").wait()
        add.handle(functools.partial(lambda word, value: got.append((word, value)), "added"))
        await Signal("next").wait()
        misfits: list[Any] = [noticed(nothing), functools.partial(nothing), got.clear]
        for refused in misfits:
            with pytest.raises(InvalidInput, match="of signal 'add' must take one argument, the signal's value"):
                add.handle(refused)
        return got

    async with world(counts) as env:
        handle = await env.start(counts)
        for _ in range(4):
            await handle.signal(go)
            await handle.signal("next")
        await handle.signal(add, 5)
        await handle.signal("next")
        assert await handle.result() == [["added", 5]]
