"""Workers as operators see them: host, queues, code, last heartbeat."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol

from msgspec import Struct

from batuta.authoring.definitions import code_of
from batuta.authoring.jobs import job_code
from batuta.authoring.schemas import CodeSchema


class WorkerRow(Struct, kw_only=True):
    """A worker that has registered and was neither stopped nor reaped."""

    worker_id: str
    host: str
    pid: int
    queues: list[str]
    code: dict[str, str]
    """The code that it has, by name (`name@version` for a version, `activity:name` for an activity), with
    fingerprints."""
    started_at: datetime
    beat_at: datetime
    """When it last renewed its lease."""
    silent: float
    """Seconds since then, by the clock of the database."""
    live: bool
    """Its lease is not over."""
    lease: float
    """Seconds that a beat keeps it alive."""
    runs: int
    """How many it owns now."""


class WorkerService(Protocol):
    """Knows the workers of the namespace."""

    async def list(self) -> Sequence[WorkerRow]: ...
    async def schemas(self) -> Sequence[CodeSchema]: ...
    async def schema(self, code: str) -> CodeSchema | None: ...


class Workers:
    """The workers of the namespace: `client.workers`."""

    def __init__(self, backend: WorkerService) -> None:
        self._backend = backend

    async def list(self) -> Sequence[WorkerRow]:
        """Every worker that has registered and was neither stopped nor reaped, by its id."""
        return await self._backend.list()

    async def schemas(self) -> Sequence[CodeSchema]:
        """What workflows and jobs take, as JSON schemas: as the worker that started last published it. Newest code
        first, up to 1,000."""
        return await self._backend.schemas()

    async def schema(self, name: str, version: str = "", *, kind: str = "workflow") -> CodeSchema | None:
        """That of one workflow, or with kind="job" of one job; None when no worker has published it."""
        return await self._backend.schema(job_code(name) if kind == "job" else code_of(name, version))
