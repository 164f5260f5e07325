"""What the engine's tests are made of."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from batuta import Handle, RunState, Workflow
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.journal.entries import Entry
from batuta.journal.records import RunFilter
from batuta.journal.states import PARKED
from batuta.journal.store import Store
from batuta.serde import MAX_PAYLOAD
from batuta.testing import Environment
from batuta.verify import verify


@asynccontextmanager
async def world(*things: Any, **settings: Any) -> AsyncIterator[Environment]:
    """An environment with these workflows and activities. At its end every journal in it is replayed."""
    workflows = [thing for thing in things if isinstance(thing, Workflow)]
    activities = [thing for thing in things if not isinstance(thing, Workflow)]
    async with Environment(workflows=workflows, activities=activities, **settings) as env:
        yield env
        limit = settings.get("max_payload", MAX_PAYLOAD)
        await replay_all(env.store, {workflow.name: workflow for workflow in env.workflows}, limit)


@asynccontextmanager
async def jobs(*things: Any, **settings: Any) -> AsyncIterator[Environment]:
    """An environment with these jobs. At its end everything in the store is as it should be."""
    async with Environment(jobs=things, **settings) as env:
        yield env
        assert env.worker.session is not None
        session = env.worker.session
        counted = sum(pool.calls for pool in session.admission._pools.values())
        assert counted == sum(run.is_call for run in session.runs.values())
        report = await verify(env.store)
        assert not report.violations, report


async def replay_all(store: Store, workflows: dict[str, Workflow[..., Any]], limit: int = MAX_PAYLOAD) -> None:
    """Each run that is not parked can be rebuilt from its journal, and ends as it did."""
    page = await store.list_runs(RunFilter(), None, 1000)
    for run in page.runs:
        if run.state not in PARKED and run.head >= 0 and run.name in workflows:
            machine = replay(workflows[run.name], await store.journal(run.run_id), run.id, limit)
            machine.tear_down()


def replay(
    workflow: Workflow[..., Any], entries: list[Entry], id: str = "replayed", limit: int = MAX_PAYLOAD
) -> Machine:
    """The run, rebuilt. Raises WorkflowBroken when the code does not replay the journal."""
    first = entries[0]
    machine = Machine(workflow, RunIdentity(_run_id(first), id, "default", "default"))
    Replay(machine, entries).run()
    return machine


def _run_id(entry: Entry) -> Any:
    return f"run-of-{entry.crc}"


async def crash_without_blame(env: Environment) -> None:
    """As `env.crash()`, but no death is counted: for tests that kill a worker far more often than runs survive it."""
    session = env.worker.session
    assert session is not None
    session.abandon()
    await session.abandoned()
    await env.store.retire(session.info.worker_id)
    await env._begin()


async def journal_of(env: Environment, handle: Handle[Any]) -> list[Entry]:
    """The rows of a run's journal."""
    return await env.store.journal(handle.run_id)


async def parked(env: Environment, handle: Handle[Any]) -> str:
    """Let things happen until nothing can; the run must be parked then. Why it is."""
    await env.settle()
    found = await handle.describe()
    assert found.state is RunState.NEEDS_CODE, f"the run is {found.state}, not parked"
    return found.reason


async def commands(handle: Handle[Any]) -> list[str]:
    """What a run issued, in order, as `kind name`."""
    return [f"{c.kind} {c.name}".strip() for line in await handle.journal() for c in line.body.commands]
