"""Where a claim begins to look, so that it does not pass what was claimed before again and again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from time import monotonic

from msgspec import json

MOST_SECONDS = 2.0
"""A look from the very beginning comes so often: what is due with a time from before is not missed for longer."""

Floor = tuple[str, int, int]
"""Of a queue and priority the time before which nothing was left."""


class Floors:
    """What the claims of one store object know of queues that were hard to look at: see the SQL about claims."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._floors: dict[str, dict[str, int]] = {}
        self._code: Mapping[str, str] = {}
        self._whole_at = 0.0
        """When a look from the very beginning comes next."""

    def for_claim(self, code: Mapping[str, str]) -> str | None:
        """Floors of a claim with this code; None when it looks from the very beginning, as the first with a code does:
        what another could not take is not gone."""
        if not self._floors:
            return None
        if self._clock() >= self._whole_at or code != self._code:
            return None
        return json.encode(self._floors).decode()

    def claimed(self, code: Mapping[str, str], risen: Iterable[Floor], *, whole: bool) -> None:
        """A look is over. What a whole one does not say anew does not hold any more."""
        if whole:
            self._floors, self._code = {}, code
            self._whole_at = self._clock() + MOST_SECONDS
        if code == self._code:
            for queue, priority, floor_at in risen:
                self._floors.setdefault(queue, {})[str(priority)] = floor_at

    @property
    def seconds_left(self) -> float:
        """Until a look from the very beginning is wanted."""
        return max(0.0, self._whole_at - self._clock())
