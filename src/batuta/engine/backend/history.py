"""Collects the history of a run from the store: its steps with every attempt, its timeline, and its difference from
another run; and which activities and children a run waits for."""

from __future__ import annotations

from itertools import groupby

from msgspec.structs import replace

from batuta.authoring.backend import AttemptView
from batuta.authoring.history.diff import Diff, diff_of
from batuta.authoring.history.steps import Step, steps_of
from batuta.authoring.history.timeline import Timeline, sealed_timeline, timeline_of
from batuta.engine.backend.follow_chain import find_run, successor_id
from batuta.engine.forks.plan import journal_of
from batuta.errors import InvalidInput, PayloadSealed, UnknownRun
from batuta.ids import RunId
from batuta.journal.entries import CommandKind, EntryKind, decode_body
from batuta.journal.kinds import CALL_ANSWERS
from batuta.journal.records import Attempt, Page, Run, RunFilter, RunKind
from batuta.journal.states import OPEN, RunState
from batuta.journal.store import Store

_CALLS = frozenset((CommandKind.ACTIVITY, CommandKind.CHILD))
_ANSWERS = CALL_ANSWERS | {EntryKind.REFUSED}
_LOOKED_AT = 500
"""Runs whose journals are read for one page."""
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


# -- what runs wait for


async def open_calls(store: Store, run: Run) -> list[str]:
    """Names of the activities and children whose answer the run has not received, in the order of the calls."""
    if run.kind is not RunKind.WORKFLOW:
        return [run.name]
    calls: dict[int, str] = {}
    after = -1
    while entries := await store.journal(run.run_id, after):
        for entry in entries:
            body = decode_body(entry)
            if entry.kind in _ANSWERS:
                calls.pop(body.seq, None)
            for command in body.commands:
                if command.kind in _CALLS:
                    calls[command.seq] = command.name
                elif command.kind is CommandKind.CANCEL:
                    calls.pop(command.target, None)
        after = entries[-1].ord
    return list(calls.values())


async def list_waiting(store: Store, where: RunFilter, name: str, cursor: str | None, limit: int) -> Page:
    """A page of open runs that wait for a call of that name. Journals that cannot be read here match nothing."""
    states = tuple(OPEN.intersection(where.states)) if where.states else tuple(sorted(OPEN))
    if not states:
        return Page([], None)
    found: list[Run] = []
    page = await store.list_runs(replace(where, states=states), cursor, _LOOKED_AT)
    for place, run in enumerate(page.runs):
        try:
            matches = name in await open_calls(store, run)
        except PayloadSealed:
            matches = False
        if matches:
            found.append(run)
        if len(found) == limit and (page.cursor is not None or place < len(page.runs) - 1):
            return Page(found, str(run.run_id))
    return Page(found, page.cursor)
