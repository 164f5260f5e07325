"""Which runs of the store in memory a list shows."""

from __future__ import annotations

import json
from uuid import UUID

from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.records import Run, RunFilter


def matches(where: RunFilter, run: Run) -> bool:
    """Whether a list with these filters shows the run."""
    tags = json.loads(run.tags) if where.tags else {}
    return (
        (not where.states or run.state in where.states)
        and where.name in (None, run.name)
        and where.kind in (None, run.kind)
        and where.queue in (None, run.queue)
        and (where.id_prefix is None or run.id.startswith(where.id_prefix))
        and all(tags.get(key) == value for key, value in where.tags)
        and (where.created_after is None or run.created_at > where.created_after)
        and (where.created_before is None or run.created_at < where.created_before)
    )


def cursor_of(text: str) -> RunId:
    """The run after which a page begins."""
    try:
        return UUID(text)
    except ValueError:
        raise InvalidInput(f"{text!r} is no cursor: pass the one that the page before came with") from None
