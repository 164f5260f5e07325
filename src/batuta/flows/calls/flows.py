"""Flows, events and their runs for a client: `client.flows`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from batuta.authoring.services import FlowService
from batuta.flows.calls import serving, starters
from batuta.flows.calls.catalog import Catalog
from batuta.flows.calls.events import Events
from batuta.flows.calls.history import History
from batuta.flows.calls.reading import Client
from batuta.flows.calls.runs import FlowRuns
from batuta.flows.models import AuditLog
from batuta.flows.stored_secrets import StoredSecrets
from batuta.flows.workflow import Flows as WorkerFlows
from batuta.journal.audit import Verb
from batuta.journal.flows.records import FlowFilter, FlowRow, FlowSchedule
from batuta.serde import MAX_PAYLOAD


class Flows(Catalog):
    """The flows of one namespace, with its `events` and the `runs` of flows."""

    def __init__(self, client: Client, backend: FlowService, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__(backend)
        self._client: Any = client
        self.secrets = StoredSecrets(backend)
        """Secrets that actions name as `secret://store/NAME`."""
        self.events = Events(client, backend, max_payload)
        """Events: sent, replayed, looked at."""
        self.runs = FlowRuns(client, backend, self, self.events)
        """Runs of flows: started by hand, looked at, retried, cancelled, decided."""
        self._history = History(self._client, self, self.events, self.runs)

    async def audit(self, entity: str, entity_id: object) -> Sequence[AuditLog]:
        """Each change of a `run` with its steps, of a `workflow` or of an `event`, the oldest first. Raises
        UnknownRun, UnknownFlow, UnknownEvent."""
        return await self._history.of(entity, entity_id)

    def worker(self, flows: WorkerFlows | None = None, **own: Any) -> serving.FlowWorker:
        """Made by `client.worker(flows=...)`."""
        made = WorkerFlows(workflows_of=self.published) if flows is None else flows
        return serving.FlowWorker(self._client, self._backend, made, own)

    async def parts(self, /, **options: Any) -> dict[str, Any]:
        """All that a worker needs for the flows that are active now: `client.worker(**await client.flows.parts())`.

        `options` are those of `batuta.flows.workflow.Flows`. Such a worker does not learn of queues and topics that
        later flows need, as `client.worker(flows=True)` does.
        """
        needs = serving.needs_of(await serving.active_rows(self._backend))
        flows = WorkerFlows(**{"workflows_of": self.published} | options)
        return serving.parts_of(flows, starters.Starters(self), needs)

    async def _prepare(self, row: FlowRow) -> FlowSchedule:
        if not row.is_active:
            return FlowSchedule(starters.schedule_id(row.name))
        planned = await starters.prepare(self._client, row)
        made = None if planned is None else await self._backend.schedule_row(planned)
        return FlowSchedule(starters.schedule_id(row.name), made)

    async def _write(self, row: FlowRow, verb: Verb, reason: str, schedule: FlowSchedule | None = None) -> None:
        # With a schedule it becomes active, or is active no longer: messages are kept for what it was.
        before = set() if schedule is None else await self._topics(row.name)
        await super()._write(row, verb, reason, schedule)
        for topic in before and before - await self._topics(row.name):
            await starters.drop(self._client, topic, row.name)

    async def _topics(self, name: str) -> set[str]:
        """Of the active version."""
        rows = await self._backend.store.flows(FlowFilter(name=name, active=True), limit=1)
        return {starters.topic_of(row) for row in rows} - {""}
