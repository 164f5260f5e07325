"""Flows as the store keeps them, and as their users know them."""

from __future__ import annotations

from typing import Any

from msgspec import json

from batuta.clock import as_datetime
from batuta.errors import PayloadSealed
from batuta.flows.document import FlowDocument
from batuta.flows.models import Event, Workflow
from batuta.journal.codec_envelope import decode_stored
from batuta.journal.flows.records import EventRow, FlowRow


def document_of(row: FlowRow) -> str:
    """Its document. Raises PayloadSealed."""
    what = f"flow {row.target}"
    _refuse_sealed(row, what)
    decode_stored(row.document, what, FlowDocument)
    return row.document


def payload_of(row: EventRow) -> dict[str, Any]:
    """Its payload. Raises PayloadSealed."""
    what = f"event {row.event_id}"
    _refuse_sealed(row, what)
    return decode_stored(row.payload, what, dict[str, Any])


def event_view(row: EventRow, tenant_id: str, payload: dict[str, Any]) -> Event:
    return Event(
        id=str(row.event_id),
        tenant_id=tenant_id,
        type=row.type,
        payload=payload,
        source=row.source,
        external_id=row.external_id,
        created_at=as_datetime(row.created_at),
    )


def _refuse_sealed(row: FlowRow | EventRow, what: str) -> None:
    if row.sealed:
        raise PayloadSealed(f"{what} cannot be read: {row.sealed}")


def workflow_view(row: FlowRow, tenant_id: str) -> Workflow:
    """Raises PayloadSealed."""
    return _view(row, tenant_id, json.decode(document_of(row)))


def listed_view(row: FlowRow, tenant_id: str) -> Workflow:
    """The same for lists: of one that cannot be read the description says why."""
    try:
        return workflow_view(row, tenant_id)
    except PayloadSealed as error:
        return _view(row, tenant_id, {"description": str(error), "steps": []})


def _view(row: FlowRow, tenant_id: str, document: dict[str, Any]) -> Workflow:
    return Workflow(
        id=str(row.workflow_id),
        tenant_id=tenant_id,
        name=row.name,
        description=document.get("description"),
        trigger_type=row.trigger_type,
        version=row.version,
        is_active=row.is_active,
        published_at=as_datetime(row.published_at),
        steps=document["steps"],
        trigger=document.get("trigger"),
        created_at=as_datetime(row.created_at),
        updated_at=as_datetime(row.updated_at),
    )
