"""Checks what a store writes itself, without encryption, against the rows of the runs.

A store closes runs that time out, or that somebody ends, without any key. It appends a last entry to their journals,
and puts a message into the inbox of their parent. An attacker who can write to the database could put either there. So
the end of a child is taken from its row, and a last entry must belong to a run that was closed that way. Such an
attacker can still close runs, but cannot forge what a child has returned or raised.
"""

from __future__ import annotations

from msgspec.structs import replace

from batuta.authoring.history.compensations import COMPENSATE
from batuta.errors import PayloadDamaged, UnknownRun
from batuta.ids import RunId
from batuta.journal.child_outcomes import ended_outcome
from batuta.journal.codec_envelope import is_coded
from batuta.journal.entries import Entry
from batuta.journal.kinds import CLOSING_ENTRIES
from batuta.journal.records import Message, MessageKind, Run
from batuta.journal.states import RunState
from batuta.journal.store import Store
from batuta.stores.coded.record_codec import Reader, RecordCodec, started_by
from batuta.stores.coded.run_facts import fact_of

_ENDED = frozenset(CLOSING_ENTRIES.values())
_CHILD = "child:"


class PlaintextChecks:
    """Asks the store about the runs."""

    def __init__(self, store: Store, coding: RecordCodec) -> None:
        self._store, self._coding = store, coding

    async def message(self, reader: Reader, message: Message) -> Message:
        """The original message. Raises PayloadSealed."""
        if message.kind is MessageKind.CHILD and self._coding.payloads.strict and not is_coded(message.body):
            return await self._told(reader, message)
        if message.kind is MessageKind.START:
            reader = await self.reader_of_start(reader, message)
            if message.name == COMPENSATE:
                return await self._compensation(reader, message)
        return self._coding.plain_message(reader, message)

    async def reader_of_start(self, reader: Reader, message: Message) -> Reader:
        """With the run that it starts, where a whole chain is read."""
        if reader.fact is not None:
            return reader
        run = await self._run_of(started_by(message))
        return reader if run is None else reader._replace(fact=fact_of(run))

    async def _compensation(self, reader: Reader, message: Message) -> Message:
        """The start of one that a worker has begun, or of one that was kept ready and that the store has begun."""
        try:
            return self._coding.plain_message(reader, message)
        except PayloadDamaged:
            run = await self._run(reader.run_id or reader.chain_id)
            if run is None or run.parent_run_id is None or message.message_id != f"start:{run.run_id}":
                raise
            parent = await self._run(run.parent_run_id)
            if parent is not None and parent.state is not RunState.TIMED_OUT:
                raise PayloadDamaged(
                    f"message {message.message_id!r} cannot be read: it undoes what run {parent.run_id} has done, "
                    f"which has not timed out"
                ) from None
            return self._coding.plain_compensation(run, message)

    async def _told(self, reader: Reader, message: Message) -> Message:
        """The end of a child that the store has closed."""
        parent = message.name if reader.run_id is None else str(reader.run_id)
        child = await self._run_of(message.message_id.removeprefix(_CHILD))
        if child is None or str(child.parent_run_id) != parent or message.name != parent or child.state not in _ENDED:
            raise PayloadDamaged(
                f"message {message.message_id!r} cannot be read: it is not encrypted, and the store did not "
                f"close a child of this run that way"
            )
        reason = self._coding.plain_run(child).reason
        return replace(message, body=ended_outcome(child.parent_seq, child.id, child.state, reason))

    async def _run_of(self, run_id: str) -> Run | None:
        try:
            return await self._run(RunId(run_id))
        except ValueError:
            return None

    async def _run(self, run_id: RunId) -> Run | None:
        try:
            return await self._store.get_run(run_id)
        except UnknownRun:
            return None

    async def end(self, run_id: RunId, entry: Entry, run: Run | None = None) -> None:
        """Raises PayloadDamaged unless the run was closed by this entry, which the store has written."""
        run = await self._store.get_run(run_id) if run is None else run
        if run.closed_at is None or run.head != entry.ord or run.state is not CLOSING_ENTRIES[entry.kind]:
            raise PayloadDamaged(
                f"entry {entry.ord} of run {run_id} cannot be read: it is not encrypted, and the store did not "
                f"close the run that way"
            )
