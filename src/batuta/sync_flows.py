"""Flows for code that is not async: `client.flows` of a blocking client."""

from __future__ import annotations

from batuta.flows.calls.events import Events as AsyncEvents
from batuta.flows.calls.flows import Flows as AsyncFlows
from batuta.flows.calls.runs import FlowRuns as AsyncFlowRuns
from batuta.flows.stored_secrets import StoredSecrets
from batuta.sync_verbs import Part, blocking


class Flows(Part[AsyncFlows]):
    """The flows of a namespace, for blocking code: `client.flows`."""

    create = blocking(AsyncFlows.create)
    get = blocking(AsyncFlows.get)
    document = blocking(AsyncFlows.document)
    published = blocking(AsyncFlows.published)
    list = blocking(AsyncFlows.list)
    change = blocking(AsyncFlows.change)
    publish = blocking(AsyncFlows.publish)
    new_version = blocking(AsyncFlows.new_version)
    activate = blocking(AsyncFlows.activate)
    audit = blocking(AsyncFlows.audit)
    parts = blocking(AsyncFlows.parts)

    @property
    def events(self) -> FlowEvents:
        return FlowEvents(self._client, lambda client: client.flows.events)

    @property
    def runs(self) -> FlowRuns:
        return FlowRuns(self._client, lambda client: client.flows.runs)

    @property
    def secrets(self) -> FlowSecrets:
        return FlowSecrets(self._client, lambda client: client.flows.secrets)


class FlowEvents(Part[AsyncEvents]):
    """Events, for blocking code: `client.flows.events`."""

    send = blocking(AsyncEvents.send)
    replay = blocking(AsyncEvents.replay)
    get = blocking(AsyncEvents.get)
    list = blocking(AsyncEvents.list)


class FlowRuns(Part[AsyncFlowRuns]):
    """Runs of flows, for blocking code: `client.flows.runs`."""

    start = blocking(AsyncFlowRuns.start)
    get = blocking(AsyncFlowRuns.get)
    list = blocking(AsyncFlowRuns.list)
    failed = blocking(AsyncFlowRuns.failed)
    last = blocking(AsyncFlowRuns.last)
    of_events = blocking(AsyncFlowRuns.of_events)
    retry = blocking(AsyncFlowRuns.retry)
    cancel = blocking(AsyncFlowRuns.cancel)
    approvals = blocking(AsyncFlowRuns.approvals)
    decide = blocking(AsyncFlowRuns.decide)


class FlowSecrets(Part[StoredSecrets]):
    """Secrets of flows, for blocking code: `client.flows.secrets`."""

    set = blocking(StoredSecrets.set)
    remove = blocking(StoredSecrets.remove)
    names = blocking(StoredSecrets.names)
