"""How a run has ended, and from a run that continued to its successor."""

from __future__ import annotations

from batuta.errors import PayloadDamaged, UnknownRun
from batuta.ids import RunId, derived_run_id
from batuta.journal.entries import Command, CommandKind, Entry, EntryKind, decode_body
from batuta.journal.kinds import CLOSING_COMMANDS, CLOSING_ENTRIES, ends_as
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


async def find_run(store: Store, run_id: RunId) -> Run | None:
    """The run, if it still exists."""
    try:
        return await store.get_run(run_id)
    except UnknownRun:
        return None


async def find_current(store: Store, id: str) -> Run | None:
    """The current run of the id, if there is one."""
    try:
        return await store.get(id)
    except UnknownRun:
        return None


async def successor_id(store: Store, run: Run) -> RunId:
    """A successor's id follows from the command that closed the run before it (`engine.chains`)."""
    first = await store.journal(run.run_id, limit=1)
    _, last = await store.outcome(run.run_id)
    start = decode_body(first[0]).start if first else None
    if last is None or not start:
        raise UnknownRun(run.run_id)
    mark = str(run.run_id) if run.forked_at >= 0 else start.mark or start.key_base
    return derived_run_id(last.at, mark, decode_body(last).commands[-1].seq)


def closing_command(run: Run, last: Entry | None) -> Command | None:
    """The command that closed the run; None when it was closed from outside.

    Raises PayloadDamaged unless the last entry of its journal closes it as its row says: with the state of the row
    alone, somebody who can write to the database could choose whether a run has failed.
    """
    command: Command | None = None
    end: CommandKind | EntryKind | None = None
    if last is not None:
        if last.kind in CLOSING_ENTRIES:
            end = last.kind
        elif (commands := decode_body(last).commands) and commands[-1].kind in CLOSING_COMMANDS:
            command = commands[-1]
            end = command.kind
    if run.state in CLOSED and not ends_as(end, run.state):
        raise PayloadDamaged(f"run {run.id!r} is {run.state}, and its journal does not end so")
    return command
