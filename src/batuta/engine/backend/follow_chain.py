"""From a run that continued to its successor."""

from __future__ import annotations

from batuta.errors import UnknownRun
from batuta.ids import RunId, derived_run_id
from batuta.journal.entries import decode_body
from batuta.journal.records import Run
from batuta.journal.states import CLOSED, RunState
from batuta.journal.store import Store

_LEFT = CLOSED - {RunState.COMPLETED}
"""Ends after which another run of the chain may follow: by itself, or because an operator retried it."""


async def last_of_chain(store: Store, run_id: RunId) -> Run:
    """The run itself or, if another one goes on in its place, the last run of its chain so far."""
    run = await store.get_run(run_id)
    while run.state in _LEFT:
        current = await store.get(run.id)
        if current.run_id == run.run_id:
            return run
        if current.chain_id != run.chain_id:  # the id belongs to another chain now: step by step
            if run.state is not RunState.CONTINUED:
                return run
            current = await store.get_run(await successor_id(store, run))
        run = current
    return run


async def successor_id(store: Store, run: Run) -> RunId:
    """A successor's id follows from the command that closed the run before it (`engine.chains`)."""
    first = await store.journal(run.run_id, limit=1)
    _, last = await store.outcome(run.run_id)
    start = decode_body(first[0]).start if first else None
    if last is None or not start:
        raise UnknownRun(run.run_id)
    mark = str(run.run_id) if run.forked_at >= 0 else start.mark or start.key_base
    return derived_run_id(last.at, mark, decode_body(last).commands[-1].seq)
