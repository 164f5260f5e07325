"""A worker that dies, or whose code fails, at every moment of some jobs' lives: none is lost, none ends twice."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from batuta import Batch, JobCall, Retry, RunState, batch_info, checkpoint, failpoints, job, last_checkpoint, progress
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.records import RunFilter
from batuta.testing import Environment
from batuta.verify import verify
from tests.engine.moments import PARKS, Killed, Moment
from tests.long import some_of

ROWS = 3
executed: Counter[str] = Counter()
copied: list[int] = []


@job
async def quick(name: str) -> str:
    executed[name] += 1
    progress(name)
    return name


@job(retry=Retry(attempts=2, first=1, jitter=0))
async def shaky(name: str) -> str:
    executed[name] += 1
    if executed[name] == 1:
        raise LookupError(name)
    return name


@job
async def copy() -> int:
    """Does no row twice whose checkpoint it has seen."""
    executed["copy"] += 1
    for row in range(last_checkpoint(int, 0), ROWS):
        copied.append(row)
        await checkpoint(row + 1)
        assert last_checkpoint(int) == row + 1
        await asyncio.sleep(1)
    return ROWS


@job
async def report() -> int:
    executed["report"] += 1
    return (await batch_info()).completed


class JobMoment(Moment):
    """Fails or kills the worker at one passage, without a message."""

    def __init__(self, env: Environment, at: int, action: str) -> None:
        super().__init__(env, at, action, lambda _: pytest.fail("it sends nothing"))

    def pass_by(self, name: str) -> None:
        if self._action != "fail" or name != PARKS:
            super().pass_by(name)

    def send(self) -> None:
        pass


async def begin(env: Environment, moment: JobMoment) -> Batch:
    calls: list[JobCall[Any]] = [
        quick.call("a").with_options(id="a"),
        shaky.call("b").with_options(id="b"),
        copy.call().with_options(id="copy"),
    ]
    while True:
        try:
            return await env.client.enqueue_many(calls, on_done=report.call().with_options(id="report"))
        except (OutcomeUnknown, StoreUnavailable, failpoints.InjectedFault, Killed):
            await moment.recovered()


async def live(at: int, action: str) -> Moment:
    """One life, with a mishap at one moment of it."""
    executed.clear()
    copied.clear()
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
    async with Environment(jobs=[quick, shaky, copy, report]) as env:
        moment = JobMoment(env, at, action)
        failpoints.armed = moment  # type: ignore[assignment]  # it has what is asked of it
        try:
            batch = await begin(env, moment)
            await env.advance(3000)
            await moment.recovered()
            await env.advance(3000)
        finally:
            failpoints.arm()
        states = {handle.id: (await handle.describe()).state for handle in batch}
        assert set(states.values()) == {RunState.COMPLETED}, (moment.where, states)
        assert batch.done is not None
        assert await batch.done.result() == 3, moment.where
        await check(env, moment)
        return moment


async def check(env: Environment, moment: JobMoment) -> None:
    """Each was done, and again only where the mishap was; each run has one end."""
    assert set(executed) == {"a", "b", "copy", "report"}, moment.where
    assert sum(executed.values()) <= 5 + 3, (moment.where, executed)
    assert copied[:1] == [0]
    assert len(copied) <= ROWS + 1, (moment.where, copied)
    assert sorted(set(copied)) == list(range(ROWS)), (moment.where, copied)
    page = await env.store.list_runs(RunFilter(), None, 100)
    assert sorted(run.id for run in page.runs) == ["a", "b", "copy", "report"], moment.where
    found = await verify(env.store)
    assert not found.violations, (moment.where, found.violations)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["fail", "kill"])
async def test_no_job_is_lost_and_none_ends_twice(action: str) -> None:
    calm = await live(0, action)
    assert len(calm.sites) > 30
    sites = {(await live(at, action)).where for at in some_of(calm.sites)}
    assert "" not in sites
    needed = {"enqueue.before", "enqueue.after", "claim.after", "claim.loaded", "activity.before", "activity.after"}
    needed |= {"activity.failed", "activity.retry", "checkpoint.before", "checkpoint.after", "commit.before"}
    assert needed | {"commit.effects", "close.durable"} <= sites
