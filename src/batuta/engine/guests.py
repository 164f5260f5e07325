"""Runs that are started inside a transaction of the caller's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from batuta.authoring.backend import RunRef
from batuta.journal.records import NewRun, StartOutcome
from batuta.journal.store import Guest


class Entering:
    """Implements `authoring.backend.Entering`: all is ready but for the write."""

    def __init__(
        self,
        guest: Guest,
        runs: Sequence[NewRun],
        after: NewRun | None,
        ref_of: Callable[[int, StartOutcome], RunRef],
    ) -> None:
        self.suits_a_loop = guest.brief or not guest.blocking
        self.suits_a_thread = guest.blocking
        self._guest, self._runs, self._after, self._ref_of = guest, runs, after, ref_of

    async def write(self) -> list[RunRef]:
        outcomes = await self._guest.start_many(self._runs, self._after) if self._runs else []
        return [self._ref_of(place, outcome) for place, outcome in enumerate(outcomes)]
