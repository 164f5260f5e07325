"""Answers and heartbeats for attempts whose answer comes from outside: the side of whoever holds a token."""

from __future__ import annotations

from contextlib import suppress

from msgspec import json
from msgspec.structs import replace

from batuta.authoring.tokens import AttemptRef
from batuta.engine.following import last_of_chain
from batuta.engine.outside import BEAT
from batuta.errors import InvalidToken, LostAttempt, RunClosed, TokenUsed, UnknownRun
from batuta.ids import RunId, new_message_id
from batuta.journal.entries import Body, CommandKind, Entry, EntryKind, decode_body
from batuta.journal.records import Message, MessageKind, Run
from batuta.journal.states import CLOSED
from batuta.journal.store import Store

_ANSWERS = (EntryKind.ACTIVITY_DONE, EntryKind.ACTIVITY_FAILED)
_PAGE = 1_000
_REMEMBERED = 10_000


class Completing:
    """Sends them. Each refuses what cannot be delivered, as of now: InvalidToken, UnknownRun, RunClosed, LostAttempt,
    TokenUsed. What comes too late all the same is thrown away by the run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked: dict[tuple[RunId, int], int] = {}
        """Entries up to which a call was seen to be open: what is written does not change, so they are read once."""

    async def answer(self, ref: AttemptRef, body: Body) -> None:
        """Send a value or an error."""
        ref = await self._check(ref)
        if not await self.send(ref, body, _message_id(ref)):
            raise TokenUsed(f"attempt {ref.attempt} of command {ref.seq} of run {ref.run_id} has its answer already")
        self._looked.pop((ref.run_id, ref.seq), None)

    async def beat(self, ref: AttemptRef, body: Body) -> None:
        """Send a heartbeat."""
        ref = await self._check(ref)
        body.reason = BEAT
        await self.send(ref, body, f"beat:{new_message_id()}")

    async def send(self, ref: AttemptRef, body: Body, message_id: str) -> bool:
        """Without a look at whether it can be delivered. False when that message was sent before."""
        body.seq, body.attempts = ref.seq, ref.attempt
        message = Message(
            message_id=message_id, kind=MessageKind.ACTIVITY, name=str(ref.run_id), body=json.encode(body).decode()
        )
        return await self._store.send(ref.run_id, message)

    async def _check(self, ref: AttemptRef) -> AttemptRef:
        """The attempt, in the run that waits for it now."""
        store = self._store
        if ref.namespace != store.namespace:
            raise InvalidToken(f"the token is of namespace {ref.namespace!r}, and this is {store.namespace!r}")
        run = await self._holder(ref)
        if run.state in CLOSED:
            raise RunClosed(run.id, str(run.state))
        ref = replace(ref, run_id=run.run_id)
        rows = [row for row in await store.attempts(ref.run_id, ref.seq) if row.number >= ref.attempt]
        lost = LostAttempt(f"attempt {ref.attempt} of command {ref.seq} of run {run.id!r} is over: it takes no answer")
        if any(row.number > ref.attempt or row.ended_at is not None for row in rows):
            raise lost
        call = ref.run_id, ref.seq
        after = max(ref.entry, self._looked.pop(call, -1))  # taken out and put back: the last used are kept
        while page := await store.journal(ref.run_id, after, _PAGE):
            for entry in page:
                _check_open(ref, entry, lost)
            after = page[-1].ord
        self._looked[call] = after
        if len(self._looked) > _REMEMBERED:
            del self._looked[next(iter(self._looked))]
        return ref

    async def _holder(self, ref: AttemptRef) -> Run:
        """The run itself or, if it was tried again or reset after the call, the one that goes on with the call."""
        run = await self._store.get_run(ref.run_id)
        while run.state in CLOSED:
            last = await last_of_chain(self._store, run.run_id)
            if last.forked_from is None or last.forked_at < ref.entry or last.run_id == run.run_id:
                return run
            if not await self._comes_from(last, ref.run_id):
                return run
            run = last
        return run

    async def _comes_from(self, run: Run, source: RunId) -> bool:
        with suppress(UnknownRun):  # one that was deleted
            while run.forked_from is not None:
                if run.forked_from == source:
                    return True
                run = await self._store.get_run(run.forked_from)
        return False


def _check_open(ref: AttemptRef, entry: Entry, lost: LostAttempt) -> None:
    """Raise where the entry ends the call."""
    body = decode_body(entry)
    if entry.kind in _ANSWERS and body.seq == ref.seq:
        raise TokenUsed(str(lost)) if body.message_id == _message_id(ref) else lost
    if any(one.kind is CommandKind.CANCEL and one.target == ref.seq for one in body.commands):
        raise lost


def _message_id(ref: AttemptRef) -> str:
    """One for each attempt: it has one answer."""
    return f"answer:{ref.run_id}:{ref.seq}:{ref.attempt}"
