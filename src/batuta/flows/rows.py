"""Flows as the store keeps them, and as their users know them."""

from __future__ import annotations

from msgspec import json

from batuta.clock import as_datetime
from batuta.flows.models import Workflow
from batuta.journal.flows.records import FlowRow


def workflow_view(row: FlowRow, tenant_id: str) -> Workflow:
    document = json.decode(row.document)
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
