"""Transactional activities whose run is over, or parked, before their code has ended."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from typing import Any, cast

import pytest

from batuta import Middleware, Retry, RunState, activity, transaction, workflow
from batuta.engine.activities.call import Call
from batuta.engine.activities.threads import Threads
from batuta.engine.activities.transactional import Transactions
from batuta.engine.run.owned_run import OwnedRun
from batuta.journal.entries import EntryKind
from batuta.journal.records import Message, MessageKind
from batuta.telemetry import ActivityRetried, Event, RunClosed
from batuta.verify import verify
from tests.engine.arena import until_state
from tests.engine.till import PATIENCE, QUICK, till_on

pytestmark = pytest.mark.usefixtures("real_time")


def _deadline(run: OwnedRun) -> None:
    run.deadline = 1
    run.wake(2)


def _terminate(run: OwnedRun) -> None:
    run.receive([Message(message_id="m", kind=MessageKind.TERMINATE, name="enough", body="")])


def _park(run: OwnedRun) -> None:
    run.park("no code")


@pytest.mark.parametrize(
    ("end", "state", "last"),
    [
        (_deadline, RunState.TIMED_OUT, EntryKind.TIMED_OUT),
        (_terminate, RunState.TERMINATED, EntryKind.TERMINATED),
        (_park, RunState.NEEDS_CODE, EntryKind.STARTED),
    ],
)
@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_run_that_ends_while_the_code_works_keeps_nothing_of_it(
    sqlite_url: str, end: Callable[[OwnedRun], None], state: RunState, last: EntryKind, goes_on: bool
) -> None:
    loop, told = asyncio.get_running_loop(), threading.Event()
    ends: list[Callable[[], None]] = []

    @activity(transactional=True, retry=Retry(attempts=1))
    def book(number: int) -> int:
        transaction().connection.execute("INSERT INTO orders VALUES (?)", (number,))
        loop.call_soon_threadsafe(ends[0])
        told.wait(PATIENCE)
        return number

    @workflow
    async def books() -> int:
        found = await book(7)
        if goes_on:
            await asyncio.sleep(3600)
        return found

    async with till_on("sqlite", sqlite_url) as till:
        async with till.worker(books, book) as worker:

            def over() -> None:
                [run] = worker.session.runs.values()
                end(run)
                told.set()

            ends.append(over)
            handle = await till.client.start(books)
            await until_state(handle, state)
        assert await till.rows() == []
        found = await till.store.get(handle.id)
        assert found is not None
        assert (await till.store.journal(found.run_id))[-1].kind is last
        assert not (await verify(till.store, [books])).violations


async def test_an_attempt_beside_a_transaction_that_closes_the_run_is_told_by_its_name(sqlite_url: str) -> None:
    loop, told = asyncio.get_running_loop(), threading.Event()
    fails: list[Callable[[], None]] = []
    heard: list[str] = []

    class Ears(Middleware):
        def event(self, event: Event) -> None:
            if isinstance(event, ActivityRetried):
                heard.append(event.activity)
            elif isinstance(event, RunClosed):
                heard.append(event.state)

    @activity(transactional=True, retry=Retry(attempts=1))
    def book() -> None:
        loop.call_soon_threadsafe(fails[0])
        told.wait(PATIENCE)

    @activity
    async def other() -> None:
        await asyncio.Event().wait()

    @workflow
    async def books() -> None:
        beside = asyncio.create_task(other())
        await book()
        assert not beside.done()

    async with till_on("sqlite", sqlite_url) as till:
        async with till.worker(books, book, other, middleware=[Ears()]) as worker:

            def fail() -> None:
                [run] = worker.session.runs.values()
                [call] = (call for call in run.calls.values() if call.pending.name == "other")
                failure = '{"type":"LookupError","message":"no"}'
                run.record_attempt(call.row(ended_at=2, next_at=3, error=failure))
                told.set()

            fails.append(fail)
            await (await till.client.start(books)).result(PATIENCE)
        assert heard == ["other", "completed"]


@activity(transactional=True, retry=QUICK)
def book_seven() -> int:
    return 7


@workflow
async def books_seven() -> int:
    return await book_seven()


async def test_an_attempt_that_finds_no_thread_leaves_its_place(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, refused = Threads.call, list[str]()

    def none_at_first(threads: Threads, context: contextvars.Context, work: Callable[[], None]) -> None:
        if not refused:
            refused.append("can't start new thread")
            raise RuntimeError(refused[0])
        call(threads, context, work)

    monkeypatch.setattr(Threads, "call", none_at_first)

    async with till_on("sqlite", sqlite_url) as till, till.worker(books_seven, book_seven, transactions=1):
        assert await (await till.client.start(books_seven)).result(PATIENCE) == 7


async def test_an_attempt_whose_run_is_dropped_before_it_does_anything_leaves_its_place(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin, dropped = Transactions.begin, list[OwnedRun]()

    def begins(all_of_them: Transactions, call: Call, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        begin(all_of_them, call, args, kwargs)
        if not dropped:
            dropped.append(cast(OwnedRun, call.run))
            call.run.drop()  # in the same round of the event loop

    monkeypatch.setattr(Transactions, "begin", begins)

    async with (
        till_on("sqlite", sqlite_url) as till,
        till.worker(books_seven, book_seven, transactions=1, heartbeat=0.1),
    ):
        assert await (await till.client.start(books_seven)).result(PATIENCE) == 7
