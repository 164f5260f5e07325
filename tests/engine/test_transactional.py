"""Exactly-once activities: what they write, their result and what they send out commit together, or not at all."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import AsyncIterator
from contextlib import closing, suppress
from typing import Any

import asyncpg
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.pool import StaticPool

from batuta import (
    ActivityTimeout,
    CompleteLater,
    RunCancelled,
    RunFailed,
    RunState,
    TransactionEnded,
    UnknownRun,
    activity,
    checkpoint,
    heartbeat,
    job,
    transaction,
    workflow,
)
from batuta.verify import verify
from tests.engine.arena import until, until_state
from tests.engine.till import PATIENCE, QUICK, Till, go, mailed, till_on, waits

pytestmark = pytest.mark.usefixtures("real_time")


@pytest.fixture(params=["sqlite", "postgres"])
async def till(request: pytest.FixtureRequest) -> AsyncIterator[Till]:
    async with till_on(request.param, request.getfixturevalue(f"{request.param}_url")) as made:
        yield made


async def test_what_it_writes_is_there_with_its_result(till: Till) -> None:
    book = till.activity("book", lambda number: None)

    @workflow
    async def books(count: int) -> list[int]:
        return [await book(number) for number in range(count)]

    async with till.worker(books, book):
        assert await (await till.client.start(books, 3)).result(PATIENCE) == [1, 2, 3]
        assert await till.rows() == [0, 1, 2]


async def test_many_at_once_in_one_run_beside_signals_and_plain_activities(till: Till) -> None:
    book = till.activity("book", lambda number: None)

    @activity
    async def plain(number: int) -> int:
        await asyncio.sleep(0)
        return number

    @workflow
    async def mixes(count: int) -> int:
        async def heard() -> int:
            return sum([await go.wait() for _ in range(count)])

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(heard())]
            for number in range(count):
                tasks.append(group.create_task(book(number)))
                tasks.append(group.create_task(plain(number)))
                tasks.append(group.create_task(asyncio.sleep(0.001 * number, 0)))
        return sum(task.result() for task in tasks)

    async with till.worker(mixes, book, plain):
        handle = await till.client.start(mixes, 20)
        for number in range(20):
            await handle.signal(go, number)
        assert await handle.result(PATIENCE) == 190 + 210 + 190
        assert await till.rows() == list(range(20))
        assert not (await verify(till.store, [mixes])).violations


async def test_what_a_failed_attempt_has_written_is_gone(till: Till) -> None:
    tried: list[int] = []

    def fails_twice(number: int) -> None:
        tried.append(number)
        if len(tried) < 3:
            raise LookupError("not yet")

    shaky = till.activity("shaky", fails_twice)

    @workflow
    async def tries() -> int:
        return await shaky(1)

    async with till.worker(tries, shaky):
        assert await (await till.client.start(tries)).result(PATIENCE) == 2
        assert len(tried) == 3
        assert await till.rows() == [1]


async def test_jobs_starts_and_signals_leave_with_it(till: Till) -> None:
    def sends(number: int) -> None:
        transaction().enqueue(mailed, f"{number}", id=f"mail-{number}")
        transaction().enqueue(mailed, "same", unique="key")
        transaction().enqueue(mailed, "same", unique="key")
        transaction().start(waits, id=f"waits-{number}", signal=(go, number))
        transaction().start(waits, id="listener")
        transaction().signal("listener", go, number)

    sending = till.activity("sending", sends)

    @workflow
    async def one() -> int:
        return await sending(7)

    async with till.worker(one, waits, sending, jobs=[mailed]):
        listener = await till.client.start(waits, id="listener")
        assert await (await till.client.start(one)).result(PATIENCE) == 8
        assert await (await till.client.get("mail-7", mailed)).result(PATIENCE) == "mailed 7"
        assert await (await till.client.get("waits-7", waits)).result(PATIENCE) == 7
        assert await listener.result(PATIENCE) == 7
        assert await till.client.count(kind="job") == 2


@pytest.mark.parametrize("refused", ["nobody", "closed", "taken", "another", "compared"])
async def test_nothing_is_written_and_nothing_leaves_when_one_of_them_cannot(till: Till, refused: str) -> None:
    def sends(number: int) -> None:
        transaction().enqueue(mailed, "x", id="never")
        if refused == "taken":
            transaction().start(waits, id="there", if_exists="reject")
        elif refused == "another":
            transaction().start(one, id="there", signal=(go, 5))
        elif refused == "compared":
            transaction().start(waits, id="there", if_exists="same")
        else:
            transaction().signal("nobody" if refused == "nobody" else "closed", go, 1)

    sending = till.activity("sending", sends)

    @workflow
    async def one() -> str:
        try:
            await sending(1)
        except Exception as error:  # noqa: BLE001 - any of five
            return type(error).__name__
        return "sent"

    async with till.worker(one, waits, sending):
        await (await till.client.start(waits, id="closed", signal=(go, 1))).result(PATIENCE)
        await till.client.start(waits, id="there")
        expected = {
            "nobody": "UnknownRun",
            "closed": "RunClosed",
            "taken": "AlreadyStarted",
            "another": "WrongWorkflow",
            "compared": "InvalidInput",
        }[refused]
        handle = await till.client.start(one)
        assert await handle.result(PATIENCE) == expected
        assert await till.rows() == []
        with pytest.raises(UnknownRun):
            await till.client.get("never")
        assert not (await verify(till.store, [one, waits])).violations


async def test_a_job_can_be_transactional(till: Till) -> None:
    count = till.activity("count", lambda number: transaction().enqueue(mailed, "x", id="m"), kind=job)
    async with till.worker(jobs=[count, mailed]):
        handle = await till.client.enqueue(count, 1)
        assert await handle.result(PATIENCE) == 2
        assert await till.rows() == [1]
        assert await (await till.client.get("m", mailed)).result(PATIENCE) == "mailed x"


async def test_an_activity_of_another_queue_can_be(till: Till) -> None:
    far = till.activity("far", lambda number: None, queue="far")

    @workflow
    async def calls() -> int:
        return await far(1)

    async with till.worker(calls, far, queues=["default", "far"]):
        assert await (await till.client.start(calls)).result(PATIENCE) == 2
        assert await till.rows() == [1]


async def test_a_signal_that_comes_before_the_last_commit_is_read_and_nothing_is_written_twice(till: Till) -> None:
    begun, sent = asyncio.Event(), asyncio.Event()
    calls: list[int] = []
    last = till.activity("last", calls.append)

    @activity
    async def before() -> None:
        begun.set()
        await sent.wait()

    @workflow
    async def ends() -> int:
        heard: list[int] = []
        go.handle(heard.append)
        await before()
        await last(1)
        return sum(heard)

    async with till.worker(ends, before, last) as worker:
        worker.session._inbox.look_for = lambda run_ids: None  # it hears of it from the commit alone
        handle = await till.client.start(ends)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await handle.signal(go, 5)
        sent.set()
        assert await handle.result(PATIENCE) == 5
        assert calls == [1, 1]
        assert await till.rows() == [1]
        assert not (await verify(till.store, [ends])).violations


async def test_nothing_is_written_by_a_worker_that_has_lost_the_run(till: Till) -> None:
    first, calls, passed = asyncio.Event(), [], threading.Event()
    loop = asyncio.get_running_loop()

    def holds(number: int) -> None:
        calls.append(number)
        if len(calls) == 1:
            loop.call_soon_threadsafe(first.set)
            passed.wait(PATIENCE if till.kind == "postgres" else 0.5)

    slow = till.activity("slow", holds, waits_aside=True)

    @workflow
    async def one() -> int:
        return await slow(1)

    async with till.worker(one, slow):
        handle = await till.client.start(one)
        await asyncio.wait_for(first.wait(), PATIENCE)
        terminating = asyncio.create_task(handle.terminate("enough"))
        if till.kind == "postgres":
            await terminating
        passed.set()
        await terminating if till.kind == "postgres" else await asyncio.gather(terminating, return_exceptions=True)

        async def closed() -> bool:
            return (await handle.describe()).closed_at is not None

        await until(closed)
        state = (await handle.describe()).state
        assert await till.rows() == ([] if state is RunState.TERMINATED else [1])
        if till.kind == "postgres":
            assert state is RunState.TERMINATED


async def test_a_cancelled_call_leaves_nothing(till: Till) -> None:
    begun, on = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def holds(number: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        on.wait(PATIENCE if till.kind == "postgres" else 1.0)

    slow = till.activity("slow", holds, waits_aside=True)

    @workflow
    async def one() -> int:
        return await slow(1)

    async with till.worker(one, slow):
        handle = await till.client.start(one)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        if till.kind == "postgres":  # on SQLite a cancel cannot be written before the activity is
            await handle.cancel()
            with pytest.raises(RunCancelled):
                await handle.result(PATIENCE)
            assert await till.rows() == []
        on.set()


async def test_a_transaction_that_takes_too_long_is_rolled_back_and_holds_up_no_others(till: Till) -> None:
    on, calls = threading.Event(), []

    def hangs(number: int) -> None:
        calls.append(number)
        if len(calls) == 1:
            on.wait(PATIENCE)

    slow = till.activity("slow", hangs, waits_aside=True)
    quick = till.activity("quick", lambda number: None)

    @workflow
    async def both() -> list[int]:
        return [await slow(1), await quick(2)]

    async with till.worker(both, slow, quick, transaction_time=0.3):
        handle = await till.client.start(both)
        assert await handle.result(PATIENCE) == [2, 3]
        assert len(calls) == 2
        assert await till.rows() == [1, 2]
        on.set()


async def test_a_statement_that_takes_too_long_is_interrupted(till: Till) -> None:
    endless = {
        "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n",
        "postgres": "SELECT pg_sleep(60)",
    }[till.kind]
    slow = till.statement("slow", endless)

    @workflow
    async def one() -> str:
        try:
            await slow(1)
        except ActivityTimeout:
            return "too long"
        return "done"

    async with till.worker(one, slow, transaction_time=0.3):
        begun = time.monotonic()
        assert await (await till.client.start(one)).result(PATIENCE) == "too long"
        assert time.monotonic() - begun < 50
        assert await till.rows() == []


@pytest.mark.parametrize("how", ["COMMIT", "ROLLBACK"])
async def test_code_that_ends_its_transaction_fails_by_name(till: Till, how: str) -> None:
    ends = till.statement("ends", how)

    @workflow
    async def one() -> str:
        try:
            await ends(1)
        except TransactionEnded:
            return "named"
        return "done"

    async with till.worker(one, ends):
        assert await (await till.client.start(one)).result(PATIENCE) == "named"
        assert await till.client.count() == 1


@pytest.mark.parametrize("goes_on", [False, True])
async def test_a_conflict_that_rolls_back_leaves_nothing_and_fails_by_name(sqlite_url: str, goes_on: bool) -> None:
    @activity(transactional=True, retry=QUICK)
    def ends(number: int) -> int:
        lent = transaction().connection
        lent.execute("INSERT INTO orders VALUES (?)", (number,))
        with suppress(sqlite3.IntegrityError):
            lent.execute("INSERT OR ROLLBACK INTO orders VALUES (NULL)")
        if goes_on:
            lent.execute("INSERT INTO orders VALUES (?)", (number + 1,))
        return number

    @workflow
    async def one() -> str:
        try:
            await ends(1)
        except TransactionEnded:
            return "named"
        return "done"

    async with till_on("sqlite", sqlite_url) as till:
        with closing(sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))) as file:
            file.executescript("DROP TABLE orders; CREATE TABLE orders (id INTEGER NOT NULL)")
        async with till.worker(one, ends):
            assert await (await till.client.start(one)).result(PATIENCE) == "named"
            assert await till.rows() == []


async def test_it_never_waits_for_the_thread_of_another_activity(sqlite_url: str) -> None:
    on = threading.Event()

    @activity
    def hangs() -> None:
        on.wait(PATIENCE)

    async with till_on("sqlite", sqlite_url) as till:
        book = till.activity("book", lambda number: None)

        @workflow
        async def one() -> int:
            waiting = asyncio.ensure_future(hangs())
            found: int = await book(1)
            on.set()
            await waiting
            return found

        async with till.worker(one, hangs, book, threads=1, transaction_time=0.5):
            try:
                assert await (await till.client.start(one)).result(PATIENCE) == 2
            finally:
                on.set()


async def test_a_wrong_part_fails_by_name_and_leaves_nothing(till: Till) -> None:
    def later(number: int) -> None:
        raise CompleteLater

    def bounces(number: int) -> None:
        transaction().enqueue(mailed, "x", unique="k", debounce=3)

    def saves(number: int) -> None:
        checkpoint(1) if till.kind == "postgres" else checkpoint.sync(1)

    def beats(number: int) -> None:
        heartbeat(1)

    wrong = {
        name: till.activity(name, body) for name, body in {"later": later, "bounces": bounces, "saves": saves}.items()
    }
    fine = till.activity("fine", beats)

    @workflow
    async def each() -> list[str]:
        said = []
        for one in wrong.values():
            try:
                await one(1)
            except Exception as error:  # noqa: BLE001 - each has its own
                said.append(str(error))
        await fine(2)
        return said

    async with till.worker(each, fine, *wrong.values()):
        said = await (await till.client.start(each)).result(PATIENCE)
        assert ["CompleteLater" in said[0], "debounce=" in said[1], "checkpoint()" in said[2]] == [True] * 3
        assert await till.rows() == [2]


async def test_a_result_that_does_not_fit_leaves_nothing(till: Till) -> None:
    misfit = till.activity("misfit", lambda number: "text", gives_it=True)

    @workflow
    async def one() -> int:
        return await misfit(1)

    async with till.worker(one, misfit):
        with pytest.raises(RunFailed, match="misfit"):
            await (await till.client.start(one)).result(PATIENCE)
        assert await till.rows() == []


async def test_a_stop_waits_for_it(till: Till) -> None:
    begun = asyncio.Event()
    loop = asyncio.get_running_loop()

    def holds(number: int) -> None:
        loop.call_soon_threadsafe(begun.set)
        time.sleep(0.05)

    slow = till.activity("slow", holds, waits_aside=True)

    @workflow
    async def one() -> int:
        return await slow(1) + await slow(2)

    async with till.worker(one, slow):
        handle = await till.client.start(one)
        await asyncio.wait_for(begun.wait(), PATIENCE)
    assert await till.rows() == [1]
    async with till.worker(one, slow):
        assert await handle.result(PATIENCE) == 5
    assert await till.rows() == [1, 2]


async def test_runs_that_are_always_rebuilt_do_the_same(till: Till) -> None:
    book = till.activity("book", lambda number: None)

    @workflow
    async def books() -> int:
        await asyncio.gather(*(book(number) for number in range(5)))
        return await book(5)

    async with till.worker(books, book, always_replay=True):
        assert await (await till.client.start(books)).result(PATIENCE) == 6
        assert await till.rows() == list(range(6))


async def test_a_run_that_is_paused_meanwhile_keeps_what_was_written(postgres_url: str) -> None:
    async with till_on("postgres", postgres_url) as till:
        begun, on = asyncio.Event(), threading.Event()
        loop = asyncio.get_running_loop()

        def holds(number: int) -> None:
            loop.call_soon_threadsafe(begun.set)
            on.wait(PATIENCE)

        slow = till.activity("slow", holds, waits_aside=True)

        @workflow
        async def one() -> int:
            return await slow(1) + await slow(2)

        async with till.worker(one, slow) as worker:
            handle = await till.client.start(one)
            await asyncio.wait_for(begun.wait(), PATIENCE)
            await handle.pause("wait")

            async def heard() -> bool:
                return all(run.pausing is not None for run in worker.session.runs.values())

            await until(heard)
            on.set()
            await until_state(handle, RunState.PAUSED)
            assert await till.rows() == [1]
            await handle.resume()
            assert await handle.result(PATIENCE) == 5
            assert await till.rows() == [1, 2]


async def test_sqlalchemy_can_use_the_connection_and_savepoints_are_its_transactions(postgres_url: str) -> None:
    @activity(transactional=True, retry=QUICK)
    async def saves(number: int) -> int:
        lent = transaction().connection

        async def creator() -> Any:
            return lent

        engine = create_async_engine("postgresql+asyncpg://", async_creator=creator, poolclass=StaticPool)
        async with AsyncSession(engine) as session, session.begin():
            await session.execute(sqlalchemy.text("INSERT INTO orders VALUES (:id)"), {"id": number})
        try:
            async with AsyncSession(engine) as session, session.begin():
                await session.execute(sqlalchemy.text("INSERT INTO orders VALUES (:id)"), {"id": 10 + number})
                raise LookupError
        except LookupError:
            pass
        if number == 3:
            raise LookupError
        return number

    @workflow
    async def one() -> str:
        await saves(1)
        await saves(2)
        try:
            await saves(3)
        except LookupError:
            return "rolled back"
        return "saved"

    async with till_on("postgres", postgres_url) as till, till.worker(one, saves):
        assert await (await till.client.start(one)).result(PATIENCE) == "rolled back"
        assert await till.rows() == [1, 2]


async def test_a_connection_that_is_kept_is_of_no_use_afterwards(till: Till) -> None:
    kept: list[Any] = []
    keeps = till.activity("keeps", lambda number: kept.append(transaction().connection))

    @workflow
    async def one() -> int:
        return await keeps(1)

    async with till.worker(one, keeps):
        await (await till.client.start(one)).result(PATIENCE)
        error: type[Exception] = TransactionEnded if till.kind == "sqlite" else asyncpg.InterfaceError
        with pytest.raises(error, match=r"has ended|released"):
            kept[0].execute("INSERT INTO orders VALUES (2)")
        assert await till.rows() == [1]


async def test_code_that_swallows_its_cancellation_writes_nothing_all_the_same(postgres_url: str) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    @activity(transactional=True, retry=QUICK)
    async def stubborn(number: int) -> int:
        await transaction().connection.execute("INSERT INTO orders VALUES ($1)", number)
        begun.set()
        try:
            await asyncio.sleep(PATIENCE)
        except asyncio.CancelledError:
            ended.set()
        return number

    @workflow
    async def one() -> int:
        return await stubborn(1)

    async with till_on("postgres", postgres_url) as till, till.worker(one, stubborn):
        handle = await till.client.start(one)
        await asyncio.wait_for(begun.wait(), PATIENCE)
        await handle.cancel()
        with pytest.raises(RunCancelled):
            await handle.result(PATIENCE)
        await asyncio.wait_for(ended.wait(), PATIENCE)
        assert await till.rows() == []
