"""The page "DICT" of the dashboard: policies with their history and a forecast, alerts, and the breaker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from batuta import Batuta
from batuta.clock import SystemClock, as_datetime
from batuta.server import Gauge, Gauges, Page, Table
from pixdict.connect.monitor.analysis import seconds_to_empty
from pixdict.connect.monitor.models import CRITICAL, OK, WARNING, AlertEvent, PolicyState
from pixdict.connect.monitor.tables import MonitorTables

HISTORY = timedelta(hours=24)
POINTS = 60
"""Values of a history that are drawn."""
FORECAST = 6
"""The last readings that a forecast is made from: half an hour."""
HORIZON = 6 * 3600.0
"""Seconds: what is further away is not told."""

_TONES = {OK: "done", WARNING: "retry", CRITICAL: "fail"}
_ORDER = {CRITICAL: 0, WARNING: 1, OK: 3}


def dict_page(tables: MonitorTables) -> Page:
    """For `dashboard(client, pages=[dict_page(tables)])`."""

    async def read(client: Batuta) -> Sequence[Table | Gauges]:
        now = as_datetime(SystemClock().now())
        states = await tables.states(now - HISTORY)
        return [gauges_of(states, now), alerts_of(await tables.alerts()), await _breakers(client)]

    return Page("DICT", "/dict", read)


def gauges_of(states: Sequence[PolicyState], now: datetime) -> Gauges:
    """One gauge for each policy of the last check, those that run dry first."""
    by_policy: dict[str, list[PolicyState]] = defaultdict(list)
    for state in states:
        by_policy[state.policy_name].append(state)
    last = max((state.checked_at for state in states), default=None)
    found = [(rows[-1], rows) for rows in by_policy.values() if rows[-1].checked_at == last]
    found.sort(key=lambda one: (_ORDER.get(one[0].status, 2), -one[0].utilization_pct, one[0].policy_name))
    if last is None:
        return Gauges(
            title="Policies", gauges=[], note="The monitor has stored nothing yet: it runs every five minutes."
        )
    note = f"category {found[0][0].category}, checked {spoken((now - last).total_seconds())} ago"
    return Gauges(title="Policies", gauges=[_gauge(state, rows) for state, rows in found], note=note)


def _gauge(state: PolicyState, rows: Sequence[PolicyState]) -> Gauge:
    dry = None
    if state.available_tokens < state.capacity_max:
        dry = seconds_to_empty([(row.checked_at, row.available_tokens) for row in rows[-FORECAST:]])
    refill = f"{state.refill_tokens:,} every {spoken(state.refill_period_sec)}"
    forecast = (
        "" if dry is None or dry > HORIZON else "is dry" if dry == 0 else f"runs dry in {spoken(dry)} at this rate"
    )
    return Gauge(
        name=state.policy_name,
        value=state.available_tokens,
        most=state.capacity_max,
        tone=_TONES.get(state.status, "pause"),  # type: ignore[arg-type]  # its values are the tones
        label="" if state.status == OK else state.status,
        note="; ".join(part for part in (forecast, refill) if part),
        history=_thinned([row.available_tokens for row in rows]),
    )


def _thinned(values: Sequence[float]) -> list[float | None]:
    """The lowest of each stretch, so that no dip is lost."""
    step = -(-len(values) // POINTS)
    return [min(values[start : start + step]) for start in range(0, len(values), step)] if values else []


def alerts_of(alerts: Iterable[AlertEvent]) -> Table:
    rows = [[alert.detected_at, alert.severity, alert.policy_name, alert.message] for alert in alerts]
    return Table(
        title="Alerts",
        columns=["When", "Severity", "Policy", "Message"],
        rows=rows,
        note="newest first" if rows else "No policy was at or below 25 % of its capacity.",
    )


async def _breakers(client: Batuta) -> Table:
    rows = [[one.name, one.state, one.failures, one.since, one.reason or None] for one in await client.breakers.list()]
    return Table(
        title="Breaker towards the directory",
        columns=["Breaker", "State", "Failures in a row", "Since", "Why"],
        rows=rows,
        note="The page Partners holds it open or closes it." if rows else "A Bridge declares it with its first call.",
    )


def spoken(seconds: float) -> str:
    """A time in its largest fitting unit: 90 s, 12 min, 5 h, 3 d."""
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if seconds >= 2 * size or (seconds == size and unit != "min"):
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} s"
