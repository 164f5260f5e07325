"""Queues as a worker declares them."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Struct, UnsetType

from batuta.journal.queues import LIMITS, Rate, check_count, limit_changes
from batuta.names import check_name


class Queue(Struct, frozen=True, kw_only=False):
    """A queue, with limits that a worker sets when it starts. Limits that are left out stay unchanged.

    `per_worker` limits how many of the queue's runs this worker has at once. The others apply to all workers together:
    `concurrency` (runs at once), `key_concurrency` (the same for each key), `rate` (runs that begin) and `key_rate`
    (the same for each key), such as "100/min". None removes a limit.
    """

    name: str
    per_worker: int | None = None
    concurrency: int | UnsetType | None = UNSET
    key_concurrency: int | UnsetType | None = UNSET
    rate: str | Rate | UnsetType | None = UNSET
    key_rate: str | Rate | UnsetType | None = UNSET

    def __post_init__(self) -> None:
        check_name(self.name, "queue")
        if self.per_worker is not None:
            check_count("per_worker", self.per_worker)
        self.changes()

    def changes(self) -> dict[str, Any]:
        """The limits that it sets."""
        given = {name: getattr(self, name) for name in LIMITS}
        return limit_changes({name: value for name, value in given.items() if value is not UNSET})
