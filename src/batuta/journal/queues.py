"""Queues as the store knows them: their limits, and what is going on in them. Values, no I/O."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct


class Rate(Struct, frozen=True):
    """At most `count` runs begin within any `period` microseconds, wherever that period begins."""

    count: int
    period: int


class QueueLimits(Struct, frozen=True, kw_only=True):
    """What holds for all workers of a queue together. None is no limit."""

    concurrency: int | None = None
    """Runs that are owned at once."""
    key_concurrency: int | None = None
    """The same for each flow key. Runs without a key are not counted."""
    rate: Rate | None = None
    """Runs that begin: that are claimed for the first time."""
    key_rate: Rate | None = None
    """The same for each flow key. Runs without a key are not counted."""

    @property
    def any(self) -> bool:
        return any(limit is not None for limit in (self.concurrency, self.key_concurrency, self.rate, self.key_rate))

    def only(self, names: Collection[str]) -> QueueLimits:
        """Those of these names, and no others."""
        return QueueLimits(**{name: getattr(self, name) for name in names})


LIMITS = QueueLimits.__struct_fields__
"""The names of all limits."""


class QueueView(Struct, kw_only=True):
    """A queue: one that was set up or paused, or that has open runs or workers."""

    name: str
    paused: bool = False
    note: str = ""
    """Why it is paused."""
    limits: QueueLimits = QueueLimits()
    ready: int = 0
    """Unowned runs that are due."""
    delayed: int = 0
    """Unowned runs that will be due at a time."""
    running: int = 0
    """Owned runs."""
    oldest: int | None = None
    """When the run that has been due for longest became so."""
    workers: int = 0
    """Live workers that take from it."""
