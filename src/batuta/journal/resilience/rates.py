"""Counts behind a rate: what began, by sub-windows of its period. No I/O."""

from __future__ import annotations

from collections.abc import Sequence

from batuta.clock import SECOND
from batuta.journal.queues import Rate

SUB_WINDOWS = 60
"""Parts of a rate's period that are counted together: more parts use more of the rate."""

Begun = Sequence[tuple[int, int]]
"""Counts of begun runs by the end of their sub-window, in order."""
_MINUTE = 60 * SECOND


def window_end(rate: Rate, now: int, parts: int = SUB_WINDOWS) -> int:
    """The end of the sub-window of what begins now. By its end, a count stays right when the rate's period changes."""
    width = -(-rate.period // parts)
    return now - now % width + width


def forgotten(rate: Rate, now: int) -> int:
    """Sub-windows that ended at this time or before it no longer count."""
    return now - rate.period


def _counted(rate: Rate, begun: Begun, now: int) -> list[tuple[int, int]]:
    # Counts dated in the future come from before the clock was set back: they count if they are at most one period, or
    # a minute, ahead. (If a period is made 60 times shorter, counts under the longer period may be ignored, because
    # their sub-windows end later than that.)
    ahead = now + max(rate.period, _MINUTE)
    return [(end, count) for end, count in begun if forgotten(rate, now) < end <= ahead]


def rate_left(rate: Rate, begun: Begun, now: int) -> int:
    """How many more may begin now. Negative: the rate was lowered."""
    return rate.count - sum(count for _, count in _counted(rate, begun, now))


def rate_allows(rate: Rate | None, begun: Begun, now: int, more: int = 1) -> int:
    """When so many more may begin: `now`, or later."""
    if rate is None:
        return now
    left, at = rate_left(rate, begun, now), now
    for end, count in _counted(rate, begun, now):
        if left >= more:
            break
        left, at = left + count, end + rate.period
    return at
