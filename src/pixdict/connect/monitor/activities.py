"""The five activities of document A, section 3."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from datetime import UTC, datetime, timedelta
from typing import Any, Protocol

import msgspec

from batuta import Retry, activity, activity_info, bus, heartbeat
from batuta.errors import InvalidInput
from pixdict.connect.monitor.analysis import analyze, state_of
from pixdict.connect.monitor.metrics import MonitorMetrics
from pixdict.connect.monitor.models import (
    ACTION,
    TOPIC,
    AlertEvent,
    AnalyzeBalanceResult,
    GetPoliciesResult,
    PolicyState,
)
from pixdict.connect.monitor.tables import MonitorTables
from pixdict.errors import (
    BridgeError,
    BridgeUnavailable,
    BusUnavailable,
    ConstraintViolation,
    DatabaseTimeout,
    InvalidArgument,
    InvalidPayload,
    NotFound,
    RateLimited,
)
from pixdict.readings import PolicyReading

log = logging.getLogger("pixdict.monitor")

TIMEOUT, HEARTBEAT = 120.0, 30.0

BRIDGE = Retry(attempts=3, first=1.0, factor=2.0, longest=30.0, jitter=0.0, never=[InvalidArgument, NotFound])
DATABASE = Retry(
    attempts=2, first=0.5, factor=2.0, longest=10.0, jitter=0.0, never=[InvalidArgument, ConstraintViolation]
)
BUS = Retry(attempts=3, first=1.0, factor=2.0, longest=20.0, jitter=0.0, never=[InvalidPayload])
NONE = Retry(attempts=1)


class PolicySource(Protocol):
    """A client of the Bridge, or a stand-in."""

    async def list_policies(self) -> list[PolicyReading]:
        """Raises BridgeUnavailable, InvalidArgument, NotFound."""
        ...


class Publish(Protocol):
    """`batuta.bus.publish`, or a stand-in."""

    def __call__(self, topic: str, payload: Any, *, key: str, id: str, type: str) -> Awaitable[object]: ...


class RateLimitActivities:
    """What the activities need: the Bridge, the tables, the bus and the gauges."""

    def __init__(
        self, bridge: PolicySource, tables: MonitorTables, metrics: MonitorMetrics, publish: Publish = bus.publish
    ) -> None:
        self._bridge, self._tables, self._metrics, self._publish = bridge, tables, metrics, publish
        self._last_check = datetime.min.replace(tzinfo=UTC)

    @activity(
        timeout=TIMEOUT,
        heartbeat=HEARTBEAT,
        retry=BRIDGE,
        raises=[BridgeUnavailable, BridgeError, RateLimited, InvalidArgument, NotFound],
    )
    async def get_policies(self) -> GetPoliciesResult:
        """The state of every policy that the directory names, however many there are."""
        heartbeat("fetching policies from DICT")
        found = await self._bridge.list_policies()
        checked_at = self._moment_of_check()
        return GetPoliciesResult([state_of(policy, checked_at) for policy in found], checked_at)

    @activity(
        timeout=TIMEOUT,
        heartbeat=HEARTBEAT,
        retry=DATABASE,
        raises=[DatabaseTimeout, InvalidArgument, ConstraintViolation],
    )
    async def store_policy_state(self, policies: list[PolicyState], checked_at: datetime) -> None:
        """One row for each policy, in one insert. A repetition changes nothing."""
        heartbeat("storing policy states")
        if any(policy.checked_at != checked_at for policy in policies):
            raise InvalidArgument("checked_at of a policy is not that of the check")
        await self._tables.add_states(policies, activity_info().key)

    @activity(timeout=TIMEOUT, heartbeat=HEARTBEAT, retry=NONE)
    async def analyze_balance(self, policies: list[PolicyState]) -> AnalyzeBalanceResult:
        return analyze(policies, _started_at())

    @activity(timeout=TIMEOUT, heartbeat=HEARTBEAT, retry=BUS, raises=[BusUnavailable, InvalidPayload])
    async def publish_alert(self, alerts: list[AlertEvent], checked_at: datetime) -> None:
        """Every alert to the bus, and then to the table for audits. The id of a message is its policy and the check: a
        repetition sends the same ids, and the bus drops them. A failure of the table fails nothing. While one alert may
        still arrive it is tried again, whatever the bus says of others."""
        failure: Exception | None = None
        for alert in alerts:
            heartbeat("publishing alerts")
            payload = {"action": ACTION, "data": msgspec.to_builtins(alert)}
            id = _id_of(alert, checked_at)
            try:
                await self._publish(TOPIC, payload, key=alert.policy_name, id=id, type=ACTION)
            except InvalidInput as error:
                failure = failure or InvalidPayload(f"the alert of {alert.policy_name}: {error}")
            except Exception as error:  # noqa: BLE001 - the other alerts go out first
                failure = BusUnavailable(f"the alert of {alert.policy_name}: {error}")
        await self._keep(alerts, checked_at)
        if failure is not None:
            raise failure

    async def _keep(self, alerts: list[AlertEvent], checked_at: datetime) -> None:
        """In the table for audits, as far as it takes them. One that is away is not waited for again."""
        for alert in alerts:
            heartbeat("keeping alerts")
            try:
                await self._tables.add_alert(alert, _id_of(alert, checked_at))
            except DatabaseTimeout:
                log.warning(
                    "alerts from that of %s on are not in dict_rate_limit_alerts", alert.policy_name, exc_info=True
                )
                return
            except Exception:
                log.warning("the alert of %s is not in dict_rate_limit_alerts", alert.policy_name, exc_info=True)

    @activity(timeout=TIMEOUT, heartbeat=HEARTBEAT, retry=NONE)
    async def publish_metrics(
        self, policies: list[PolicyState], alert_count: int, warning_count: int, critical_count: int
    ) -> None:
        self._metrics.set(policies, warning_count, critical_count)

    def _moment_of_check(self) -> datetime:
        """When the attempt began. Checks that a worker takes up together begin at once: each is a microsecond later
        than the one before, for the ids of their alerts are made of it."""
        moment = _started_at()
        if timedelta(0) <= self._last_check - moment < timedelta(seconds=1):
            moment = self._last_check + timedelta(microseconds=1)
        self._last_check = moment
        return moment


def _id_of(alert: AlertEvent, checked_at: datetime) -> str:
    return f"{alert.policy_name}:{checked_at.isoformat()}"


def _started_at() -> datetime:
    return activity_info().started_at.astimezone(UTC)
