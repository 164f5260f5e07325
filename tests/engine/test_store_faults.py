"""A store that fails in every way it may: nothing acknowledged is lost, nothing is committed twice."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import pytest

from batuta import RunState, activity, workflow
from batuta.errors import BadData, OutcomeUnknown, StoreError, StoreFailed, StoreUnavailable, UnknownRun
from batuta.journal.records import Change, Claim, Refusal, Verdict, WorkerInfo
from batuta.stores.memory import MemoryDatabase, MemoryStore
from batuta.testing import Environment
from tests.engine.kit import replay_all

Fault = Callable[[Sequence[Change]], Exception | None]
executed: list[str] = []


class FaultyStore(MemoryStore):
    """Fails as it is told: `before` a commit is written, or `after`."""

    def __init__(self, database: MemoryDatabase) -> None:
        super().__init__(database)
        self.before: list[Exception | None] = []
        self.after: list[Exception | None] = []
        self.refuse_values_with = ""
        self.claim_fails: list[Exception] = []
        self.commits = 0
        self.opened = 0

    async def open(self) -> None:
        self.opened += 1
        await super().open()

    async def commit(self, worker_id: str, changes: Sequence[Change]) -> dict[int, Verdict | list[Refusal]]:
        self.commits += 1
        self._maybe_fail(self.before)
        word = self.refuse_values_with
        if word and any(word in entry.body for change in changes for entry in change.entries):
            raise BadData(f"the value {word!r} is not liked here")
        verdicts = await super().commit(worker_id, changes)
        self._maybe_fail(self.after)
        return verdicts

    async def claim(self, worker: WorkerInfo, limit: int, room: Mapping[str, int] | None = None) -> Claim:
        if self.claim_fails:
            raise self.claim_fails.pop(0)
        return await super().claim(worker, limit, room)

    @staticmethod
    def _maybe_fail(plan: list[Exception | None]) -> None:
        error = plan.pop(0) if plan else None
        if error is not None:
            raise error


class World(Environment):
    """An environment whose store can be told to fail."""

    def make_store(self, database: MemoryDatabase) -> MemoryStore:
        self.faults = FaultyStore(database)
        return self.faults


@activity
async def act(name: str) -> str:
    executed.append(name)
    return name


@workflow
async def steps(name: str) -> list[str]:
    return [await act(f"{name} {number}") for number in range(4)]


@pytest.fixture
async def env() -> Any:
    executed.clear()
    async with World(workflows=[steps], activities=[act]) as made:
        yield made
        await replay_all(made.store, {"steps": steps})


def assert_each_step_ran_once(name: str) -> None:
    assert Counter(executed) == {f"{name} {number}": 1 for number in range(4)}


AWAY = StoreUnavailable("away")
UNKNOWN = OutcomeUnknown("the line went dead")


@pytest.mark.parametrize("after", range(1, 5))
async def test_while_the_store_is_away_gates_stay_shut_and_then_the_run_goes_on(env: World, after: int) -> None:
    env.faults.before = [*([None] * after), *([AWAY] * 20)]
    handle = await env.start(steps, "a")
    assert len(await handle.result()) == 4
    assert_each_step_ran_once("a")


@pytest.mark.parametrize("nth", range(1, 5))
@pytest.mark.parametrize("written", [True, False], ids=["written", "not-written"])
async def test_a_commit_of_unknown_outcome_is_written_again_and_counts_once(
    env: World, nth: int, written: bool
) -> None:
    plan: list[Exception | None] = [*([None] * nth), UNKNOWN, UNKNOWN]
    if written:
        env.faults.after = plan
    else:
        env.faults.before = plan
    handle = await env.start(steps, "a")
    assert len(await handle.result()) == 4
    assert_each_step_ran_once("a")
    assert len(await handle.journal()) == 5


async def test_a_start_that_could_not_be_written_is_withdrawn_and_refused(env: World) -> None:
    env.faults.before = [AWAY]
    with pytest.raises(StoreUnavailable):
        await env.start(steps, "a", id="x")
    await env.settle()
    with pytest.raises(UnknownRun):
        await env.client.get("x")
    assert executed == []
    assert len(await (await env.start(steps, "a", id="x")).result()) == 4


async def test_a_start_behind_a_step_that_cannot_be_written_is_withdrawn_and_refused(env: World) -> None:
    handle = await env.start(steps, "a")
    env.faults.before = [UNKNOWN, *([AWAY] * 200)]
    while env.faults.before[0] is not AWAY:  # the step waits to be written, and may have been
        await asyncio.sleep(0.001)
    for number in range(5):
        async with asyncio.timeout(30):
            with pytest.raises(StoreUnavailable):
                await env.start(steps, "b", id=f"b-{number}")
    assert await env.client.count() == 1
    assert len(await handle.result()) == 4
    assert_each_step_ran_once("a")


@pytest.mark.parametrize("written", [True, False], ids=["written", "not-written"])
async def test_a_start_of_unknown_outcome_is_tried_until_it_is_known(env: World, written: bool) -> None:
    if written:
        env.faults.after = [UNKNOWN]
    else:
        env.faults.before = [UNKNOWN]
    handle = await env.start(steps, "a", id="x")
    assert len(await handle.result()) == 4
    assert_each_step_ran_once("a")
    assert await env.client.count() == 1


async def test_a_start_that_stays_unknown_says_so_and_is_not_lost(env: World) -> None:
    env.faults.after = [UNKNOWN]
    env.faults.before = [None, *([AWAY] * 12)]
    with pytest.raises(OutcomeUnknown):
        await env.start(steps, "a", id="x")
    while env.faults.before:  # until the store is back, another start is refused
        with suppress(StoreUnavailable):
            await env.start(steps, "a", id="x")
    handle = await env.start(steps, "a", id="x")
    assert len(await handle.result()) == 4
    assert_each_step_ran_once("a")
    assert await env.client.count() == 1


async def test_a_value_that_the_database_refuses_parks_its_run_and_no_other(env: World) -> None:
    env.faults.refuse_values_with = "bad 2"
    handles = [await env.start(steps, name) for name in ("good", "bad", "fine", "well")]
    for handle in handles:
        if handle is not handles[1]:
            assert len(await handle.result()) == 4
    await env.settle()
    found = await handles[1].describe()
    assert found.state is RunState.NEEDS_CODE
    assert "the value 'bad 2' is not liked here" in found.reason


async def test_a_start_whose_value_the_database_refuses_is_refused(env: World) -> None:
    env.faults.refuse_values_with = '"bad"'  # with its quotes: a run id in hex may have those letters
    starts = [env.start(steps, name, id=name) for name in ("good", "bad", "fine")]
    good, bad, fine = await asyncio.gather(*starts, return_exceptions=True)
    assert isinstance(bad, BadData)
    assert not isinstance(good, BaseException)
    assert not isinstance(fine, BaseException)
    assert len(await good.result()) == len(await fine.result()) == 4
    assert await env.client.count() == 2


@pytest.mark.parametrize("nth", range(1, 5))
async def test_after_a_failed_fsync_everything_is_dropped_read_again_and_finished(env: World, nth: int) -> None:
    env.faults.before = [*([None] * nth), StoreFailed("fsync said no")]
    opened = env.faults.opened
    handle = await env.start(steps, "a")
    assert len(await handle.result()) == 4
    assert env.faults.opened == opened + 1
    assert max(Counter(executed).values()) <= 2
    assert len(await handle.journal()) == 5


async def test_a_claim_that_fails_is_tried_again(env: World) -> None:
    await env.worker.stop()
    handle = await env.client.start("steps", "a")
    env.faults.claim_fails = [AWAY, UNKNOWN, AWAY]
    await env.deploy()
    assert len(await handle.result()) == 4
    assert_each_step_ran_once("a")


async def test_a_worker_that_cannot_register_says_so(env: World) -> None:
    async def away(worker: WorkerInfo) -> int:
        raise AWAY

    env.faults.register = away  # type: ignore[method-assign]  # for this test alone
    with pytest.raises(StoreError, match="away"):
        await env.client.worker(workflows=[steps]).__aenter__()


async def test_an_unexpected_error_of_the_store_does_not_stop_the_worker(env: World) -> None:
    env.faults.before = [None, None, RuntimeError("a bug in the driver")]
    handle = await env.start(steps, "a")
    assert len(await handle.result()) == 4
    assert len(await handle.journal()) == 5


async def test_a_run_taken_by_another_worker_is_dropped_and_its_waiters_look_to_the_store(env: World) -> None:
    handle = await env.start(steps, "a")
    waiting = asyncio.create_task(handle.result())
    await asyncio.sleep(0)
    session = env.worker.session
    assert session is not None
    await env.store.retire(session.info.worker_id)  # everyone but the worker itself believes that it is dead
    other = env.client.worker(workflows=[steps], activities=[act])
    async with other:
        assert len(await waiting) == 4
    assert len(await handle.journal()) == 5
