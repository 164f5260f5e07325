"""Starts with encoded payloads.

A debounced start is bound to the run that will do its work: the waiting one, if any.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from batuta.errors import StoreUnavailable
from batuta.ids import RunId
from batuta.journal.records import NewRun, StartOutcome
from batuta.stores.coded.record_codec import RecordCodec

StartMany = Callable[[Sequence[NewRun], NewRun | None], Awaitable[list[StartOutcome]]]


async def start_all(
    start_many: StartMany, coding: RecordCodec, runs: Sequence[NewRun], after: NewRun | None
) -> list[StartOutcome]:
    """Start them with `start_many`.

    A debounced start is first encoded for its own run. If another run waits under its key, the store writes nothing and
    names that run, and the start is encoded again for it.
    """
    asked = runs if after is None else [*runs, after]
    last = None if after is None else coding.new_run(after)
    outcomes = await start_many([coding.new_run(run) for run in runs], last)
    left = [place for place, run in enumerate(asked) if run.debounce and _waits_elsewhere(run, outcomes[place])]
    for place in left:
        outcomes[place] = await _start_instead(start_many, coding, asked[place], outcomes[place])
    return outcomes


def _waits_elsewhere(run: NewRun, outcome: StartOutcome) -> bool:
    return isinstance(outcome, tuple) and outcome[0].run_id != run.run_id


async def _start_instead(
    start_many: StartMany, coding: RecordCodec, run: NewRun, outcome: StartOutcome
) -> StartOutcome:
    """Until it is encoded for the run that has its key then.

    A run that was tried and lost the key never gets it again: it has the start's id, and is returned unchanged.
    """
    tried: set[RunId] = set()
    while True:
        other = outcome[0] if isinstance(outcome, tuple) and outcome[0].run_id != run.run_id else None
        if other is not None and other.run_id in tried:
            return outcome
        [outcome] = await start_many([coding.new_run(run, other)], None)
        if other is None:
            if not _waits_elsewhere(run, outcome):
                return outcome
        elif isinstance(outcome, StoreUnavailable):
            tried.add(other.run_id)
        elif not isinstance(outcome, tuple) or outcome[0].run_id == other.run_id:
            return outcome
