"""How the runs of claims are doing, for those who do not want to ask the engine (C-04)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime
from typing import Any, Final

from msgspec import Struct, structs

from batuta import Middleware, RunCall
from batuta.cache import Cache, Entity
from batuta.telemetry import (
    ActivityCompleted,
    ActivityFailed,
    ActivityStarted,
    Event,
    RunClosed,
    RunEvent,
    RunReleased,
    RunStarted,
)

STATUS = "workflow:claim:{workflow_id}:status"
METADATA = "workflow:claim:{workflow_id}:metadata"
STATUS_LIFETIME, METADATA_LIFETIME = 30.0, 30 * 86_400.0
CLAIMS: Final = {"claim_key": ("claim-", ""), "answer_claim": ("answer-", "donor-")}
"""Of each workflow of claims: how the ids of its runs begin, and with what our own id of the claim begins instead."""
_WORDS = {
    "completed": "COMPLETED",
    "timed_out": "TIMED_OUT",
    "failed": "FAILED",
    "cancelled": "FAILED",
    "terminated": "FAILED",
}


class WorkflowMetadata(Struct, frozen=True, kw_only=True):
    """The fields of document C."""

    workflow_id: str
    workflow_type: str
    started_at: datetime
    claim_id: str
    current_activity: str | None
    """None while the run waits, and at its end."""


class WorkflowStates(Middleware):
    """Middleware that writes the state of each run of a claim as it starts, as its activities start and end, and as it
    ends. It writes in the background: no run waits for Redis. Where several changes wait, the last one is written."""

    events = (RunStarted, RunClosed, RunReleased, ActivityStarted, ActivityCompleted, ActivityFailed)

    def __init__(self, cache: Cache) -> None:
        self._status = Entity(cache, STATUS, str, lifetime=STATUS_LIFETIME, early=0)
        self._metadata = Entity(cache, METADATA, WorkflowMetadata, lifetime=METADATA_LIFETIME, early=0)
        self._known: dict[str, WorkflowMetadata] = {}
        """Of the runs in the memory of this process."""
        self._waiting: dict[str, tuple[str, WorkflowMetadata | None]] = {}
        """What is to be written."""
        self._writer: asyncio.Task[None] | None = None

    async def status(self, workflow_id: str, load: Callable[[], Awaitable[str | None]]) -> str | None:
        """RUNNING, COMPLETED, FAILED or TIMED_OUT. `load` asks the engine for the state of the run, once the status is
        30 seconds old."""

        async def status() -> str | None:
            state = await load()
            return None if state is None else status_of(state)

        return await self._status.get_or_load(status, workflow_id=workflow_id)

    async def metadata(self, workflow_id: str) -> WorkflowMetadata | None:
        """What a run was doing when it was last heard of, within 30 days."""
        return await self._metadata.get(workflow_id=workflow_id)

    async def flush(self) -> None:
        """Wait until everything is written."""
        while self._writer is not None:
            await asyncio.shield(self._writer)

    # -- what the engine calls

    async def run(self, run: RunCall, proceed: Callable[[], Awaitable[Any]]) -> Any:
        info = run.info
        if info.workflow in CLAIMS:
            self._known[info.id] = WorkflowMetadata(
                workflow_id=info.id,
                workflow_type=info.workflow,
                started_at=info.started_at,
                claim_id=claim_id_of(info.workflow, info.id),
                current_activity=None,
            )
        return await proceed()

    def event(self, event: Event) -> None:
        if not isinstance(event, RunEvent) or event.run.name not in CLAIMS:
            return
        id, known = event.run.id, self._known.get(event.run.id)
        status = "RUNNING"
        match event:
            case ActivityStarted() if known is not None:
                known = structs.replace(known, current_activity=event.activity)
            case ActivityCompleted() | ActivityFailed() if known is not None:
                if known.current_activity == event.activity:
                    known = structs.replace(known, current_activity=None)
            case RunClosed():
                status = status_of(event.state)
                known = None if known is None else structs.replace(known, current_activity=None)
        if isinstance(event, RunClosed | RunReleased):
            self._known.pop(id, None)
        elif known is not None:
            self._known[id] = known
        if not isinstance(event, RunReleased):
            self._write(id, status, known)

    # -- inside

    def _write(self, id: str, status: str, metadata: WorkflowMetadata | None) -> None:
        self._waiting[id] = (status, metadata)
        if self._writer is None:
            self._writer = asyncio.get_running_loop().create_task(self._write_waiting(), name="states of claims")

    async def _write_waiting(self) -> None:
        try:
            while self._waiting:
                id = next(iter(self._waiting))
                status, metadata = self._waiting.pop(id)
                await self._status.put(status, workflow_id=id)
                if metadata is None and status != "RUNNING":  # ended from outside, in the middle of something
                    metadata = await self.metadata(id)
                    metadata = metadata and structs.replace(metadata, current_activity=None)
                if metadata is not None:
                    await self._metadata.put(metadata, workflow_id=id)
        finally:
            self._writer = None


def status_of(state: str) -> str:
    """The word of document C for the state of a run."""
    return _WORDS.get(state.lower(), "RUNNING")


def claim_id_of(workflow: str, run_id: str) -> str:
    """Our own id of the claim that a run is about."""
    begins, ours = CLAIMS[workflow]
    return ours + run_id.removeprefix(begins)
