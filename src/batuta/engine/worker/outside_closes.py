"""Events of runs that were closed from outside: terminated, timed out by others, cancelled before they began."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec import UNSET, structs

from batuta.authoring.middleware import Middleware
from batuta.clock import SECOND
from batuta.errors import BatutaError
from batuta.ids import RunId, made_traceparent
from batuta.journal.entries import Body, Entry, EntryKind, StartInfo, decode_body
from batuta.journal.records import MessageKind, Run
from batuta.journal.store import Store
from batuta.serde import decode_stored
from batuta.telemetry import RunClosed, RunFacts

log = logging.getLogger("batuta.engine")

_FIRST = 10
"""Messages of a run that has not begun among which its start is looked for."""


class OutsideCloses:
    """Tells the listeners of the client or worker that closed them. Reads nothing without one."""

    def __init__(self, store: Store, listeners: Sequence[Middleware]) -> None:
        self._store = store
        self._listeners = [one for one in listeners if RunClosed in one.events]

    async def tell(self, run_ids: Sequence[RunId]) -> None:
        """These runs are closed. An error here does no harm to the caller, whose work is done."""
        for run_id in run_ids if self._listeners else ():
            try:
                event = await self._event(run_id)
            except BatutaError:
                log.exception("the end of run %s, closed from outside, is not told", run_id)
                continue
            for one in self._listeners:
                try:
                    one.event(event)
                except Exception:
                    log.exception("middleware failed on the event %s", event.event)

    async def _event(self, run_id: RunId) -> RunClosed:
        run = await self._store.get_run(run_id)
        entries = await self._store.journal(run_id, limit=1)
        begun_at = entries[0].at if entries and entries[0].kind is EntryKind.STARTED else None
        start = await start_info(self._store, run, entries)
        trace = (start.trace if start is not None else "") or made_traceparent(run.chain_id)
        facts = RunFacts(self._store.namespace, run_id, run.id, run.name, str(run.kind), run.queue, trace)
        if start is not None:
            facts = structs.replace(facts, flow=start.flow)
        at = run.closed_at or 0
        seconds = 0.0 if begun_at is None else max(0, at - begun_at) / SECOND
        return RunClosed(at / SECOND, facts, str(run.state), seconds, run.head + 1, "", run.reason)


async def start_info(store: Store, run: Run, first: Sequence[Entry] | None = None) -> StartInfo | None:
    """The facts of the run's start: in its first entry, else in the message that waits for it. `first`: its first
    entry, if that was read. None when it cannot be found. Raises PayloadSealed."""
    entries = await store.journal(run.run_id, limit=1) if first is None else first
    if entries and entries[0].kind is EntryKind.STARTED:
        found = decode_body(entries[0]).start
    else:
        messages = await store.inbox(run.chain_id, limit=_FIRST)
        bodies = (one.body for one in messages if one.kind is MessageKind.START)
        found = next((decode_stored(body, "the start", Body).start for body in bodies), UNSET)
    return None if found is UNSET else found
