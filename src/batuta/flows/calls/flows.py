"""Flows, events and their runs for a client: `client.flows`."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from batuta.authoring.services import FlowService
from batuta.errors import InvalidInput
from batuta.flows.calls import serving, starters
from batuta.flows.calls.catalog import Catalog
from batuta.flows.calls.events import Events
from batuta.flows.calls.reading import Client
from batuta.flows.calls.runs import FlowRuns
from batuta.flows.models import AuditLog, derived_id
from batuta.flows.stored_secrets import StoredSecrets
from batuta.flows.workflow import Flows as WorkerFlows
from batuta.journal.audit import Verb
from batuta.serde import MAX_PAYLOAD

_MOST_ACTS: Final = 200
_ACTIONS: Final[dict[str, str]] = {
    Verb.CREATE_FLOW: "created",
    Verb.PUBLISH_FLOW: "published",
    Verb.ACTIVATE_FLOW: "status_changed",
    Verb.DEACTIVATE_FLOW: "status_changed",
}


class Entity(StrEnum):
    """What an AuditLog is about. Those of a run have its steps, too."""

    EVENT = "event"
    RUN = "run"
    WORKFLOW = "workflow"


class Flows(Catalog):
    """The flows of one namespace, with its `events` and the `runs` of flows."""

    def __init__(self, client: Client, backend: FlowService, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__(client, backend)
        self.secrets = StoredSecrets(backend)
        """Secrets that actions name as `secret://store/NAME`."""
        self.events = Events(client, backend, max_payload)
        """Events: sent, replayed, looked at."""
        self.runs = FlowRuns(client, backend, self, self.events)
        """Runs of flows: started by hand, looked at, retried, cancelled, decided."""

    async def audit(self, entity: str, entity_id: object) -> Sequence[AuditLog]:
        """Each change of a `run` with its steps, of a `workflow` or of an `event`, the oldest first. Raises
        UnknownRun, UnknownFlow, UnknownEvent."""
        if entity == Entity.RUN:
            return (await self.runs.get(entity_id)).audit
        if entity == Entity.EVENT:
            event = await self.events.get(entity_id)
            details = {"type": event.type, "source": event.source}
            return [_line(entity, event.id, 0, "created", event.created_at, details)]
        if entity != Entity.WORKFLOW:
            raise InvalidInput(f"entity={str(entity)[:100]!r} must be one of {', '.join(Entity)}")
        row = await self.row(entity_id)
        page = await self._client.audit(target=row.target, limit=_MOST_ACTS)
        id = str(row.workflow_id)
        return [
            _line(entity, id, one.number, _ACTIONS[one.verb], one.at, _details(row.version, one))
            for one in reversed(page.rows)
            if one.verb in _ACTIONS and one.after == {"id": id}
        ]

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


def _details(version: int, one: Any) -> dict[str, Any]:
    active = {Verb.ACTIVATE_FLOW: True, Verb.DEACTIVATE_FLOW: False}.get(one.verb)
    more = {} if active is None else {"is_active": active}
    return {"version": version, "actor": one.actor, "reason": one.reason} | more


def _line(entity: str, id: str, number: int, action: str, at: Any, details: dict[str, Any]) -> AuditLog:
    return AuditLog(
        id=derived_id("audit", id, str(number), action),
        entity=str(entity),
        entity_id=id,
        action=action,
        details=details,
        created_at=at,
    )
