"""Recorded journals against today's code."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

from msgspec import Struct

from batuta.authoring.definitions import Workflow, code_of
from batuta.authoring.history.compensations import COMPENSATE
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.replay import Replay
from batuta.engine.machine.sagas import CompensationWorkflow
from batuta.errors import InvalidInput, WorkflowBroken
from batuta.ids import RunId, derived_run_id
from batuta.journal.export import Exported, export
from batuta.journal.paging import all_pages
from batuta.journal.records import RunFilter, RunKind
from batuta.journal.store import Store
from batuta.verify.code_replay import call_workflow, outside_task

_RUNS = 100


class Replayed(Struct, kw_only=True):
    """The result for one journal."""

    id: str
    run_id: str
    workflow: str
    version: str
    entries: int
    verdict: str
    """ok; differs; no code (there is no definition of that workflow and version)."""
    difference: str = ""
    """Both sides, where they part."""


async def replay_exported(code: Mapping[str, Workflow[..., Any]], exported: Exported) -> Replayed:
    """Feed the journal to the code. An input that the code would now send otherwise is a difference here."""
    done = Replayed(
        id=exported.id,
        run_id=exported.run_id,
        workflow=exported.workflow,
        version=exported.version,
        entries=len(exported.entries),
        verdict="ok",
    )
    workflow = code.get(code_of(exported.workflow, exported.version))
    if workflow is None and exported.workflow == COMPENSATE:
        workflow = CompensationWorkflow()
    if exported.kind is not RunKind.WORKFLOW:
        workflow = call_workflow(exported.kind, exported.workflow)
    if workflow is None:
        done.verdict = "no code"
        return done
    identity = RunIdentity(_run_id(exported), exported.id, exported.queue, exported.namespace)
    machine = Machine(workflow, identity)
    replay = Replay(machine, exported.journal_entries())
    try:
        await outside_task(replay.run)
        done.difference = replay.warnings[0] if replay.warnings else ""
    except (WorkflowBroken, InvalidInput) as error:
        done.difference = str(error)
    except Exception as error:  # noqa: BLE001 - any error of a replay is the finding
        done.difference = f"its replay failed: {error!r}"
    finally:
        await outside_task(machine.tear_down)
    if done.difference:
        done.verdict = "differs"
    return done


def _run_id(exported: Exported) -> RunId:
    try:
        return RunId(exported.run_id)
    except ValueError:
        return derived_run_id(0, exported.id, 0)


async def exported_runs(store: Store, where: RunFilter, most: int | None = None) -> AsyncIterator[Exported]:
    """The begun workflow runs of a store, newest first."""
    given = 0
    async for page in all_pages(lambda cursor: store.list_runs(where, cursor, _RUNS)):
        for run in page.runs:
            if run.kind is RunKind.WORKFLOW and run.head >= 0:
                yield await export_run(store, run.run_id)
                given += 1
                if given == most:
                    return


async def export_run(store: Store, run_id: RunId) -> Exported:
    """One run, with its journal as far as it goes now."""
    run = await store.get_run(run_id)
    entries = await store.journal(run_id)
    while entries and (page := await store.journal(run_id, entries[-1].ord)):
        entries += page
    return export(run, store.namespace, entries)
