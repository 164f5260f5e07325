"""How much a namespace may start."""

from __future__ import annotations

import math
from collections.abc import Iterable

from msgspec import Struct

from batuta.clock import SECOND

OPEN_RUNS, STARTS, PAYLOAD = "open_runs", "starts_per_second", "payload_bytes"
NAMES = (OPEN_RUNS, PAYLOAD, STARTS)

EVERYBODY = "*"
"""The namespace whose quotas hold for those that have none of their own."""


class Quota(Struct, kw_only=True, frozen=True):
    """One of a namespace."""

    name: str
    limit: float | None = None
    """None: there is none, also when all others have one."""
    burst: int | None = None
    """Of STARTS: how many may come at once; None: as many as in a second."""

    @property
    def at_once(self) -> int:
        """The burst of STARTS."""
        return self.burst or max(1, math.ceil(self.limit or 0))


class QuotaView(Struct, kw_only=True, frozen=True):
    """A quota that holds, and how far it is used."""

    quota: Quota
    own: bool = True
    """False: it is that of EVERYBODY."""
    used: float = 0
    """Of OPEN_RUNS: those that are open, one above the limit at most. Of STARTS: how many of the burst have not come
    back yet, which may be more than the burst."""


def whole(number: float | None) -> float | None:
    """A number as people write it, of one that a database keeps."""
    return int(number) if number is not None and number == int(number) else number


def holding(own: Iterable[Quota], everybody: Iterable[Quota]) -> list[tuple[Quota, bool]]:
    """The quotas that hold, by name, and whether they are the namespace's own."""
    found = {quota.name: (quota, False) for quota in everybody} | {quota.name: (quota, True) for quota in own}
    return [found[name] for name in sorted(found)]


def grown(starts: float, quota: Quota, micros: int) -> float:
    """What is left of the burst of STARTS after that time."""
    return min(quota.at_once, starts + (quota.limit or 0) * max(0, micros) / SECOND)


def spent(left: tuple[float, int] | None, quota: Quota, count: int, ago: int, now: int) -> float:
    """What is left after so many starts, the first of them so long ago; `left` is what was left before, and when."""
    starts, at = (quota.at_once, now - ago) if left is None else left
    return grown(grown(starts, quota, now - ago - at) - count, quota, min(ago, now - at))
