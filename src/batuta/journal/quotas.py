"""How much a namespace may start."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct
from msgspec.structs import replace

from batuta.clock import SECOND

OPEN_RUNS, STARTS, PAYLOAD, WAITING = "open_runs", "starts_per_second", "payload_bytes", "waiting_messages"
NAMES = (OPEN_RUNS, PAYLOAD, STARTS, WAITING)

MOST_WAITING = 10_000
"""Default of WAITING: stores check it at every message from outside."""

EVERYBODY = "*"
"""The namespace whose quotas apply to all namespaces without their own."""


class Quota(Struct, kw_only=True, frozen=True):
    """A quota of a namespace: of `client.quotas.list()`, with how far it is used."""

    name: str
    limit: float | None = None
    """None means no limit, also when the default has one."""
    burst: int | None = None
    """Of starts_per_second: how many may come at once; None: as many as in a second."""
    used: float | None = None
    """For open_runs: the open runs, counted up to one above the limit.

    For starts_per_second: how much of the burst is used, which may exceed it. For payload_bytes and waiting_messages:
    None.
    """
    own: bool = True
    """False: the namespace has no quota of this name, and uses that of namespace `*`."""

    @property
    def at_once(self) -> int:
        """The burst of STARTS."""
        return self.burst or max(1, math.ceil(self.limit or 0))


def whole(number: float | None) -> float | None:
    """A stored number in the form that people write."""
    return int(number) if number is not None and number == int(number) else number


def holding(own: Iterable[Quota], everybody: Iterable[Quota]) -> list[Quota]:
    """The quotas that hold, by name."""
    found = {quota.name: replace(quota, own=False) for quota in everybody} | {quota.name: quota for quota in own}
    return [found[name] for name in sorted(found)]


_SET_BACK = 60 * SECOND
"""Clients report starts at most some seconds late: later times are from before the clock was set."""


def grown(starts: float, quota: Quota, micros: int) -> float:
    """The rest of the burst of STARTS at that time; all of it, if the clock was set back since."""
    if micros < -_SET_BACK:
        return quota.at_once
    return min(quota.at_once, starts + (quota.limit or 0) * max(0, micros) / SECOND)


def spent(left: tuple[float, int] | None, quota: Quota, count: int, ago: int, now: int) -> float:
    """The rest after that many starts, the first of them that long ago; `left` is the rest before, with its time."""
    starts, at = (quota.at_once, now - ago) if left is None or left[1] - now > _SET_BACK else left
    return grown(grown(starts, quota, now - ago - at) - count, quota, min(ago, now - at))
