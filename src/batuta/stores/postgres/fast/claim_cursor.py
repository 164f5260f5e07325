"""Remembers where a claim begins to look, so that it does not pass claimed runs again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from msgspec import json

MOST_SECONDS = 2.0
"""How often a look begins at the very beginning: a run that becomes due with an earlier time is not missed for
longer."""

Floor = tuple[str, int, int]
"""Of a queue and priority the time before which nothing was left."""


class ClaimCursors:
    """What the claims of one store object know of queues that are expensive to look at: see the SQL about claims."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._claim_cursors: dict[str, dict[str, int]] = {}
        self._code: Mapping[str, str] = {}
        self._whole_at = 0.0
        """When a look from the very beginning comes next."""

    def for_claim(self, code: Mapping[str, str]) -> str | None:
        """Floors of a claim with this code; None when it looks from the very beginning, as the first with a code
        does: runs that other code could not take are still there."""
        if not self._claim_cursors:
            return None
        if self._clock() >= self._whole_at or code != self._code:
            return None
        return json.encode(self._claim_cursors).decode()

    def claimed(self, code: Mapping[str, str], risen: Iterable[Floor], *, whole: bool) -> None:
        """A look has ended. Floors that a whole look does not confirm no longer hold."""
        if whole:
            self._claim_cursors, self._code = {}, code
            self._whole_at = self._clock() + MOST_SECONDS
        if code == self._code:
            for queue, priority, floor_at in risen:
                self._claim_cursors.setdefault(queue, {})[str(priority)] = floor_at

    @property
    def seconds_left(self) -> float:
        """Until a look from the very beginning is wanted."""
        return max(0.0, self._whole_at - self._clock())
