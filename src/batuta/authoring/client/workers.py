"""Workers as operators see them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from msgspec import Struct, json

from batuta.authoring.definitions import code_of
from batuta.authoring.jobs import job_code
from batuta.authoring.schemas import CodeSchema
from batuta.authoring.services import StoreAccess
from batuta.clock import SECOND, as_datetime
from batuta.journal.records import WorkerView
from batuta.journal.server.documents import SCHEMAS


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


class Workers:
    """The workers of the namespace: `client.workers`."""

    def __init__(self, access: StoreAccess) -> None:
        self._store = access.store

    async def list(self) -> Sequence[WorkerRow]:
        """Every worker that has registered and was neither stopped nor reaped, by its id."""
        now = await self._store.now()
        return [_row(view, now) for view in await self._store.workers()]

    async def schemas(self) -> Sequence[CodeSchema]:
        """What workflows and jobs take, as JSON schemas: as the worker that started last published it. Newest code
        first, up to 1,000."""
        return [json.decode(one.body, type=CodeSchema) for one in await self._store.documents(SCHEMAS)]

    async def schema(self, name: str, version: str = "", *, kind: str = "workflow") -> CodeSchema | None:
        """That of one workflow, or with kind="job" of one job; None when no worker has published it."""
        found = await self._store.document(SCHEMAS, job_code(name) if kind == "job" else code_of(name, version))
        return None if found is None else json.decode(found.body, type=CodeSchema)


def _row(view: WorkerView, now: int) -> WorkerRow:
    return WorkerRow(
        worker_id=view.worker_id,
        host=view.host,
        pid=view.pid,
        queues=view.queues,
        code=view.code,
        started_at=as_datetime(view.registered_at),
        beat_at=as_datetime(view.beat_at),
        silent=max(0, now - view.beat_at) / SECOND,
        live=view.live,
        lease=(view.lease_until - view.beat_at) / SECOND,
        runs=view.runs,
    )
