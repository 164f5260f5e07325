"""The monitor of rate limits, as document A specifies it.

worker(workflows=WORKFLOWS, activities=[RateLimitActivities(...)], schedules=[schedule()], queue=QUEUE)
"""

from __future__ import annotations

from typing import Any

from batuta import Workflow
from pixdict.connect.monitor.activities import PolicySource, RateLimitActivities
from pixdict.connect.monitor.metrics import MonitorMetrics, metrics
from pixdict.connect.monitor.models import PolicyState
from pixdict.connect.monitor.tables import MonitorTables
from pixdict.connect.monitor.workflow import (
    QUEUE,
    SCHEDULE_ID,
    monitor_rate_limits,
    monitor_rate_limits_loop,
    schedule,
)
from pixdict.readings import PolicyReading

WORKFLOWS: list[Workflow[..., Any]] = [monitor_rate_limits, monitor_rate_limits_loop]

__all__ = [
    "QUEUE",
    "SCHEDULE_ID",
    "WORKFLOWS",
    "MonitorMetrics",
    "MonitorTables",
    "PolicyReading",
    "PolicySource",
    "PolicyState",
    "RateLimitActivities",
    "metrics",
    "monitor_rate_limits",
    "monitor_rate_limits_loop",
    "schedule",
]
