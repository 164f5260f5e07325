"""Transactional activities that cannot be, in memory, and when the outcome of a commit is unknown."""

from __future__ import annotations

import asyncio
import threading

import asyncpg
import pytest

from batuta import InvalidInput, RunFailed, activity, activity_info, connect, failpoints, transaction, workflow
from batuta.errors import StoreFull, TransactionEnded
from tests.engine.till import PATIENCE, QUICK, Till, go, mailed, till_on

pytestmark = pytest.mark.usefixtures("real_time")


@activity(transactional=True)
async def awaited() -> None: ...


@activity(transactional=True)
def plain() -> None: ...


async def test_the_wrong_kind_of_function_is_refused_when_the_worker_is_made(
    sqlite_url: str, postgres_url: str
) -> None:
    async with connect(sqlite_url) as client:
        with pytest.raises(InvalidInput, match=r"'awaited' is transactional and `async def`.*`def`"):
            client.worker(activities=[awaited])
    async with connect(postgres_url) as client:
        with pytest.raises(InvalidInput, match=r"'plain' is transactional and a plain function.*`async def`"):
            client.worker(activities=[plain])


def test_options_that_do_not_go_with_it_are_refused_by_name() -> None:
    with pytest.raises(InvalidInput, match="process=True"):
        activity(transactional=True, process=True)(lambda: None)
    with pytest.raises(InvalidInput, match="once=True"):
        activity(transactional=True, once=True)(lambda: None)
    with pytest.raises(InvalidInput, match="once=True"):
        plain.with_options(once=True)


async def test_only_a_transactional_activity_has_a_transaction(sqlite_url: str) -> None:
    @activity
    def other() -> str:
        return str(transaction())

    @workflow
    async def one() -> str:
        return await other.with_options(retry=QUICK)()

    async with connect(sqlite_url) as client, client.worker(workflows=[one], activities=[other]):
        with pytest.raises(RunFailed, match="transactional=True"):
            await (await client.start(one)).result(PATIENCE)


async def test_in_memory_a_transaction_writes_result_and_messages_together_without_a_connection() -> None:
    @activity(transactional=True, retry=QUICK)
    async def sends(number: int) -> int:
        transaction().enqueue(mailed, "x", id=f"m{number}")
        if number == 2:
            transaction().signal("nobody", go, 1)
        if number == 3:
            transaction().connection.execute("SELECT 1")
        return number

    @workflow
    async def one() -> list[str]:
        said = [str(await sends(1))]
        for number in (2, 3):
            try:
                await sends(number)
            except Exception as error:  # noqa: BLE001 - each has its own
                said.append(type(error).__name__)
        return said

    async with connect("memory://") as client, client.worker(workflows=[one], activities=[sends], jobs=[mailed]):
        assert await (await client.start(one)).result(PATIENCE) == ["1", "UnknownRun", "WrongTransaction"]
        assert await (await client.get("m1", mailed)).result(PATIENCE) == "mailed x"
        assert await client.count(kind="job") == 1


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_store_that_is_away_at_the_commit_costs_no_attempt(request: pytest.FixtureRequest, kind: str) -> None:
    tried: list[int] = []

    async with till_on(kind, request.getfixturevalue(f"{kind}_url")) as till:

        def goes_away(number: int) -> None:
            tried.append(activity_info().attempt)
            if len(tried) == 1:
                fill(till) if kind == "sqlite" else asyncio.run(cut(till))

        book = till.activity("book", goes_away, waits_aside=True)

        @workflow
        async def books() -> int:
            return int(await book(1))

        async with till.worker(books, book):
            assert await (await till.client.start(books)).result(PATIENCE) == 2
        assert tried == [1, 1]
        assert await till.rows() == [1]


def fill(till: Till) -> None:
    """The disk is full at the next commit."""
    writer = till.store._writer  # type: ignore[attr-defined]  # of SQLite's

    def fault(step: str) -> None:
        if step == "commit":
            writer.faults = None
            raise StoreFull("no room")

    writer.faults = fault


async def cut(till: Till) -> None:
    """The connection of the transaction breaks."""
    raw = await asyncpg.connect(till.url)
    ended = await raw.fetch(
        "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity "
        "WHERE datname = current_database() AND state = 'idle in transaction'"
    )
    await raw.close()
    assert ended


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_a_signal_to_its_own_run_that_its_result_ends_is_refused_for_that(
    request: pytest.FixtureRequest, kind: str
) -> None:
    async with till_on(kind, request.getfixturevalue(f"{kind}_url")) as till:
        selfish = till.activity("selfish", lambda number: transaction().signal("me", go, number))

        @workflow
        async def one() -> int:
            return int(await selfish(1))

        async with till.worker(one, selfish):
            with pytest.raises(RunFailed, match="'me' is completed: by the result of the activity that sends"):
                await (await till.client.start(one, id="me")).result(PATIENCE)
        assert await till.rows() == []


@pytest.mark.parametrize("how", ["COMMIT; BEGIN", "ROLLBACK; BEGIN", "COMMIT AND CHAIN"])
@pytest.mark.parametrize("sends", [False, True])
async def test_code_that_begins_another_transaction_in_place_of_its_own_fails_by_name(
    postgres_url: str, how: str, sends: bool
) -> None:
    tried: list[int] = []

    @activity(transactional=True, retry=QUICK)
    async def ends(number: int) -> int:
        tried.append(number)
        lent = transaction().connection
        await lent.execute("INSERT INTO orders VALUES ($1)", number)
        await lent.execute(how)
        await lent.execute("INSERT INTO orders VALUES ($1)", number + 1)
        if sends:
            transaction().enqueue(mailed, "x")
        return number

    @activity(transactional=True, retry=QUICK)
    async def whole(number: int) -> int:
        lent = transaction().connection
        async with lent.transaction():
            await lent.execute("INSERT INTO orders VALUES ($1)", number)
        await lent.execute("SAVEPOINT here; ROLLBACK TO here; SET LOCAL work_mem = '8MB'; RESET work_mem")
        return number

    @workflow
    async def one() -> int:
        try:
            return await ends(1)
        except TransactionEnded:
            return await whole(5)

    async with till_on("postgres", postgres_url) as till:
        async with till.worker(one, ends, whole, jobs=[mailed]):
            run = await till.client.start(one)
            assert await run.result(PATIENCE) == 5
        assert tried == [1]
        assert [line.kind for line in await run.journal()] == ["started", "activity_failed", "activity_done"]
        assert await till.rows() == ([5] if how.startswith("ROLL") else [1, 5])
        assert await till.client.count(kind="job") == 0


async def test_an_activity_that_breaks_its_own_connection_is_tried_as_its_policy_says(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("batuta.engine.activities.transactional._LONGEST_WAIT", 0.3)
    tried: list[int] = []
    async with till_on("postgres", postgres_url) as till:

        def breaks(number: int) -> None:
            tried.append(activity_info().attempt)
            asyncio.run(cut(till))

        book = till.activity("book", breaks, waits_aside=True)

        @workflow
        async def books() -> int:
            return int(await book(1))

        async with till.worker(books, book, heartbeat=0.1):
            with pytest.raises(RunFailed, match="connection"):
                await (await till.client.start(books)).result(3 * PATIENCE)
        assert sorted(set(tried)) == [1, 2, 3]
        assert await till.rows() == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
async def test_each_transactional_attempt_has_its_own_timeout(request: pytest.FixtureRequest, kind: str) -> None:
    """One timer is for all of them."""
    url = request.getfixturevalue(f"{kind}_url")
    gates = {1: threading.Event(), 2: threading.Event()}
    async with till_on(kind, url) as till:
        book = till.activity("book", lambda number: gates[number].wait(PATIENCE), waits_aside=True)

        @workflow
        async def books(number: int) -> int:
            return int(await book(number))

        async with till.worker(books, book, transaction_time=0.2):
            for number, gate in gates.items():
                run = await till.client.start(books, number)
                with pytest.raises(RunFailed, match="held its transaction for longer than"):
                    await run.result(PATIENCE)
                gate.set()
        assert await till.rows() == []


@pytest.mark.parametrize("state", ["40P01", "40001"])
async def test_a_deadlock_at_the_commit_is_a_failed_attempt(postgres_url: str, state: str) -> None:
    tried: list[int] = []
    async with till_on("postgres", postgres_url) as till:
        await till._ask(
            f"""
            CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS
            $$ BEGIN IF NEW.id = 1 THEN RAISE EXCEPTION 'no' USING ERRCODE = '{state}'; END IF; RETURN NEW; END $$
            """
        )
        await till._ask(
            "CREATE CONSTRAINT TRIGGER late AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED "
            "FOR EACH ROW EXECUTE FUNCTION refuse()"
        )
        book = till.activity("book", lambda number: tried.append(activity_info().attempt))

        @workflow
        async def books() -> int:
            return int(await book(1))

        async with till.worker(books, book):
            with pytest.raises(RunFailed, match="says: no"):
                await (await till.client.start(books)).result(PATIENCE)
        assert tried == [1, 2, 3]


@pytest.mark.parametrize("ends", [False, True])
async def test_an_activity_that_leaves_a_statement_under_way_has_failed(postgres_url: str, ends: bool) -> None:
    left: list[asyncio.Task[str]] = []

    @activity(transactional=True, retry=QUICK)
    async def book() -> None:
        left.append(asyncio.create_task(transaction().connection.execute("SELECT pg_sleep(1)")))
        await asyncio.sleep(0)

    @workflow
    async def books() -> None:
        await book()
        if not ends:
            await go.wait()

    async with till_on("postgres", postgres_url) as till, till.worker(books, book):
        with pytest.raises(RunFailed, match="left a statement under way"):
            await (await till.client.start(books)).result(PATIENCE)
        assert len(left) == 3
        await asyncio.gather(*left, return_exceptions=True)


async def test_a_commit_whose_outcome_is_unknown_is_looked_for_and_not_repeated(postgres_url: str) -> None:
    async with till_on("postgres", postgres_url) as till:
        book = till.activity("book", lambda number: None)

        @workflow
        async def books() -> int:
            return await book(1) + await book(2)

        lost: list[int] = []

        def loses(verb: str) -> None:
            if verb == "commit" and failpoints.armed is not None and len(lost) < 2:
                lost.append(1)
                raise OSError("the reply is lost")

        till.store.faults = loses  # type: ignore[attr-defined]  # of PostgreSQL's
        failpoints.observe(_nothing)
        try:
            async with till.worker(books, book, heartbeat=0.1):
                assert await (await till.client.start(books)).result(PATIENCE) == 5
        finally:
            failpoints.arm()
        assert lost
        assert await till.rows() == [1, 2]


def _nothing(site: str) -> None: ...
