"""The tables of the monitor: states of policies, partitioned by month in PostgreSQL, and alerts for audits."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import msgspec

from pixdict.connect.database import Database
from pixdict.connect.monitor.models import AlertEvent, PolicyState
from pixdict.errors import InvalidArgument

MOST_POLICIES = 1_000
"""Rows of one insert."""

_COLUMNS = PolicyState.__struct_fields__
_ALERT_COLUMNS = AlertEvent.__struct_fields__
_TIME = {True: "TIMESTAMPTZ", False: "TEXT"}

_STATES = """CREATE TABLE IF NOT EXISTS dict_rate_limit_states (
    policy_name TEXT NOT NULL,
    category TEXT NOT NULL,
    capacity_max BIGINT NOT NULL,
    refill_tokens BIGINT NOT NULL,
    refill_period_sec BIGINT NOT NULL,
    available_tokens BIGINT NOT NULL,
    utilization_pct DOUBLE PRECISION NOT NULL,
    status TEXT NOT NULL CHECK (status IN ('OK', 'WARNING', 'CRITICAL', 'UNKNOWN')),
    checked_at {time} NOT NULL,
    activity_key TEXT NOT NULL,
    PRIMARY KEY (checked_at, policy_name, activity_key)
)"""
_ALERTS = """CREATE TABLE IF NOT EXISTS dict_rate_limit_alerts (
    id TEXT PRIMARY KEY,
    policy_name TEXT NOT NULL,
    category TEXT NOT NULL,
    severity TEXT NOT NULL CHECK (severity IN ('WARNING', 'CRITICAL')),
    available_tokens BIGINT NOT NULL,
    capacity_max BIGINT NOT NULL,
    utilization_pct DOUBLE PRECISION NOT NULL,
    message TEXT NOT NULL,
    detected_at {time} NOT NULL
)"""
_ALERTS_BY_TIME = "CREATE INDEX IF NOT EXISTS dict_rate_limit_alerts_by_time ON dict_rate_limit_alerts (detected_at)"


class MonitorTables:
    """Reads and writes them. `keep`: for how long; older rows are dropped, in PostgreSQL whole months at a time."""

    def __init__(self, database: Database, *, keep: timedelta = timedelta(days=90)) -> None:
        self._database, self._keep = database, keep
        self._prepared: set[str] = set()
        """Months for which this process has looked after partitions and old rows."""

    async def add_states(self, states: Sequence[PolicyState], activity_key: str) -> None:
        """One insert for all rows. The same activity may do it again: its rows stay as they are. Raises
        InvalidArgument, ConstraintViolation, DatabaseTimeout."""
        if not states:
            return
        if len(states) > MOST_POLICIES:
            raise InvalidArgument(f"{len(states)} policies: the directory has some 30, and at most 1,000 are stored")
        names = [state.policy_name for state in states]
        if len(set(names)) < len(names):
            twice = next(name for name in names if names.count(name) > 1)
            raise InvalidArgument(f"policy {twice!r} is there twice: one state for each policy is stored")
        for at in {state.checked_at for state in states}:
            await self._prepare(at)
        marks = ", ".join(["(" + ", ".join("?" * (len(_COLUMNS) + 1)) + ")"] * len(states))
        values = [value for state in states for value in (*_values(state), activity_key)]
        await self._database.run(
            f"INSERT INTO dict_rate_limit_states ({', '.join(_COLUMNS)}, activity_key) VALUES {marks} "  # noqa: S608
            "ON CONFLICT (checked_at, policy_name, activity_key) DO NOTHING",
            *values,
        )

    async def add_alert(self, alert: AlertEvent, id: str) -> None:
        """Raises ConstraintViolation, DatabaseTimeout."""
        await self._prepare(alert.detected_at)
        marks = ", ".join("?" * (len(_ALERT_COLUMNS) + 1))
        await self._database.run(
            f"INSERT INTO dict_rate_limit_alerts (id, {', '.join(_ALERT_COLUMNS)}) VALUES ({marks}) "  # noqa: S608
            "ON CONFLICT (id) DO NOTHING",
            id,
            *_values(alert),
        )

    async def states(self, since: datetime, *, most: int = 20_000) -> list[PolicyState]:
        """The newest `most` since then, oldest first."""
        await self._create()
        rows = await self._database.run(
            f"SELECT {', '.join(_COLUMNS)} FROM dict_rate_limit_states WHERE checked_at >= ? "  # noqa: S608
            "ORDER BY checked_at DESC, policy_name DESC LIMIT ?",
            since,
            most,
        )
        return msgspec.convert(rows[::-1], list[PolicyState])

    async def alerts(self, *, most: int = 50) -> list[AlertEvent]:
        """Newest first."""
        await self._create()
        rows = await self._database.run(
            f"SELECT {', '.join(_ALERT_COLUMNS)} FROM dict_rate_limit_alerts "  # noqa: S608
            "ORDER BY detected_at DESC, policy_name LIMIT ?",
            most,
        )
        return msgspec.convert(rows, list[AlertEvent])

    async def _create(self) -> None:
        if "" in self._prepared:
            return
        time = _TIME[self._database.partitions]
        end = " PARTITION BY RANGE (checked_at)" if self._database.partitions else ""
        await self._database.script([_STATES.format(time=time) + end, _ALERTS.format(time=time), _ALERTS_BY_TIME])
        self._prepared.add("")

    async def _prepare(self, at: datetime) -> None:
        """The partition of a month, and an end for what is too old: once a month and process."""
        month = at.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
        if month.isoformat() in self._prepared:
            return
        await self._create()
        oldest = at - self._keep
        if self._database.partitions:
            await self._database.script([_partition(month)])
            old = await self._partitions_before(oldest)
            await self._database.script(
                [f"DROP TABLE IF EXISTS {name}" for name in old]
            )  # another process may be first
        else:
            await self._database.run("DELETE FROM dict_rate_limit_states WHERE checked_at < ?", oldest)
        await self._database.run("DELETE FROM dict_rate_limit_alerts WHERE detected_at < ?", oldest)
        self._prepared.add(month.isoformat())

    async def _partitions_before(self, oldest: datetime) -> list[str]:
        """Those that end before."""
        rows = await self._database.run(
            "SELECT child.relname AS name FROM pg_inherits JOIN pg_class child ON child.oid = inhrelid "
            "WHERE inhparent = 'dict_rate_limit_states'::regclass"
        )
        last = _name(oldest.astimezone(UTC))
        return sorted(row["name"] for row in rows if row["name"] < last)


def _values(row: PolicyState | AlertEvent) -> list[object]:
    return [getattr(row, name) for name in row.__struct_fields__]


def _name(month: datetime) -> str:
    return f"dict_rate_limit_states_{month:%Y_%m}"


def _partition(month: datetime) -> str:
    after = (month + timedelta(days=32)).replace(day=1)
    return (
        f"CREATE TABLE IF NOT EXISTS {_name(month)} PARTITION OF dict_rate_limit_states "
        f"FOR VALUES FROM ('{month.isoformat()}') TO ('{after.isoformat()}')"
    )
