"""Which activities and children a run waits for: read from its journal, where names and answers stand."""

from __future__ import annotations

from msgspec.structs import replace

from batuta.errors import PayloadSealed
from batuta.journal.entries import CommandKind, EntryKind, decode_body
from batuta.journal.kinds import CALL_ANSWERS
from batuta.journal.records import Page, Run, RunFilter, RunKind
from batuta.journal.states import OPEN
from batuta.journal.store import Store

_CALLS = frozenset((CommandKind.ACTIVITY, CommandKind.CHILD))
_ANSWERS = CALL_ANSWERS | {EntryKind.REFUSED}
_LOOKED_AT = 500
"""Runs whose journals are read for one page."""


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
