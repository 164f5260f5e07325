"""Answers and heartbeats from outside, by token."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from msgspec import Raw, json
from msgspec.structs import replace

from batuta.authoring.activity.tokens import AttemptRef, is_kept
from batuta.engine.activities.external_completion import BEAT
from batuta.engine.backend.follow_chain import last_of_chain
from batuta.errors import InvalidToken, LostAttempt, RunClosed, TokenUsed, UnknownRun
from batuta.ids import RunId, new_message_id
from batuta.journal.entries import Body, CommandKind, Entry, decode_body
from batuta.journal.failures import Failure
from batuta.journal.kinds import ACTIVITY_ANSWERS
from batuta.journal.records import HEARTBEAT, Attempt, Message, MessageKind, Run
from batuta.journal.states import CLOSED
from batuta.journal.store import Store

_PAGE = 1_000
_REMEMBERED = 10_000
_WAITS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 1.0, 2.0)
"""Seconds between looks for a token that is not known."""


class ExternalCompletions:
    """Sends them. Each refuses what cannot be delivered, as of now: InvalidToken, UnknownRun, RunClosed, LostAttempt,
    TokenUsed. What comes too late all the same is thrown away by the run."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._looked: dict[tuple[RunId, int], int] = {}
        """Entries up to which a call was seen to be open: entries never change, so they are read once."""

    async def answer(self, ref: AttemptRef, answer: Raw | Failure) -> None:
        """Send a value or an error."""
        body = Body(error=answer) if isinstance(answer, Failure) else Body(value=answer)
        ref = await self._check(ref)
        if not await self.send(ref, body, _message_id(ref)):
            raise TokenUsed(f"attempt {ref.attempt} of command {ref.seq} of run {ref.run_id} already has its answer")
        self._looked.pop((ref.run_id, ref.seq), None)

    async def beat(self, ref: AttemptRef, details: Raw) -> None:
        """Send a heartbeat."""
        ref = await self._check(ref)
        await self.send(ref, Body(value=details, reason=BEAT), f"{HEARTBEAT}{new_message_id()}")

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
        rows = await self._recognised(ref)
        run = await self._holder(ref)
        if run.state in CLOSED:
            raise RunClosed(run.id, str(run.state))
        if run.run_id != ref.run_id:
            ref = replace(ref, run_id=run.run_id)
            rows = await store.attempts(ref.run_id, ref.seq)
        lost = LostAttempt(
            f"attempt {ref.attempt} of command {ref.seq} of run {run.id!r} has ended: it accepts no answer"
        )
        waits = any(row.ended_at is None and _is_of(row, ref) for row in rows)
        if not waits or any(row.number > ref.attempt for row in rows):
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

    async def _recognised(self, ref: AttemptRef) -> list[Attempt]:
        """All attempts of the call, one of which has handed out this token. Raises InvalidToken.

        The token leaves the attempt's code before its hash is durable. So an unknown token may become known while the
        attempt's code is at work.
        """
        for wait in (0.0, *_WAITS):
            if wait:
                await asyncio.sleep(wait)
            rows = await self._store.attempts(ref.run_id, ref.seq)
            if any(_is_of(row, ref) for row in rows):
                return rows
            run = await self._store.get_run(ref.run_id)
            if run.state in CLOSED or any(row.number > ref.attempt or _has_ended(row, ref) for row in rows):
                break
        raise InvalidToken(
            "no attempt of an activity has handed out this token. If it is `activity_info().token`, the worker died in "
            "that moment: the activity is called again, and hands out another one"
        )

    async def _holder(self, ref: AttemptRef) -> Run:
        """The run itself or, if it was tried again or reset after the call, the run that goes on with the call."""
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
        with suppress(UnknownRun):  # a deleted run
            while run.forked_from is not None:
                if run.forked_from == source:
                    return True
                run = await self._store.get_run(run.forked_from)
        return False


def _is_of(row: Attempt, ref: AttemptRef) -> bool:
    """Whether the attempt has handed out the token."""
    return row.number == ref.attempt and is_kept(row.tokens, ref.secret)


def _has_ended(row: Attempt, ref: AttemptRef) -> bool:
    """Whether the attempt's code has ended: it can no longer ask for a token."""
    return row.number == ref.attempt and (row.outside or row.ended_at is not None)


def _check_open(ref: AttemptRef, entry: Entry, lost: LostAttempt) -> None:
    """Raise where the entry ends the call."""
    body = decode_body(entry)
    if entry.kind in ACTIVITY_ANSWERS and body.seq == ref.seq:
        raise TokenUsed(str(lost)) if body.message_id == _message_id(ref) else lost
    if any(one.kind is CommandKind.CANCEL and one.target == ref.seq for one in body.commands):
        raise lost


def _message_id(ref: AttemptRef) -> str:
    """One for each attempt: it has one answer."""
    return f"answer:{ref.run_id}:{ref.seq}:{ref.attempt}"
