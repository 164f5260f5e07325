"""Runs whose payloads cannot be read here: they are parked, and wait for a worker that can."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batuta.errors import InvalidInput, PayloadSealed, WorkflowBroken
from batuta.journal.coded import refuse_coded
from batuta.journal.records import Message, Tape

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun
    from batuta.engine.session import Session

log = logging.getLogger("batuta.engine")


def why_not_replayed(error: Exception) -> str:
    """What a run is parked with whose replay ended so."""
    if isinstance(error, PayloadSealed):
        return f"{type(error).__name__}: {error}"
    return str(error) if isinstance(error, WorkflowBroken | InvalidInput) else f"its replay failed: {error!r}"


def park_or_drop(run: LiveRun, messages: Sequence[Message], error: Exception) -> None:
    """It failed to read these. Where they are coded, and nothing here decodes them, it would fail for ever."""
    try:
        for message in messages:
            refuse_coded(message.body, f"message {message.message_id!r}")
    except PayloadSealed as sealed:
        run.park(f"{type(sealed).__name__}: {sealed}")
        return
    log.error("run %s is dropped and will be read again", run.run_id, exc_info=error)
    run.drop()


def park_where_it_was(run: LiveRun, tape: Tape) -> None:
    """It was to go back to its last durable entry."""
    run.leaving, run.head = False, run.durable
    run.park(tape.sealed)


async def park_unless_early(session: Session, run: LiveRun) -> None:
    """It was sent what cannot be read. A job that is under way goes on: it reads its inbox when it ends."""
    if run.early:
        return
    tape = await session.store.load(run.run_id)

    def park() -> None:
        if session.runs.get(run.run_id.int) is run and not run.leaving:
            run.park(tape.sealed)

    if tape.sealed:
        session.call_soon(park)
