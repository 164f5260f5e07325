"""AuditLog of one record: of a run from its journal, of a flow from the audit log, of an event from itself."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

from batuta.errors import InvalidInput
from batuta.flows.calls.catalog import Catalog
from batuta.flows.calls.events import Events
from batuta.flows.calls.runs import FlowRuns
from batuta.flows.models import AuditLog, derived_id
from batuta.journal.audit import Verb

_MOST: Final = 200
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


class History:
    """Reads the AuditLog of flows, events and runs."""

    def __init__(self, client: Any, catalog: Catalog, events: Events, runs: FlowRuns) -> None:
        self._client, self._catalog, self._events, self._runs = client, catalog, events, runs

    async def of(self, entity: str, entity_id: object) -> Sequence[AuditLog]:
        """The oldest first. Raises UnknownEvent, UnknownFlow, UnknownRun."""
        if entity == Entity.RUN:
            return (await self._runs.get(entity_id)).audit
        if entity == Entity.EVENT:
            event = await self._events.row(entity_id)
            details = {"type": event.type, "source": event.source}
            view = await self._events.get(entity_id)
            return [_line(entity, view.id, 0, "created", view.created_at, details)]
        if entity != Entity.WORKFLOW:
            raise InvalidInput(f"entity={str(entity)[:100]!r} must be one of {', '.join(Entity)}")
        row = await self._catalog.row(entity_id)
        page = await self._client.audit(target=row.target, limit=_MOST)
        id = str(row.workflow_id)
        return [
            _line(entity, id, one.number, _ACTIONS[one.verb], one.at, _details(row.version, one))
            for one in reversed(page.rows)
            if one.verb in _ACTIONS and one.after == {"id": id}
        ]


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
