"""Who a run is."""

from __future__ import annotations

from batuta.ids import RunId


class RunIdentity:
    """What of a run never changes."""

    __slots__ = ("chain_id", "id", "namespace", "queue", "run_id")

    def __init__(self, run_id: RunId, id: str, queue: str, namespace: str, chain_id: RunId | None = None) -> None:
        self.run_id, self.id, self.queue, self.namespace = run_id, id, queue, namespace
        self.chain_id = chain_id or run_id
