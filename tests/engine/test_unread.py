"""A message that comes just as its run is about to close: the run sees it first."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import pytest
from msgspec import Raw

from batuta import (
    Handle,
    Retry,
    RunCancelled,
    RunFailed,
    RunState,
    Signal,
    Update,
    Workflow,
    activity,
    continue_as_new,
    handlers_done,
    job,
    publish,
    workflow,
)
from batuta.journal.records import PAGE_BYTES, Change, Message, MessageKind, Refusal, Verdict
from batuta.journal.states import CLOSED
from batuta.stores.contract import rules
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.kit import replay_all

note = Signal("note", int)
stop = Signal("stop", int)
ask = Update("ask", int)

executed: list[int] = []


@pytest.fixture(autouse=True)
def _afresh() -> None:
    executed.clear()


@pytest.fixture(autouse=True, params=[1, 2, PAGE_BYTES], ids="one at a time,two at a time,all at once".split(","))
def _pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bytes of messages that are read together. Signals of these tests have one byte."""
    monkeypatch.setattr(rules, "PAGE_BYTES", request.param)


@activity
async def act(number: int) -> int:
    executed.append(number)
    await asyncio.sleep(1)
    return number


@activity
def act_in_a_thread(number: int) -> int:
    executed.append(number)
    return number


def _positive(number: int) -> None:
    if number < 0:
        raise ValueError("too low")


@workflow
async def takes_notes() -> list[int]:
    notes: list[int] = []
    note.handle(notes.append)

    @ask.handle(validator=_positive)
    def answer(number: int) -> int:
        notes.append(number)
        return number + 1

    await act(1)
    await act(2)
    return notes


@workflow
async def stops() -> int:
    return await stop.wait()


@workflow
async def handles_slowly() -> list[int]:
    notes: list[int] = []

    @note.handle
    async def take(number: int) -> None:
        notes.append(await act(number))

    await act(1)
    return notes


@workflow
async def at_once() -> str:
    return "done"


@workflow
async def waits_for_handlers(left: int = 0) -> list[int]:
    """Ends in its first turn, unless a note is there."""
    notes: list[int] = []

    @note.handle
    async def take(number: int) -> None:
        notes.append(await act(number))

    await handlers_done()
    if left:
        continue_as_new(left - 1)
    return notes


@workflow
async def busy_at_its_end() -> str:
    """Ends while an activity is in flight, unless it is told to stay."""
    stay = asyncio.Event()
    note.handle(lambda _: stay.set())
    other = asyncio.create_task(act(9))
    await asyncio.sleep(0.5)
    await asyncio.sleep(0)
    return f"stayed for {await other}" if stay.is_set() else "left"


@workflow
async def fails() -> None:
    note.handle(lambda _: None)
    await act(1)
    raise ValueError("as planned")


@workflow
async def has_a_careless_validator() -> int:
    ask.handle(lambda number: number, validator=lambda number: publish("number", number))
    return await act_in_a_thread(1)


@workflow
async def tidies() -> None:
    try:
        await act(1)
    finally:
        await act(2)


@workflow
async def swallows() -> str:
    try:
        await act(1)
    except asyncio.CancelledError:
        return "not so fast"
    return "done"


@workflow
async def goes_on(left: int = 1) -> str:
    await act(left)
    if left:
        continue_as_new(left - 1)
    return "done"


@workflow
async def times_out() -> str:
    try:
        async with asyncio.timeout(5):
            await asyncio.sleep(100)
    except TimeoutError:
        return "timed out"
    return "done"


@workflow
async def gathers() -> list[int]:
    return list(await asyncio.gather(act(1), act(2)))


async def _waiting() -> list[int]:
    notes: list[int] = []
    with suppress(TimeoutError):
        while True:
            notes.append(await note.wait(timeout=0.1))
    return notes


@workflow
async def reads_at_its_end() -> list[int]:
    await act(1)
    return await _waiting()


@workflow
async def looks_when_it_was_told() -> list[int]:
    """Reads its notes only when it was told to stop, and after another step."""
    async with asyncio.timeout(1):
        try:
            await stop.wait()
        except TimeoutError:
            return []
    await act(1)
    return await _waiting()


@workflow
async def carries_on(left: int = 1) -> list[int]:
    await act(left)
    if left:
        continue_as_new(left - 1)
    return await _waiting()


class Racy(MemoryStore):
    """Sends messages at the last moment before a run would close."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.late: list[list[Message]] = []
        self.refused = 0

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        for change in changes:
            if change.move is not None and change.move.state in CLOSED and self.late:
                for message in self.late.pop(0):
                    await self.send(change.run_id, message)
        verdicts = await super().commit(worker_id, changes)
        self.refused += sum(verdict is Verdict.UNREAD for verdict in verdicts.values())
        return verdicts


class RacyEnvironment(Environment):
    store: Racy

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        return Racy(database)


def late(kind: MessageKind, name: str, *bodies: str) -> list[Message]:
    return [Message(message_id=f"{kind}:{name}{body}", kind=kind, name=name, body=body) for body in bodies]


ALL: list[Workflow[..., Any]] = [
    takes_notes,
    stops,
    handles_slowly,
    at_once,
    waits_for_handlers,
    busy_at_its_end,
    fails,
    has_a_careless_validator,
    tidies,
    swallows,
    goes_on,
    times_out,
    gathers,
    reads_at_its_end,
    looks_when_it_was_told,
    carries_on,
]
modes = pytest.mark.parametrize("always_replay", [False, True])


def racy(always_replay: bool) -> RacyEnvironment:
    return RacyEnvironment(workflows=ALL, activities=[act, act_in_a_thread], always_replay=always_replay)


async def ended(env: RacyEnvironment, handle: Handle[Any]) -> Any:
    result = await handle.result()
    assert (await env.store.load(handle.run_id)).messages == [], "all was read"
    await replay_all(env.store, {one.name: one for one in ALL})
    return result


@modes
@pytest.mark.parametrize("times", [1, 2, 5])
async def test_the_run_sees_late_signals_and_executes_nothing_again(always_replay: bool, times: int) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late(MessageKind.SIGNAL, "note", f"{n}1", f"{n}2") for n in range(1, times + 1)]
        handle = await env.start(takes_notes)
        assert await ended(env, handle) == [int(f"{n}{m}") for n in range(1, times + 1) for m in (1, 2)]
        assert executed == [1, 2]
        assert env.store.refused == times


@modes
@pytest.mark.parametrize("flow", [reads_at_its_end, looks_when_it_was_told, carries_on])
async def test_late_signals_that_wait_are_there_when_the_code_asks_for_them(
    always_replay: bool, flow: Workflow[[], list[int]]
) -> None:
    notes = [f"{number}" for number in range(7)]
    async with racy(always_replay) as env:
        stops = late(MessageKind.SIGNAL, "stop", "0") if flow is looks_when_it_was_told else []
        env.store.late = [late(MessageKind.SIGNAL, "note", *notes) + stops, late(MessageKind.SIGNAL, "note", "7", "8")]
        handle = await env.start(flow)
        assert await ended(env, handle) == list(range(9))
        assert executed == ([1, 0] if flow is carries_on else [1])


@modes
async def test_the_order_of_signals_is_kept_when_one_of_them_ends_the_run(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late(MessageKind.SIGNAL, "stop", "2", "3")]
        handle = await env.start(stops)
        await handle.signal(stop, 1)
        assert await ended(env, handle) == 1
        assert [line.body.value for line in (await handle.journal())[1:]] == [Raw(b"1"), Raw(b"2"), Raw(b"3")]


@modes
async def test_a_run_that_ends_in_its_first_turn_takes_what_came_with_its_start(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late(MessageKind.SIGNAL, "note", "5")]
        handle = await env.start(at_once, signal=(note, 4))
        assert await ended(env, handle) == "done"
        assert [str(line.kind) for line in await handle.journal()] == ["started", "signal", "signal"]


@modes
@pytest.mark.parametrize(("chain", "late_notes"), [(0, ["5"]), (0, ["5", "6"]), (1, ["5"])])
async def test_a_run_that_ended_in_its_first_turn_begins_once(
    chain: int, late_notes: list[str], always_replay: bool
) -> None:
    """Its start is a message, which is no late one: it must not be given to the code again."""
    async with racy(always_replay) as env:
        env.store.late = [[] for _ in range(chain)] + [late(MessageKind.SIGNAL, "note", *late_notes)]
        handle = await env.start(waits_for_handlers, chain, delay=1)  # so that its start is in its inbox
        numbers = [int(one) for one in late_notes]
        assert await ended(env, handle) == numbers
        assert executed == numbers
        last = await env.get(handle.id)  # of the chain
        kinds = [str(line.kind) for line in await last.journal()]
        assert kinds == ["started"] + ["signal"] * len(numbers) + ["activity_done"] * len(numbers)
        assert not (await verify(env.store, ALL)).violations


@modes
async def test_late_updates_are_validated_and_answered(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late(MessageKind.UPDATE, "ask", f"[{n}]", f"[{m}]") for n, m in ((3, -1), (4, -2))]
        handle = await env.start(takes_notes)
        assert await ended(env, handle) == [3, 4]
        found = await env.store.answers([(handle.run_id, f"update:ask[{n}]") for n in (3, -1, 4, -2)])
        assert [one.value if one is not None else "" for one in found] == ["4", None, "5", None]
        assert all("too low" in (one.error or "") for one in found[1::2] if one is not None)


@modes
async def test_a_late_update_whose_validator_acts_parks_the_run_where_it_was(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late(MessageKind.UPDATE, "ask", "[1]")]
        handle = await env.start(has_a_careless_validator)
        await env.advance(5)
        described = await handle.describe()
        assert described.state is RunState.NEEDS_CODE
        assert "the validator of update 'ask'" in described.reason
        assert [str(line.kind) for line in await handle.journal()] == ["started"]
        assert len((await env.store.load(handle.run_id)).messages) == 1
        assert executed == [1]


@modes
async def test_a_late_signal_whose_handler_is_not_done_changes_nothing_about_the_end(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late(MessageKind.SIGNAL, "note", "7")]
        assert await ended(env, await env.start(handles_slowly)) == []
        assert executed == [1]


@modes
async def test_an_activity_in_flight_is_neither_lost_nor_executed_again_when_the_run_stays(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late(MessageKind.SIGNAL, "note", "1")]
        assert await ended(env, await env.start(busy_at_its_end)) == "stayed for 9"
        assert executed == [9]


async def test_an_error_that_ends_the_run_still_does() -> None:
    async with racy(always_replay=False) as env:
        env.store.late = [late(MessageKind.SIGNAL, "note", "1")]
        with pytest.raises(RunFailed, match="as planned"):
            await (await env.start(fails)).result()
        assert executed == [1]


async def test_a_worker_that_dies_while_it_goes_back_loses_nothing() -> None:
    async with racy(always_replay=False) as env:
        env.store.late = [late(MessageKind.SIGNAL, "note", "1")]
        handle = await env.start(takes_notes)
        while not env.store.refused:
            await env.advance(0.1)
        await env.crash()
        assert await ended(env, handle) == [1]


async def test_a_run_that_goes_back_while_its_worker_stops_keeps_what_it_did() -> None:
    async with racy(always_replay=False) as env:
        env.store.late = [late(MessageKind.SIGNAL, "note", "1")]
        handle = await env.start(takes_notes)
        await env.advance(1.5)
        await env.deploy()
        assert await ended(env, handle) == [1]
        assert executed == [1, 2]


# -- a cancel


def late_cancel(message_id: str = "cancel", reason: str = "enough") -> list[Message]:
    return [Message(message_id=message_id, kind=MessageKind.CANCEL, name=reason)]


@modes
@pytest.mark.parametrize("late_signal", [False, True])
@pytest.mark.parametrize("one", [takes_notes, tidies, goes_on, times_out, gathers, fails, busy_at_its_end])
async def test_a_run_that_would_end_hears_of_a_late_cancel_first(
    one: Workflow[..., Any], late_signal: bool, always_replay: bool
) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late_cancel() + (late(MessageKind.SIGNAL, "note", "1") if late_signal else [])]
        handle = await env.start(one, retry=Retry(attempts=3, first=1.0))
        with pytest.raises(RunCancelled):
            await ended(env, handle)
        kinds = [str(line.kind) for line in await handle.journal()]
        assert kinds.count("cancel_requested") == 1
        assert env.store.refused >= 1
        assert (await env.store.load(handle.run_id)).messages == []
        assert not (await verify(env.store, ALL)).violations
        await replay_all(env.store, {one.name: one for one in ALL})
        if one is tidies:
            assert executed == [1, 2]


@modes
async def test_a_run_that_ended_in_its_first_turn_hears_of_a_late_cancel_first(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late_cancel()]
        handle = await env.start(at_once, signal=(note, 4))  # so that nobody begins it at once
        with pytest.raises(RunCancelled):
            await ended(env, handle)
        assert [str(line.kind) for line in await handle.journal()] == ["started", "signal", "cancel_requested"]


@modes
async def test_code_that_takes_no_notice_of_a_late_cancel_ends_as_it_likes(always_replay: bool) -> None:
    async with racy(always_replay) as env:
        env.store.late = [late_cancel(), late_cancel("another"), late_cancel("a third")]
        handle = await env.start(swallows)
        assert await ended(env, handle) == "not so fast"
        assert [str(line.kind) for line in await handle.journal()].count("cancel_requested") == 1


async def test_a_job_that_is_done_hears_of_a_late_cancel_first() -> None:
    @job
    async def deliver() -> None:
        executed.append(1)

    async with RacyEnvironment(jobs=[deliver]) as env:
        env.store.late = [late_cancel()]
        handle = await env.client.enqueue(deliver)
        with pytest.raises(RunCancelled):
            await handle.result()
        assert executed == [1]
        assert (await env.store.load(handle.run_id)).messages == []
        assert not (await verify(env.store)).violations


@modes
async def test_a_run_that_ends_in_a_burst_of_signals_sees_all_of_them(always_replay: bool) -> None:
    @workflow
    async def takes(most: int) -> list[int]:
        return [await note.wait() for _ in range(most)]

    async with Environment(workflows=[takes], always_replay=always_replay) as env:
        await env.worker.stop()
        handle = await env.start(takes, 70)
        for number in range(100):  # more than may be ahead of what is durable
            await handle.signal(note, number)
        await env.deploy()
        async with asyncio.timeout(10):
            assert await handle.result() == list(range(70))
        assert (await env.store.load(handle.run_id)).messages == [], "all was read"
        await replay_all(env.store, {"takes": takes})
