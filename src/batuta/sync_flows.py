"""Flows for code that is not async: `client.flows` of a blocking client."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from batuta.client import Batuta
from batuta.flows.calls.events import Events as AsyncEvents
from batuta.flows.calls.flows import Flows as AsyncFlows
from batuta.flows.calls.runs import FlowRuns as AsyncFlowRuns
from batuta.flows.stored_secrets import StoredSecrets
from batuta.sync_verbs import Face, blocking

T = TypeVar("T")


class _Part:
    """A part of a blocking client."""

    def __init__(self, client: Face[Batuta]) -> None:
        self._client = client


class Flows(_Part):
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

    def parts(self, **options: Any) -> dict[str, Any]:
        """All that a worker needs. As `client.flows.parts`."""
        return self._ask(lambda flows: flows.parts(**options))

    @property
    def events(self) -> FlowEvents:
        return FlowEvents(self._client)

    @property
    def runs(self) -> FlowRuns:
        return FlowRuns(self._client)

    @property
    def secrets(self) -> FlowSecrets:
        return FlowSecrets(self._client)

    def _ask(self, work: Callable[[AsyncFlows], Coroutine[Any, Any, T]]) -> T:
        return self._client._ask(lambda client: work(client.flows))


class FlowEvents(_Part):
    """Events, for blocking code: `client.flows.events`."""

    send = blocking(AsyncEvents.send)
    replay = blocking(AsyncEvents.replay)
    get = blocking(AsyncEvents.get)
    list = blocking(AsyncEvents.list)

    def _ask(self, work: Callable[[AsyncEvents], Coroutine[Any, Any, T]]) -> T:
        return self._client._ask(lambda client: work(client.flows.events))


class FlowRuns(_Part):
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

    def _ask(self, work: Callable[[AsyncFlowRuns], Coroutine[Any, Any, T]]) -> T:
        return self._client._ask(lambda client: work(client.flows.runs))


class FlowSecrets(_Part):
    """Secrets of flows, for blocking code: `client.flows.secrets`."""

    set = blocking(StoredSecrets.set)
    remove = blocking(StoredSecrets.remove)
    names = blocking(StoredSecrets.names)

    def _ask(self, work: Callable[[StoredSecrets], Coroutine[Any, Any, T]]) -> T:
        return self._client._ask(lambda client: work(client.flows.secrets))
