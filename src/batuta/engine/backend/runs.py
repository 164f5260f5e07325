"""Runs as a client asks for them: found, waited for, ended, tried again, read."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from msgspec import UNSET, json

from batuta.authoring.backend import (
    Attempts,
    AttemptView,
    Code,
    Description,
    Ending,
    JournalLine,
    Lines,
    RunPage,
    RunRef,
)
from batuta.authoring.client.forks import Edits
from batuta.authoring.history.diff import Diff
from batuta.authoring.history.timeline import Timeline
from batuta.clock import as_datetime
from batuta.engine.activities.external_completion import HURRY
from batuta.engine.backend.actor import Actor
from batuta.engine.backend.claimability import needs_worker, why_held, why_unclaimable
from batuta.engine.backend.follow_chain import closing_command, last_of_chain
from batuta.engine.backend.history import all_attempts, diff, list_waiting, timeline
from batuta.engine.backend.id_conflicts import check_code
from batuta.engine.forks.fork import ForkOperations
from batuta.engine.machine.row_values import read_memo, read_tags
from batuta.engine.run.inputs import CANCEL_AGAIN
from batuta.engine.worker.outside_closes import OutsideCloses, start_info
from batuta.engine.worker.waiters import Completion, Waiters
from batuta.errors import NotParked, PayloadDamaged, PayloadSealed, RunClosed, RunOpen, StoreUnavailable
from batuta.ids import RunId, new_message_id, trace_id_of_run
from batuta.journal.audit import Act, Verb
from batuta.journal.entries import Body, Command, CommandKind, decode_body
from batuta.journal.records import HEARTBEAT, PAUSES, Attempt, Message, MessageKind, Run, RunFilter
from batuta.journal.states import CLAIMABLE, CLOSED, OPEN, RunState
from batuta.journal.store import Store

_COMPLETED, _COMPLETE = RunState.COMPLETED, CommandKind.COMPLETE


_JOURNAL_PAGE = 10_000
"""Entries that are read at once."""


class NativeRuns:
    """Implements `authoring.backend.RunService` on a store. `home` is the loop of the client, once it is open."""

    def __init__(
        self,
        store: Store,
        actor: Actor,
        waiters: Waiters,
        forking: ForkOperations,
        home: Callable[[], asyncio.AbstractEventLoop | None],
        closes: OutsideCloses,
    ) -> None:
        self._store, self._actor, self._waiters, self._forking, self._home = store, actor, waiters, forking, home
        self._closes = closes
        self.count = store.count_runs
        self.count_states = store.count_states

    # -- results

    async def find(self, id: str, code: Code | None = None) -> RunRef:
        return _of_code(await self._store.get(id), code)

    async def find_run(self, run_id: RunId, code: Code | None = None) -> RunRef:
        return _of_code(await self._store.get_run(run_id), code)

    async def ending(self, ref: RunRef) -> Ending:
        local: Completion | None = ref.local
        if local is not None:
            if local.unknown:
                waiter = local.known(self._home() or asyncio.get_running_loop())
                try:
                    await waiter
                except BaseException:
                    local.give_up(waiter)
                    raise
            end = local.end
            if end is not None and end[0] is _COMPLETED and (outcome := end[1]) is not None:
                return Ending(ref.id, _COMPLETED, outcome.value if outcome.value is not UNSET else None)
        while True:
            ending = await self._ending_of(ref)
            if ending.state is RunState.COMPLETED:
                return ending
            last = await last_of_chain(self._store, ref.run_id)
            if last.run_id == ref.run_id:
                if ending.state is RunState.CONTINUED:
                    raise PayloadDamaged(f"run {ref.id!r} is {ending.state}, and no run follows it")
                return ending
            ref = RunRef(ref.id, last.run_id)

    async def _ending_of(self, ref: RunRef) -> Ending:
        """Of this one run, which may continue as another."""
        local: Completion | None = ref.local
        known = local.end if local is not None else None
        if known is None or known[1] is None:
            known = await self._waiters.wait(ref.run_id)
        if known is not None and known[1] is not None:
            return _ending(ref.id, known[0], known[1], "")
        run, last = await self._store.outcome(ref.run_id)
        return _ending(run.id, run.state, closing_command(run, last), run.reason)

    # -- ending runs from outside

    async def cancel(self, ref: RunRef, reason: str, *, again: bool) -> bool:
        # One name for all: asking twice, or repeating a call whose answer was lost, must not cancel the clean-up.
        message = Message(message_id=f"cancel:{ref.run_id}", kind=MessageKind.CANCEL, name=reason)
        if again:
            message.message_id, message.body = f"cancel:{new_message_id()}", CANCEL_AGAIN
        act = self._actor.act(Verb.CANCEL, reason, detail={"again": True} if again else None)
        if await self._store.send(ref.run_id, message, act):
            # Nothing of it need run, nor its queue go on.
            await self._closes.tell(await self._store.end_unbegun([ref.run_id], reason))
            return True
        run = await last_of_chain(self._store, ref.run_id)
        if run.state in CLOSED:
            raise RunClosed(run.id, str(run.state))
        if run.run_id == ref.run_id:
            # An earlier call may not have come so far.
            await self._closes.tell(await self._store.end_unbegun([run.run_id], reason))
            return False
        message.message_id = f"cancel:{run.run_id}"  # that one was asked, and continued as this one
        return await self._store.send(run.run_id, message, act)

    async def terminate(self, ref: RunRef, reason: str) -> None:
        act = self._actor.act(Verb.TERMINATE, reason)
        for _ in range(100):
            run = await last_of_chain(self._store, ref.run_id)
            if run.state in CLOSED and run.state is not RunState.CONTINUED:
                raise RunClosed(run.id, str(run.state))
            if closed := await self._store.terminate_runs([run.run_id], reason, act):
                await self._closes.tell(closed)
                return
        raise StoreUnavailable(f"run {ref.id!r} continued a hundred times while it was to be terminated: try again")

    async def retry(self, ref: RunRef, reason: str = "", detail: dict[str, Any] | None = None) -> RunRef:
        """`detail`: more for the audit log."""
        run = await last_of_chain(self._store, ref.run_id)
        if run.state in CLOSED:
            return ref_of(await self._forking.retry(run, reason, detail))
        act = self._actor.act(Verb.RETRY, reason, detail=detail)
        if not (await self._store.unpark(run.run_id, act) or await self._hurry(run.run_id, act)):
            raise NotParked(run.id, str((await self._store.get_run(run.run_id)).state))
        return ref_of(run)

    async def _hurry(self, run_id: RunId, act: Act) -> bool:
        """Have calls that wait for their next attempt begin it now. False when there are none."""
        run, now = await self._store.get_run(run_id), await self._store.now()
        waits = run.state in OPEN - {RunState.PAUSED} and any(
            one.ended_at is not None and one.next_at is not None and one.next_at > now
            for one in await self._store.attempts(run_id)
        )
        if not waits:
            return False
        message = Message(
            message_id=f"{HEARTBEAT}{new_message_id()}",
            kind=MessageKind.ACTIVITY,
            name=str(run_id),
            body=json.encode(Body(reason=HURRY)).decode(),
        )
        return await self._store.send(run_id, message, act)

    async def reset(self, ref: RunRef, to: int, edits: Edits, code: Code | None, reason: str) -> RunRef:
        return ref_of(await self._forking.reset(ref.run_id, to, edits, code, reason))

    async def fork(self, ref: RunRef, id: str, at: int | None, edits: Edits, code: Code | None, reason: str) -> RunRef:
        return ref_of(await self._forking.fork(ref, id, at, edits, code, reason))

    # -- one run

    async def pause(self, ref: RunRef, reason: str) -> bool:
        return await self._one(ref, lambda ids: self._store.pause_runs(ids, self._actor.act(Verb.PAUSE, reason)))

    async def resume(self, ref: RunRef, reason: str) -> bool:
        return await self._one(ref, lambda ids: self._store.resume_runs(ids, self._actor.act(Verb.RESUME, reason)))

    async def _one(self, ref: RunRef, verb: Callable[[list[RunId]], Awaitable[list[RunId]]]) -> bool:
        """Whether it changed anything. It may have continued as another run, also just now."""
        while True:
            run = await last_of_chain(self._store, ref.run_id)
            if run.state in CLOSED:
                raise RunClosed(run.id, str(run.state), "only open runs can be paused or resumed")
            if await verb([run.run_id]):
                return True
            if (await self._store.get_run(run.run_id)).state not in CLOSED:
                return False

    async def delete(self, ref: RunRef, reason: str) -> int:
        run = await self._store.get_run(ref.run_id)
        gone = await self._store.delete_runs([run.run_id], self._actor.act(Verb.DELETE, reason))
        if not gone:
            raise RunOpen(run.id)
        return len(gone)

    # -- reading

    async def describe(self, ref: RunRef) -> Description:
        run = await last_of_chain(self._store, ref.run_id)
        attempts = await self._store.attempts(run.run_id)
        described = _description(run, attempts)
        described.reason = await self._reason(run)
        described.trace_id = await self._trace_id(run)
        return described

    async def _trace_id(self, run: Run) -> str:
        try:
            start = await start_info(self._store, run)
        except PayloadSealed:
            start = None
        return trace_id_of_run("" if start is None else start.trace, run.chain_id)

    async def _reason(self, run: Run) -> str:
        """The run's own reason, and why no worker takes it."""
        if not needs_worker(run):
            return run.reason
        why = why_unclaimable(run, await self._store.workers()) or await self._why_held(run)
        return "; ".join(filter(None, (run.reason, why)))

    async def _why_held(self, run: Run) -> str:
        if run.state not in CLAIMABLE or run.wake_at is None or run.wake_at > await self._store.now():
            return ""
        return next((why_held(run, view) for view in await self._store.queues() if view.name == run.queue), "")

    async def attempts(self, ref: RunRef) -> Attempts:
        run = await last_of_chain(self._store, ref.run_id)
        try:
            return await all_attempts(self._store, run)
        except PayloadSealed:
            return _views(await self._store.attempts(run.run_id))

    async def timeline(self, ref: RunRef) -> Timeline:
        run = await self._store.get_run(ref.run_id)
        found = await timeline(self._store, run)
        found.reason = await self._reason(run)
        return found

    async def diff(self, left: RunRef | None, right: RunRef) -> Diff:
        return await diff(self._store, None if left is None else left.run_id, right.run_id)

    async def journal(self, ref: RunRef, after: int = -1, limit: int | None = None) -> Lines:
        lines: Lines = []
        most = _JOURNAL_PAGE if limit is None else limit
        while page := await self._store.journal(ref.run_id, lines[-1].ord if lines else after, most):
            lines += [
                JournalLine(ord=one.ord, kind=one.kind, at=as_datetime(one.at), body=decode_body(one)) for one in page
            ]
            if limit is not None:
                break
        if not lines:
            await self._store.get_run(ref.run_id)  # has it none, or is it not there?
        return lines

    async def list(self, where: RunFilter, cursor: str | None, limit: int, waiting_for: str | None = None) -> RunPage:
        if waiting_for is None:
            page = await self._store.list_runs(where, cursor, limit)
        else:
            page = await list_waiting(self._store, where, waiting_for, cursor, limit)
        return RunPage([_description(run, []) for run in page.runs], page.cursor)


def ref_of(run: Run, is_new: bool | None = None) -> RunRef:
    """Names a run that was read."""
    return RunRef(run.id, run.run_id, None, run.chain_id, is_new)


def _of_code(run: Run, code: Code | None) -> RunRef:
    """Raises WrongWorkflow."""
    if code is not None:
        check_code(run, code)
    return ref_of(run)


def _ending(id: str, state: RunState, outcome: Command | None, reason: str) -> Ending:
    ending = Ending(id, state, reason=reason)
    if outcome is not None and outcome.kind is _COMPLETE:
        ending.value = outcome.value if outcome.value is not UNSET else None
    elif outcome is not None and outcome.kind is CommandKind.FAIL:
        ending.error = outcome.error if outcome.error is not UNSET else None
    return ending


def _description(run: Run, attempts: Sequence[Attempt]) -> Description:
    return Description(
        id=run.id,
        run_id=run.run_id,
        workflow=run.name,
        kind=run.kind,
        state=run.state,
        reason=run.reason,
        queue=run.queue,
        priority=run.priority,
        entries=run.head + 1,
        worker=run.owner,
        created_at=as_datetime(run.created_at),
        closed_at=as_datetime(run.closed_at),
        wake_at=None if run.wake_at is None else as_datetime(run.wake_at),  # a list has many, and few have these
        deadline=None if run.deadline is None else as_datetime(run.deadline),
        deaths=run.deaths,
        key=run.flow_key,
        expires_at=None if run.expires_at is None else as_datetime(run.expires_at),
        paused_at=None if run.paused_at is None else as_datetime(run.paused_at),
        version=run.version,
        tags={} if run.tags == "{}" else read_tags(run.tags),
        memo=None if run.memo == "null" else read_memo(run.memo),
        parent=run.parent_run_id,
        forked_from=run.forked_from,
        forked_at=run.forked_at if run.forked_from is not None else None,
        attempts=_views(attempts) if attempts else [],
    )


def _views(attempts: Sequence[Attempt]) -> list[AttemptView]:
    return [
        AttemptView(
            seq=attempt.seq,
            number=attempt.number,
            started_at=as_datetime(attempt.started_at),
            ended_at=as_datetime(attempt.ended_at),
            next_at=as_datetime(attempt.next_at),
            error=attempt.error,
            details=attempt.details,
            outside=attempt.outside and attempt.ended_at is None,
        )
        for attempt in attempts
        if attempt.number and attempt.seq > PAUSES  # number 0: what the last heartbeat of a run before has said
    ]
