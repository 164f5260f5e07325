"""Commits that fail for a reason that no waiting mends: nothing is executed again and again, and the run says why."""

import asyncio
import sqlite3
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import asyncpg
import pytest

from batuta import Retry, RunState, activity, activity_info, workflow
from batuta.engine.run.owned_run import OwnedRun
from batuta.errors import OutcomeUnknown, SchemaMismatch, StoreUnavailable
from batuta.journal.records import Change, Refusal, Verdict
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from tests.engine.arena import PATIENCE, Arena, until, until_state
from tests.engine.kit import replay_all

executed: list[str] = []
gates: list[asyncio.Event] = []
LIMIT = 3


async def _executed() -> bool:
    return bool(executed)


@activity
async def gated() -> str:
    """Ends when the test opens the gate."""
    executed.append("gated")
    await gates[0].wait()
    return "gated"


@workflow
async def waits() -> str:
    return await gated()


@activity(retry=Retry(attempts=LIMIT, first=0.01))
async def act(name: str) -> str:
    executed.append(name)
    return name


@workflow
async def steps(name: str) -> list[str]:
    return [await act(f"{name} {number}") for number in range(3)]


@activity(retry=Retry(attempts=LIMIT, first=0.01, jitter=0.0))
async def flaky() -> int:
    executed.append("flaky")
    if activity_info().attempt < LIMIT:
        raise ConnectionError("busy")
    return activity_info().attempt


@workflow
async def tries() -> int:
    return await flaky()


Answer = dict[int, Verdict | list[Refusal]]


class FailingStore(MemoryStore):
    """Commits fail as the test wants."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.fails: Callable[[Sequence[Change]], Exception | None] = lambda changes: None

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> Answer:
        if (error := self.fails(changes)) is not None:
            raise error
        return await super().commit(worker_id, changes)


class World(Environment):
    """An environment whose commits can be told to fail."""

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        self.faulty = FailingStore(database)
        return self.faulty


@pytest.fixture
async def env() -> Any:
    executed.clear()
    async with World(workflows=[steps, tries], activities=[act, flaky]) as made:
        yield made
        await replay_all(made.store, {"steps": steps, "tries": tries})


def mentions(word: str, error: Exception) -> Callable[[Sequence[Change]], Exception | None]:
    def fails(changes: Sequence[Change]) -> Exception | None:
        found = any(f'"{word}"' in entry.body for change in changes for entry in change.entries if entry.ord > 0)
        return error if found else None

    return fails


ERRORS = [SchemaMismatch("function batuta.commit() does not exist"), RuntimeError("a bug in the driver")]
by_error = pytest.mark.parametrize("error", ERRORS, ids=["schema", "bug"])


@by_error
async def test_minutes_of_failing_commits_executes_nothing_again_before_they_work(
    env: World, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    handle = await env.start(steps, "a")
    env.faulty.fails = lambda changes: error
    await env.advance(600)
    assert set(Counter(executed).values()) == {1}
    found = await handle.describe()
    assert (found.state, found.deaths) == (RunState.WAITING, 1)
    assert str(error) in found.reason
    assert "its commits fail" in caplog.text
    env.faulty.fails = lambda changes: None
    assert await handle.result() == ["a 0", "a 1", "a 2"]
    assert sorted(Counter(executed).values()) == [1, 1, 2]


@by_error
async def test_a_run_whose_commits_alone_fail_is_parked_and_the_others_go_on(env: World, error: Exception) -> None:
    env.faulty.fails = mentions("bad 1", error)
    handles = [await env.start(steps, name) for name in ("good", "bad", "fine")]
    for handle in (handles[0], handles[2]):
        assert len(await handle.result()) == 3
    await env.advance(60)
    found = await handles[1].describe()
    assert (found.state, found.deaths) == (RunState.POISONED, 5)
    assert str(error) in found.reason
    counted = Counter(executed)
    assert counted["bad 1"] <= LIMIT + found.deaths
    assert {name: times for name, times in counted.items() if not name.startswith("bad")} == {
        f"{name} {number}": 1 for name in ("good", "fine") for number in range(3)
    }
    env.faulty.fails = lambda changes: None
    await handles[1].retry()
    assert len(await handles[1].result()) == 3


async def test_an_attempt_is_tried_again_when_its_failure_is_durable(env: World) -> None:
    env.faulty.fails = lambda changes: StoreUnavailable("away") if executed else None
    handle = await env.start(tries)
    await env.advance(600)
    assert len(executed) == 1
    await env.crash()  # nothing is known of the first failure
    env.faulty.fails = lambda changes: None
    assert await handle.result() == LIMIT
    assert len(executed) == LIMIT + 1


@by_error
@pytest.mark.parametrize("nth", range(1, 4))
async def test_errors_that_pass_execute_nothing_again(env: World, error: Exception, nth: int) -> None:
    left = [None] * nth + [error] * 6

    env.faulty.fails = lambda changes: left.pop(0) if left else None
    handles = await asyncio.gather(*(env.start(steps, name) for name in "abc"))
    for handle in handles:
        assert len(await handle.result()) == 3
    assert set(Counter(executed).values()) == {1}
    assert [(await handle.describe()).deaths for handle in handles] == [0, 0, 0]


async def test_a_run_whose_effects_fail_is_given_up_and_goes_on_from_its_durable_entries(
    env: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    settled = OwnedRun.settled

    def fails(run: OwnedRun, change: Change, *more: Any) -> None:
        if run.identity.id == "bad" and change.new_head == 2:
            raise RuntimeError("a bug of ours")
        settled(run, change, *more)

    monkeypatch.setattr(OwnedRun, "settled", fails)
    good, bad = await env.start(steps, "good", id="good"), await env.start(steps, "bad", id="bad")
    assert len(await good.result()) == len(await bad.result()) == 3
    assert set(Counter(executed).values()) == {1}


async def test_a_start_whose_commit_fails_is_withdrawn_with_the_reason(env: World) -> None:
    env.faulty.fails = lambda changes: ERRORS[0]
    with pytest.raises(SchemaMismatch, match="does not exist"):
        await env.start(steps, "a", id="x")
    env.faulty.fails = lambda changes: None
    assert await env.client.count() == 0
    assert executed == []


async def test_the_caller_is_told_when_the_outcome_of_its_start_is_unknown(env: World) -> None:
    env.faulty.fails = lambda changes: ERRORS[1]
    with pytest.raises(OutcomeUnknown):
        await env.start(steps, "a", id="x")
    env.faulty.fails = lambda changes: None
    handle = await env.start(steps, "a", id="x")
    assert len(await handle.result()) == 3
    assert await env.client.count() == 1


@pytest.fixture
async def move(request: pytest.FixtureRequest) -> Callable[[str, str], Awaitable[None]]:
    """Gives a column of the journal another name, as a migration of somebody else's would."""
    kind = request.getfixturevalue("make_store") and request.node.callspec.params["make_store"]
    if kind == "coded":
        pytest.skip("there is no schema in memory")
    url: str = request.getfixturevalue(f"{kind}_url")

    async def rename(old: str, new: str) -> None:
        table = "journal" if kind == "sqlite" else "batuta.journal"
        statement = f"ALTER TABLE {table} RENAME COLUMN {old} TO {new}"
        if kind == "sqlite":
            database = sqlite3.connect(url.removeprefix("sqlite:///"), timeout=PATIENCE)
            database.execute(statement)
            database.close()
        else:
            connection = await asyncpg.connect(url)
            await connection.execute(statement)
            await connection.close()

    return rename


async def test_when_the_schema_moved_on_nothing_is_executed_again_and_again(
    arena: Arena, move: Callable[[str, str], Awaitable[None]]
) -> None:
    executed.clear()
    gates[:] = [asyncio.Event()]
    client = await arena.client()
    await arena.worker(client, waits, gated, lease=1.0)
    handle = await client.start(waits, id="x")
    await until(_executed)
    await move("crc", "moved")
    try:
        gates[0].set()

        async def given_up() -> bool:
            return (await arena.store(client).get("x")).deaths > 0

        await until(given_up)
        assert "its commits fail" in (await arena.store(client).get("x")).reason
    finally:
        await move("moved", "crc")
    await until_state(handle, RunState.COMPLETED)
    assert len(executed) <= 3
