"""Ending a run from outside, against whoever is working on it."""

from __future__ import annotations

from batuta.journal.acts import Act
from batuta.journal.entries import Body, Entry, EntryKind, encode_entry
from batuta.journal.records import Run
from batuta.journal.states import RunState
from batuta.journal.store import Store

_STATES = {EntryKind.TERMINATED: RunState.TERMINATED, EntryKind.TIMED_OUT: RunState.TIMED_OUT}


async def close_from_outside(
    store: Store, run: Run, last: Entry | None, kind: EntryKind, reason: str, act: Act | None = None
) -> bool:
    """Close the run after its last entry. False when it has moved on meanwhile: look at it again."""
    at = max(await store.now(), last.at if last is not None else 0)
    entry = encode_entry(run.head + 1, kind, at, Body(reason=reason), last.crc if last is not None else 0)
    return await store.close_run(run.run_id, run.head, entry, _STATES[kind], reason, act)
