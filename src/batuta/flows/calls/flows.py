"""Flows, events and their runs for a client: `client.flows`."""

from __future__ import annotations

from batuta.authoring.client.flows import FlowBackend
from batuta.flows.calls.catalog import Catalog
from batuta.flows.calls.events import Client, Events
from batuta.flows.calls.runs import FlowRuns
from batuta.serde import MAX_PAYLOAD


class Flows(Catalog):
    """The flows of one namespace, with its `events` and the `runs` of flows."""

    def __init__(self, client: Client, backend: FlowBackend, max_payload: int = MAX_PAYLOAD) -> None:
        super().__init__(backend)
        self.events = Events(client, backend, max_payload)
        """Events: sent, replayed, looked at."""
        self.runs = FlowRuns(client, backend, self, self.events)
        """Runs of flows: started by hand, looked at, retried, cancelled, decided."""
