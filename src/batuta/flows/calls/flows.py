"""Flows, events and their runs for a client: `client.flows`."""

from __future__ import annotations

import logging
from typing import Any

from batuta.authoring.client.flows import FlowBackend
from batuta.errors import PayloadSealed
from batuta.flows.calls import starters
from batuta.flows.calls.catalog import Catalog
from batuta.flows.calls.events import Client, Events
from batuta.flows.calls.runs import FlowRuns
from batuta.flows.calls.triggers import queue_of
from batuta.flows.document import Trigger
from batuta.flows.stored_secrets import StoredSecrets
from batuta.flows.workflow import Flows as WorkerFlows
from batuta.journal.flows.records import FlowRow
from batuta.serde import MAX_PAYLOAD

log = logging.getLogger("batuta.flows")


class Flows(Catalog):
    """The flows of one namespace, with its `events` and the `runs` of flows."""

    def __init__(self, client: Client, backend: FlowBackend, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__(backend)
        self._client: Any = client
        self.secrets = StoredSecrets(backend)
        """Secrets that actions name as `secret://store/NAME`."""
        self.events = Events(client, backend, max_payload)
        """Events: sent, replayed, looked at."""
        self.runs = FlowRuns(client, backend, self, self.events)
        """Runs of flows: started by hand, looked at, retried, cancelled, decided."""

    async def parts(self, **options: Any) -> dict[str, Any]:
        """All that a worker needs for the flows of this namespace: `client.worker(**await client.flows.parts())`.

        `options` are those of `batuta.flows.workflow.Flows`. Queues and topics are those of the flows that are active
        now: start the worker again when a flow with another concurrency or topic was published.
        """
        flows = WorkerFlows(**{"workflows_of": self.published} | options)
        made = starters.Starters(self)
        queues, subscriptions = ["default"], []
        for trigger, name in await self._triggers():
            if trigger.concurrency is not None:
                queues.append(queue_of(trigger.concurrency.limit))
            if trigger.topic:
                subscriptions.append(made.subscription(trigger.topic, name))
        more: dict[str, Any] = {"subscriptions": subscriptions} if subscriptions else {}
        return flows.parts() | {"jobs": [made], "queues": list(dict.fromkeys(queues))} | more

    async def _triggers(self) -> list[tuple[Trigger, str]]:
        found: list[tuple[Trigger, str]] = []
        cursor: str | None = None
        while True:
            page = await self.list(active=True, cursor=cursor, limit=200)
            for one in page.workflows:
                try:
                    trigger = starters.trigger_in(await self.document(one.id))
                except PayloadSealed as error:  # it must not keep the worker from its other flows
                    log.error("%s", error)
                    continue
                if trigger is not None:
                    found.append((trigger, one.name))
            if (cursor := page.cursor) is None:
                return found

    async def _change_activity(self, row: FlowRow) -> None:
        if row.is_active:
            await starters.prepare(self._client, row)
        else:
            await starters.forget(self._client, row.name)
