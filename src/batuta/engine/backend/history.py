"""Collects the history of a run from the store: its steps with every attempt, its timeline, and its difference from
another run."""

from __future__ import annotations

from itertools import groupby

from batuta.authoring.backend import AttemptView
from batuta.authoring.history.diff import Diff, diff_of
from batuta.authoring.history.steps import Step, steps_of
from batuta.authoring.history.timeline import Timeline, sealed_timeline, timeline_of
from batuta.engine.backend.follow_chain import find_run, successor_id
from batuta.engine.forks.plan import journal_of
from batuta.errors import InvalidInput, PayloadSealed, UnknownRun
from batuta.ids import RunId
from batuta.journal.records import Attempt, Run
from batuta.journal.states import RunState
from batuta.journal.store import Store

_GENERATIONS = 100
"""How far back attempts are looked for, of runs that were made from one another."""


async def timeline(store: Store, run: Run) -> Timeline:
    """The timeline of this run alone."""
    now = await store.now()
    try:
        entries = await journal_of(store, run)
    except PayloadSealed as error:
        return sealed_timeline(run, now, error)
    found = timeline_of(run, entries, await store.attempts(run.run_id), now, before=await _before(store, run))
    if run.state is RunState.CONTINUED and not found.sealed:
        found.continued_as = await _next(store, run)
    return found


async def _next(store: Store, run: Run) -> RunId | None:
    try:
        return (await store.get_run(await successor_id(store, run))).run_id
    except UnknownRun:
        return None


async def all_attempts(store: Store, run: Run) -> list[AttemptView]:
    """The attempts of every call, in order. Raises PayloadSealed."""
    return [attempt for step in await _steps(store, run) for attempt in step.attempts]


async def diff(store: Store, left: RunId | None, right: RunId) -> Diff:
    """Two runs; without `left`, a run and the one that it was made from."""
    run = await store.get_run(right)
    if left is None and run.forked_from is None:
        raise InvalidInput(f"run {run.id!r} was not forked from another run: give the run to compare it with")
    other = await store.get_run(left or run.forked_from or right)
    return diff_of((other, await _steps(store, other)), (run, await _steps(store, run)))


async def _steps(store: Store, run: Run) -> list[Step]:
    entries, attempts = await journal_of(store, run), await store.attempts(run.run_id)
    return steps_of(run, entries, attempts, await store.now(), before=await _before(store, run))


async def _before(store: Store, run: Run) -> list[Attempt]:
    """Attempts of the runs that it was made from, as far as they exist. For each call those of the nearest run."""
    found: dict[int, list[Attempt]] = {}
    origin = run.forked_from
    for _ in range(_GENERATIONS):
        if origin is None:
            break
        before = await find_run(store, origin)
        if before is None:
            break
        for seq, rows in groupby(await store.attempts(origin), key=lambda row: row.seq):
            found.setdefault(seq, list(rows))
        origin = before.forked_from
    return [row for rows in found.values() for row in rows]
