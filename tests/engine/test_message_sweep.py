"""A signal at every moment of a run's life: acknowledged means delivered once, also when the worker dies right then."""

import asyncio
from collections import Counter
from typing import Any

import pytest

from batuta import Handle, RunClosed, Signal, UnknownRun, activity, continue_as_new, failpoints, workflow
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.ids import RunId
from batuta.journal.entries import EntryKind, decode_body
from batuta.journal.records import Message, MessageKind, RunFilter
from batuta.testing import Environment
from tests.engine.kit import replay_all

note = Signal("note", int)
go = Signal("go")


@activity
async def act(number: int) -> int:
    await asyncio.sleep(1)
    return number


@workflow
async def handles() -> list[int]:
    """Leaves memory twice, works once, and has seen all that it was sent when it ends."""
    seen: list[int] = []
    note.handle(seen.append)
    await go.wait()
    await act(1)
    await asyncio.sleep(100)
    await go.wait()
    return seen


@workflow
async def continues(left: int = 2) -> list[int]:
    """Leaves the notes alone until its last run."""
    await go.wait()
    if left:
        await act(left)
        continue_as_new(left - 1)
    seen = []
    while True:
        try:
            seen.append(await note.wait(timeout=10))
        except TimeoutError:
            return seen


PARKS = "turn.after"
"""An error there is taken for one of the workflow's code: the run is parked, and waits for other code."""


class Killed(BaseException):
    """What a dying worker's code sees."""


class Moment:
    """Sends a note at one passage of a failpoint, counted over all sites, then lets the worker live, fail or die."""

    def __init__(self, env: Environment, at: int, action: str) -> None:
        self._env, self._at, self._action = env, at, action
        self.run_id: RunId | None = None
        self.passed = 0
        self.where = ""
        self.acknowledged = False
        self._recovering: asyncio.Task[None] | None = None

    def pass_by(self, name: str) -> None:
        session = self._env.worker.session
        if session is None or self._recovering is not None or name == "claim.before" or name.startswith("stop"):
            return
        self.passed += 1
        if self.passed == self._at:
            self.where = name
            self._send()
            self._act(session)

    def _send(self) -> None:
        """The memory store never really waits: its verbs can be called from anywhere."""
        message = Message(message_id="the note", kind=MessageKind.SIGNAL, name="note", body=str(self._at))
        try:
            if self.run_id is not None:
                self._env.store.send(self.run_id, message).send(None)
        except StopIteration:
            self.acknowledged = True
        except (RunClosed, UnknownRun):
            pass

    def _act(self, session: Any) -> None:
        if self._action == "live" or (self._action == "fail" and self.where == PARKS):
            return
        if self._action == "kill":
            session.abandon()
        self._recovering = asyncio.get_running_loop().create_task(self._recover())
        raise Killed(self.where) if self._action == "kill" else failpoints.InjectedFault(self.where)

    async def _recover(self) -> None:
        if self._action == "fail":  # let it do what it does about an error first
            await asyncio.sleep(1000)
        await self._env.crash()
        self._recovering = None

    async def recovered(self) -> None:
        while self._recovering is not None:
            await asyncio.gather(self._recovering)


async def begin(env: Environment, workflow: Any, moment: Moment) -> Handle[Any]:
    while True:
        try:
            return await env.start(workflow, id="one")
        except (OutcomeUnknown, StoreUnavailable, failpoints.InjectedFault):
            await moment.recovered()


async def live(workflow: Any, times: int, at: int, action: str) -> Moment:
    """One life, with a note at one moment of it. Returns the moment."""
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: None)
    async with Environment(workflows=[workflow], activities=[act]) as env:
        moment = Moment(env, at, action)
        failpoints.armed = moment  # type: ignore[assignment]  # it has what is asked of it
        try:
            handle = await begin(env, workflow, moment)
            moment.run_id = handle.run_id
            for number in range(times):
                await env.advance(200)
                await handle.signal(go, message_id=str(number))
            await moment.recovered()
            result = await handle.result()
            await moment.recovered()
        finally:
            failpoints.arm()
        if workflow is handles:
            assert result == ([at] if moment.acknowledged else []), moment.where
        await check_delivered(env, moment)
        await replay_all(env.store, {workflow.name: workflow})
        return moment


async def check_delivered(env: Environment, moment: Moment) -> None:
    counted = Counter[str]()
    for run in (await env.store.list_runs(RunFilter(), None, 100)).runs:
        for entry in await env.store.journal(run.run_id):
            if entry.kind is EntryKind.SIGNAL:
                counted[decode_body(entry).message_id] += 1
    assert counted.pop("the note", 0) == (1 if moment.acknowledged else 0), moment.where
    assert max(counted.values()) == 1, moment.where


@pytest.mark.timeout(300)
@pytest.mark.parametrize("action", ["live", "fail", "kill"])
@pytest.mark.parametrize(("workflow", "times"), [(handles, 2), (continues, 3)], ids=["handles", "continues"])
async def test_a_signal_at_every_passage_is_delivered_once_if_it_was_acknowledged(
    workflow: Any, times: int, action: str
) -> None:
    sites, acknowledged, at = set(), 0, 1
    while True:
        moment = await live(workflow, times, at, action)
        if not moment.where:
            break
        sites.add(moment.where)
        acknowledged += moment.acknowledged
        at += 1
    assert at > 30
    assert {"evict.before", "evict.after", "claim.after", "claim.loaded", "commit.before", "close.durable"} <= sites
    assert acknowledged > at // 2
