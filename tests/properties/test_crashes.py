"""Random workflows, and workers that die at random moments: the same results as if nobody had died."""

import asyncio
import json
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from batuta import Handle, RunCancelled, RunClosed, RunFailed, RunState, failpoints
from batuta.errors import OutcomeUnknown, StoreUnavailable
from batuta.journal.entries import EntryKind, crc_holds, decode_body
from batuta.journal.records import RunFilter, RunKind
from batuta.journal.states import CLAIMABLE, CLOSED
from batuta.testing import Environment, run
from tests.engine.kit import crash_without_blame, replay
from tests.long import examples, some_of
from tests.properties.programs import Node, act, act_in_thread, executed, fail, flaky, note, once, program, programs

pytestmark = pytest.mark.timeout(300)  # they compute for seconds, on a busy machine for a minute

CANCEL_AT = 7.0625
UNINTERESTING = {"claim.before", "stop.begin", "stop.released"}
"""Nothing is at stake there, and they are passed often."""


class Killed(BaseException):
    """What a dying worker's code sees: nothing is caught, nothing goes on."""


class Killer:
    """Kills the worker at given passages of failpoints, counted over all sites. Another one takes over."""

    def __init__(self, env: Environment, moments: set[int]) -> None:
        self._env, self._moments = env, moments
        self.sites: list[str] = []
        """Those that were passed, in their order."""
        self.killed: list[str] = []
        self._recovering: asyncio.Task[None] | None = None

    def pass_by(self, name: str) -> None:
        session = self._env.worker.session
        if session is None or self._recovering is not None or name in UNINTERESTING:
            return
        self.sites.append(name)
        if len(self.sites) in self._moments:
            self.killed.append(name)
            session.abandon()
            self._recovering = asyncio.get_running_loop().create_task(self._recover())
            raise Killed(name)

    async def _recover(self) -> None:
        await crash_without_blame(self._env)
        self._recovering = None

    async def recovered(self) -> None:
        while self._recovering is not None:
            await asyncio.gather(self._recovering)


def forgive_the_killed(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    if not isinstance(context.get("exception"), Killed):
        loop.default_exception_handler(context)


async def begin(env: Environment, node: Node, killer: Killer) -> Handle[Any]:
    """Start it as a client does: again when the answer is lost."""
    while True:
        try:
            return await env.start(program, node, id="one")
        except (OutcomeUnknown, StoreUnavailable):
            await killer.recovered()


async def ending(handle: Handle[Any]) -> Any:
    try:
        end = ["completed", await handle.result()]
    except (RunFailed, RunCancelled) as error:
        end = [str(error)]
    return json.loads(re.sub(r"(/\d+)-[0-9a-f]{6}", r"\1", json.dumps(end)))  # ids of children end with chance


async def lived_through(
    node: Node, *, cancel: bool = False, moments: set[int], always_replay: bool = False, sites: list[str] | None = None
) -> Any:
    """How it ended. `sites` is given the failpoints that were passed."""
    executed.clear()
    asyncio.get_running_loop().set_exception_handler(forgive_the_killed)
    given = {"activities": [act, act_in_thread, flaky, fail, once], "jobs": [note], "always_replay": always_replay}
    async with Environment(workflows=[program], **given) as env:  # type: ignore[arg-type]  # each is what it must be
        killer = Killer(env, moments)
        failpoints.armed = killer  # type: ignore[assignment]  # it has what is asked of it
        try:
            handle = await begin(env, node, killer)
            if cancel:
                await asyncio.sleep(CANCEL_AT)
                try:
                    await handle.cancel("enough")
                except RunClosed:
                    pass
            end = await ending(handle)
            await killer.recovered()
        finally:
            failpoints.arm()
        if sites is not None:
            sites += killer.sites
        await check_journals(env)
        if not killer.killed and not cancel:
            assert_executed_once(node)
        return end


async def check_journals(env: Environment) -> None:
    """Of the run, its successors and all children: unbroken, each command answered once, and the code replays it.
    What transactional activities sent has left, once for each of their results."""
    sent = 0
    for row in (await env.store.list_runs(RunFilter(kind=RunKind.WORKFLOW), None, 1000)).runs:
        assert row.state in CLOSED or row.state in CLAIMABLE or row.state is RunState.RUNNING, row.reason
        entries = await env.store.journal(row.run_id)
        crc, answered = 0, Counter[tuple[int, bool]]()
        for number, entry in enumerate(entries):
            assert entry.ord == number
            assert crc_holds(entry, crc)
            crc = entry.crc
            answered[decode_body(entry).seq, entry.kind is EntryKind.ACCEPTED] += 1
            sent += entry.kind is EntryKind.ACTIVITY_DONE and decode_body(entry).name == "once"
        del answered[0, False]
        assert max(answered.values(), default=1) == 1
        if entries:
            replay(program, entries, row.id).tear_down()
    assert await env.store.count_runs(RunFilter(kind=RunKind.JOB)) == sent


def assert_executed_once(node: Node) -> None:
    attempts = 3 if "flaky" in str(node) else 1
    assert max(Counter(executed).values(), default=0) <= attempts


@settings(
    derandomize=True,
    deadline=None,
    max_examples=examples(60),
    suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.generate],  # a failing example is short enough to read, and shrinking takes minutes
)
@given(
    node=programs,
    cancel=st.booleans(),
    moments=st.sets(st.integers(1, 80), min_size=1, max_size=8),
    always_replay=st.booleans(),
)
@example(node=["seq", ["act", 1], ["nap", 100], ["act", 2]], cancel=False, moments={1, 2, 3, 4}, always_replay=False)
@example(
    node=["gather", ["once", 1, 0.25], ["once", 2, 0.25], ["act", 3]], cancel=True, moments={9}, always_replay=True
)
@example(node=["then", ["child", ["act", 1]], ["act", 2]], cancel=False, moments={3, 6, 9, 12}, always_replay=False)
def test_crashes_do_not_change_the_result(node: Node, cancel: bool, moments: set[int], always_replay: bool) -> None:
    calm = run(lived_through(node, cancel=cancel, moments=set(), always_replay=False))
    stormy = run(lived_through(node, cancel=cancel, moments=moments, always_replay=always_replay))
    assert stormy == calm


def dies_in_turn(node: Node, least: int) -> None:
    """The worker dies at one passage after the other, of `least` that there are. The end is the same."""
    sites: list[str] = []
    calm = run(lived_through(node, moments=set(), sites=sites))
    assert len(sites) >= least
    for moment in some_of(sites):
        assert run(lived_through(node, moments={moment})) == calm, moment


def test_a_worker_that_dies_at_every_passage_in_turn_changes_nothing() -> None:
    node: Node = ["seq", ["gather", ["act", 1], ["flaky", 2, 40.25]], ["nap", 100], ["thread", 3]]
    dies_in_turn(node, 40)


def test_a_family_whose_worker_dies_at_every_passage_in_turn_comes_to_the_same_end() -> None:
    inner: Node = ["gather", ["child", ["act", 1]], ["child", ["fail", 2]], ["begin", ["nap", 50], ["act", 3]]]
    node: Node = ["then", ["timeout", 20.5, ["child", ["nap", 100]]], inner]
    dies_in_turn(node, 100)


def test_transactional_activities_whose_worker_dies_at_every_passage_in_turn_send_once() -> None:
    both: Node = ["gather", ["once", 1, 0.25], ["once", 2, 0.25], ["flaky", 3, 40.25], ["nap", 100]]
    node: Node = ["seq", both, ["timeout", 5.5, ["once", 4, 0.5]], ["child", ["once", 5]]]
    dies_in_turn(node, 90)
