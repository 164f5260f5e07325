"""Remembers where a claim begins to look, so that it does not pass the same unclaimable runs again and again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from time import monotonic

from batuta.clock import SECOND
from batuta.stores.sqlite.database.unit_of_work import UnitOfWork

MOST_SECONDS = 2.0
"""How often a look begins at the very beginning: a run that becomes due with an earlier time is not missed for
longer."""
MANY = 1_000
"""Fewer than that are passed as quickly as they are counted."""

Place = tuple[str, int]
"""A queue and a priority."""


class ClaimCursors:
    """Of each queue and priority the time before which a worker can take nothing: all that is due there is for workers
    with other code. Only where that is much. Belongs to one store object; runs with flow keys have no part in it."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._claim_cursors: dict[Place, int] = {}
        self._code: Mapping[str, str] = {}
        self._whole_at = 0.0
        """When a look from the very beginning comes next."""

    def begin(self, code: Mapping[str, str]) -> bool:
        """A look with this code begins: whether it is one from the very beginning."""
        if self._clock() < self._whole_at and code == self._code:
            return False
        self._claim_cursors, self._code = {}, code
        self._whole_at = self._clock() + MOST_SECONDS
        return True

    @property
    def known(self) -> Mapping[Place, int]:
        """For the code of the look that has begun."""
        return self._claim_cursors

    def for_code(self, code: Mapping[str, str]) -> Mapping[Place, int]:
        """The same for a claim that follows a look."""
        return self._claim_cursors if self._claim_cursors and code == self._code else {}

    def note(self, unit: UnitOfWork, place: Place, first_at: int | None) -> None:
        """A look from the very beginning found nothing before `first_at`: if it had much to pass, the next need not.

        What comes to be due a little late, in a transaction that took long, is not passed over."""
        floor = unit.now - SECOND if first_at is None else min(first_at, unit.now - SECOND)
        if unit.value("count_before", (unit.namespace, *place, floor, MANY), 0) >= MANY:
            self._claim_cursors[place] = floor
