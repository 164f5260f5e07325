"""Publishes JSON schemas of a worker's workflows and jobs, for forms."""

from __future__ import annotations

from batuta.clock import SECOND
from batuta.journal.server.documents import SCHEMAS
from batuta.journal.store import Store

_DAY = 86_400 * SECOND
_KEPT = 365 * _DAY


async def publish_schemas(store: Store, schemas: dict[str, str]) -> None:
    """Write those that are new, have changed, or were written long ago."""
    known = {one.key: one for one in await store.documents(SCHEMAS)} if schemas else {}
    changed = {
        name: body
        for name, body in schemas.items()
        if name not in known or known[name].body != body or known[name].age > _DAY
    }
    if changed:
        await store.put_documents(SCHEMAS, changed, _KEPT)
