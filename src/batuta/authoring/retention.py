"""How long runs are kept once they are closed, as users speak of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from msgspec import Struct

from batuta.authoring.names import check_name
from batuta.errors import InvalidInput
from batuta.journal.states import CLOSED

_UNITS = {"s": 1, "min": 60, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_AGE = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]+)\s*")
_FOR_EVER = "forever"
_STATES = sorted(str(state) for state in CLOSED)

SHORTEST = 60.0
"""Seconds. Whoever waits for a result, or repeats a call whose answer was lost, finds the run for so long."""
_LONGEST = 100 * 366 * 86_400


class Retention(Struct, frozen=True):
    """How long closed runs are kept: for `worker(retention=[...])` and `client.retention.set(...)`.

    `keep` is a number of seconds, a timedelta, a text such as "30d" (units: s, min, h, d, w), or None: for ever.
    `workflow` is the name of a workflow or job, `state` a closed state; each left out stands for any. The most
    specific rule holds: of the workflow and state, of the workflow, of the state, of all.
    """

    keep: float | str | timedelta | None
    workflow: str = ""
    state: str = ""

    def __post_init__(self) -> None:
        if self.workflow:
            check_name(self.workflow, "workflow")
        if self.state and self.state not in _STATES:
            raise InvalidInput(f"state={self.state!r} must be a closed state: {', '.join(_STATES)}")
        _ = self.seconds

    @property
    def seconds(self) -> float | None:
        """`keep` in seconds; None: for ever."""
        return parse_age(self.keep)


def parse_age(keep: object) -> float | None:
    """Seconds, of a number, a timedelta or a text such as "30d"; None of None and "forever". Raises InvalidInput."""
    if keep is None or keep == _FOR_EVER:
        return None
    seconds = _seconds(keep)
    if seconds is None or not SHORTEST <= seconds <= _LONGEST:
        raise InvalidInput(
            f'keep={keep!r} must be a number of seconds, a timedelta or a text such as "30d" (units: '
            f"{', '.join(_UNITS)}), from a minute to a hundred years; or None, which is for ever"
        )
    return seconds


def _seconds(keep: object) -> float | None:
    if isinstance(keep, timedelta):
        return keep.total_seconds()
    if isinstance(keep, str):
        found = _AGE.fullmatch(keep.lower())
        return float(found[1]) * _UNITS[found[2]] if found is not None and found[2] in _UNITS else None
    return float(keep) if isinstance(keep, int | float) and not isinstance(keep, bool) else None


def shown_age(seconds: float | None) -> str:
    """As it is typed."""
    if seconds is None:
        return _FOR_EVER
    unit = next((unit for unit in ("d", "h", "min") if seconds % _UNITS[unit] == 0), "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


class RetentionBackend(Protocol):
    """Keeps the rules, and goes by them."""

    async def set(self, rule: Retention) -> bool: ...
    async def drop(self, workflow: str, state: str) -> bool: ...
    async def list(self) -> Sequence[Retention]: ...
    async def prune(self, *, dry_run: bool) -> int: ...


class Retentions:
    """How long closed runs of a namespace are kept: `client.retention`. Without any rule: for ever."""

    def __init__(self, backend: RetentionBackend) -> None:
        self._backend = backend

    async def list(self) -> Sequence[Retention]:
        """All rules, by workflow and state; `keep` is in seconds."""
        return await self._backend.list()

    async def set(self, keep: float | str | timedelta | None, *, workflow: str = "", state: str = "") -> bool:
        """Add a rule, or replace the one of this workflow and state: see `Retention`. False when it was there already.

        Workers go by it within a minute or so."""
        return await self._backend.set(Retention(keep, workflow, state))

    async def drop(self, *, workflow: str = "", state: str = "") -> bool:
        """Take the rule of exactly this workflow and state away. False when there is none."""
        rule = Retention(None, workflow, state)  # raises InvalidInput where there could be none
        return await self._backend.drop(rule.workflow, rule.state)

    async def prune(self, *, dry_run: bool = False) -> int:
        """Delete now what workers would delete in their time; how many runs were, or with `dry_run` would be, deleted.

        It goes from the oldest run to the newest in short steps, with pauses between them."""
        return await self._backend.prune(dry_run=dry_run)
