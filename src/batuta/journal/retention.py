"""How long runs are kept once they are closed."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta

from msgspec import Struct
from msgspec.structs import force_setattr

from batuta.clock import SECOND
from batuta.durations import UNITS, parse_duration, typed_duration
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.journal.states import CLOSED
from batuta.names import check_name

_FOR_EVER = "forever"
_STATES = sorted(str(state) for state in CLOSED)

SHORTEST = 60.0
"""Seconds.

A caller that waits for a result, or repeats a call whose answer was lost, finds the run for at least that long.
"""
_LONGEST = 100 * 366 * 86_400


class Retention(Struct, frozen=True):
    """How long closed runs are kept: for `worker(retention=[...])` and `client.retention.set(...)`.

    `keep` is a number of seconds, a timedelta, a text such as "30d" (units: s, min, h, d, w), or None: for ever.
    `workflow` is the name of a workflow or job, `state` a closed state; without them, any. The most specific rule
    applies: workflow and state, then workflow, then state, then all. A rule holds `keep` in seconds, however it was
    given.
    """

    keep: float | str | timedelta | None
    workflow: str = ""
    state: str = ""

    def __post_init__(self) -> None:
        if self.workflow:
            check_name(self.workflow, "workflow")
        if self.state and self.state not in _STATES:
            raise InvalidInput(f"state={self.state!r} must be a closed state: {', '.join(_STATES)}")
        force_setattr(self, "keep", self.seconds)

    @property
    def seconds(self) -> float | None:
        """`keep` in seconds; None: for ever."""
        return parse_age(self.keep)

    @property
    def micros(self) -> int | None:
        """`keep` in microseconds, as stores keep it; None: for ever."""
        return None if self.seconds is None else round(self.seconds * SECOND)

    @classmethod
    def stored(cls, workflow: str, state: str, micros: int | None) -> Retention:
        """Of the columns of a row."""
        return cls(None if micros is None else micros / SECOND, workflow, state)


def parse_age(keep: object) -> float | None:
    """Seconds from a number, a timedelta or a text such as "30d"; None from None and "forever". Raises InvalidInput."""
    if keep is None or keep == _FOR_EVER:
        return None
    seconds = _seconds(keep)
    if seconds is None or not SHORTEST <= seconds <= _LONGEST:
        raise InvalidInput(
            f'keep={keep!r} must be a number of seconds, a timedelta or a text such as "30d" (units: '
            f"{', '.join(UNITS)}), from a minute to a hundred years; or None, which means for ever"
        )
    return seconds


def _seconds(keep: object) -> float | None:
    if isinstance(keep, timedelta):
        return keep.total_seconds()
    if isinstance(keep, str):
        return parse_duration(keep)
    return float(keep) if isinstance(keep, int | float) and not isinstance(keep, bool) else None


def shown_age(seconds: float | None) -> str:
    """As it is typed."""
    return _FOR_EVER if seconds is None else typed_duration(seconds)


class Pruned(Struct):
    """The result of one step of pruning."""

    deleted: int
    """Runs."""
    last: RunId | None
    """Where the next step goes on; None: all were looked at, begin from the oldest again."""
    busy: float = 0.0
    """Seconds that the database was at work for it."""


def target_of(name: str, state: str) -> str:
    """The name of a rule in the audit log."""
    return f"{name or '*'} {state or '*'}"


def keep_json(keep: int | None) -> str:
    """The terms of a rule in the audit log."""
    return f'{{"keep":{"null" if keep is None else keep}}}'


def kept_for(rules: Iterable[Retention], name: str, state: str) -> int | None:
    """Microseconds that a run of this name is kept after it closed in this state; None: for ever."""
    holding = [rule for rule in rules if rule.workflow in ("", name) and rule.state in ("", state)]
    best = max(holding, key=lambda rule: (rule.workflow != "", rule.state != ""), default=None)
    return None if best is None else best.micros


def shortest(rules: Iterable[Retention]) -> int | None:
    """No run that closed later than so long ago is deleted; None: none at all."""
    return min((rule.micros for rule in rules if rule.micros is not None), default=None)
