"""Lists and counts of runs."""

from __future__ import annotations

import sqlite3
from typing import Any
from uuid import UUID

from batuta.errors import InvalidInput
from batuta.journal.queues import MOST_COUNTED, MOST_QUEUES, StoreGauges, gauges_of
from batuta.journal.records import Page, RunFilter
from batuta.journal.states import RunState
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.rows import run_of, to_json

_LAST = b"\xff" * 17
"""After every run id."""

_UNHAPPY = {
    RunState.FAILED,
    RunState.TIMED_OUT,
    RunState.CANCELLED,
    RunState.TERMINATED,
    RunState.NEEDS_CODE,
    RunState.POISONED,
    RunState.PAUSED,
}
"""States with their own index: few runs are in them, and operators look for them."""


def list_runs(
    connection: sqlite3.Connection, namespace: str, where: RunFilter, before: bytes | None, limit: int
) -> Page:
    """One page, newest first. Each page begins where the index says, not after counting to there."""
    unhappy = bool(where.states) and _UNHAPPY.issuperset(where.states)
    kind = "list_retrying" if where.retrying else "list_children" if where.parent else ""
    query = Q[kind or ("list_unhappy_runs" if unhappy else "list_runs")]
    values = _values(namespace, where) | {"before": before or _LAST, "limit": limit + 1}
    runs = [run_of(row) for row in connection.execute(query, values).fetchall()]
    page = runs[:limit]
    return Page(page, str(page[-1].run_id) if len(runs) > limit else None)


def count_states(connection: sqlite3.Connection, namespace: str, where: RunFilter) -> dict[RunState, int]:
    query = Q["count_retrying" if where.retrying else "count_children" if where.parent else "count_runs"]
    rows = connection.execute(query, _values(namespace, where)).fetchall()
    return {RunState(state): count for state, count in rows}


def gauges(connection: sqlite3.Connection, namespace: str, now: int) -> StoreGauges:
    values = {"namespace": namespace, "now": now, "most": MOST_COUNTED, "queues": MOST_QUEUES}
    return gauges_of(connection.execute(Q["gauges"], values))


def decode_cursor(cursor: str | None) -> bytes | None:
    """The run id that a page ended with."""
    try:
        return None if cursor is None else UUID(cursor).bytes
    except ValueError:
        raise InvalidInput(f"{cursor!r} is not a cursor: pass the cursor of the previous page") from None


def _values(namespace: str, where: RunFilter) -> dict[str, Any]:
    return {
        "namespace": namespace,
        "states": to_json([state.value for state in where.states]) if where.states else None,
        "name": where.name,
        "kind": None if where.kind is None else where.kind.value,
        "queue": where.queue,
        "flow_key": where.flow_key,
        "parent": None if where.parent is None else where.parent.bytes,
        "id_prefix": where.id_prefix,
        "tags": to_json(where.tags) if where.tags else None,
        "created_after": where.created_after,
        "created_before": where.created_before,
        "retrying": where.retrying,
    }
