"""`MonitorRateLimitsWorkflow` of document A, section 2, and its long-lived variant of section 6."""

from __future__ import annotations

import asyncio
from datetime import timedelta

from batuta import Schedule, cron, info, logger, now, safe_point, workflow
from pixdict.connect.monitor.activities import RateLimitActivities
from pixdict.connect.monitor.models import LoopState
from pixdict.errors import PASSING

QUEUE = "dict-task-queue"
SCHEDULE_ID = "monitor-rate-limits-cron"
PERIOD = timedelta(minutes=5)


@workflow(fails=PASSING)
async def monitor_rate_limits() -> int:
    """Read all policies, store them, and tell of those that run dry. The result is the number of alerts."""
    found = await RateLimitActivities.get_policies()
    logger.info("%d policies at %s", len(found.policies), found.checked_at)
    await RateLimitActivities.store_policy_state(found.policies, found.checked_at)
    result = await RateLimitActivities.analyze_balance(found.policies)
    if result.alerts:
        logger.info("%d warnings, %d criticals", result.warning_count, result.critical_count)
        try:
            await RateLimitActivities.publish_alert(result.alerts, found.checked_at)
        except Exception as error:  # noqa: BLE001 - the check is stored, and its alerts are in the table
            logger.error("the alerts are not published: %s", error)
    try:
        await RateLimitActivities.publish_metrics(
            found.policies, len(result.alerts), result.warning_count, result.critical_count
        )
    except Exception as error:  # noqa: BLE001 - best effort
        logger.warning("the metrics are not published: %s", error)
    return len(result.alerts)


def schedule() -> Schedule:
    """Every five minutes. A slot that comes while the check before it is open waits for its end."""
    return Schedule(
        SCHEDULE_ID,
        cron("*/5 * * * *"),
        monitor_rate_limits,
        queue=QUEUE,
        overlap="buffer",
        timeout=timedelta(minutes=5),
        execution_timeout=timedelta(minutes=10),
    )


@workflow
async def monitor_rate_limits_loop(state: LoopState = LoopState()) -> None:
    """The same as one run that never ends, for where no schedule is wanted. It continues as new after 24 hours or
    10,000 entries of its journal, and carries its state on."""
    while True:
        await asyncio.sleep(PERIOD.total_seconds() - now().timestamp() % PERIOD.total_seconds())
        alerts = state.alerts
        try:
            alerts += await monitor_rate_limits()
        except Exception as error:  # noqa: BLE001 - as with the schedule, the next check is made whatever became of this
            logger.error("check %d of %s failed: %s", state.checks + 1, info().id, error)
        state = LoopState(state.checks + 1, alerts, now())
        await safe_point(state)
