"""Attempts whose answer comes from outside, by token: a person, a webhook, another system.

Their code has ended without an answer. They hold no place, and their run needs no memory while it waits.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from msgspec import UNSET, Raw, json

from batuta.authoring.failures import to_failure
from batuta.clock import SECOND
from batuta.engine.calls import ANSWERED, Call, fatal, timeout
from batuta.engine.deadlines import ends_at, too_long
from batuta.engine.pausing import counted_from
from batuta.errors import InvalidInput
from batuta.failpoints import failpoint
from batuta.journal.entries import Body
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt, Message, MessageKind

if TYPE_CHECKING:
    from batuta.engine.executor import Executor
    from batuta.engine.live import LiveRun

log = logging.getLogger("batuta.engine")

BEAT = "heartbeat"
"""The reason of a message that is a sign of life."""


class Outside:
    """The calls of one worker's runs that wait for an answer from outside."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor

    # -- waiting

    def begin(self, call: Call) -> None:
        """The attempt's code has ended; its answer is to come."""
        failpoint("outside.begin")
        call.outside = True
        self._alive(call, self._executor.clock.now())
        call.run.record_attempt(call.row(outside=True, next_at=call.next_at))
        call.run.call_waits()

    def resume(self, call: Call, attempt: Attempt) -> None:
        """The same, found at the end of the tape."""
        call.outside = True
        call.started_at, call.next_at = attempt.started_at, attempt.next_at
        self.watch(call)

    def _alive(self, call: Call, at: int) -> None:
        """A sign of life: the time until the next one counts from here, or from the end of the pause it came in."""
        ends, silence = ends_at(call), call.pending.options.heartbeat
        if silence is not None:
            silent = counted_from(call.run, at) + int(silence * SECOND)
            ends = silent if ends is None else min(ends, silent)
        call.next_at = ends
        self.watch(call)

    def watch(self, call: Call) -> None:
        """Look when its time is over."""
        if call.waking is not None:
            call.waking.cancel()
        if call.next_at is not None:
            wait = (call.next_at - self._executor.clock.now()) / SECOND
            call.waking = self._executor.later(max(0.0, wait), self._check, call)

    def _check(self, call: Call) -> None:
        if call.over or call.next_at is None or call.run.leaving:
            return
        now = self._executor.clock.now()
        if now < call.next_at:
            call.waking = self._executor.later((call.next_at - now) / SECOND + 0.001, self._check, call)
            return
        end, silence = ends_at(call), call.pending.options.heartbeat
        silent = silence is not None and (end is None or now < end)
        failure = timeout(call, "heartbeat", "sent no heartbeat for", silence or 0) if silent else too_long(call, now)
        self._fail(call, failure)

    def _fail(self, call: Call, failure: Failure, message_id: str = "") -> None:
        call.outside, call.next_at = False, None
        self._executor.conclude(call, failure, message_id, outside=True)

    # -- answers

    def take(self, run: LiveRun, message: Message) -> None:
        """An answer or a heartbeat came. One for an attempt that is over is thrown away."""
        failpoint("outside.answer")
        body = json.decode(message.body, type=Body)
        call = self._waiting(run, body) if message.name == str(run.run_id) else None
        if call is None:
            log.warning("an answer for an attempt of run %s that is over is thrown away", run.identity.id)
            run.consume(message.message_id)
        elif body.reason == BEAT:
            self._beat(call, body, message)
        else:
            self._answer(call, body, message.message_id)

    def _waiting(self, run: LiveRun, body: Body) -> Call | None:
        """The call that the message is for, if that attempt is not over."""
        pending = run.machine.activities.get(body.seq)
        if pending is None:
            return None
        call = run.calls.get(body.seq)
        if call is None:  # this worker does not have the activity; an answer needs no code
            return Call(run, body.seq, pending, cast(Any, None), body.attempts, begun=body.attempts > 1)
        waits_for_next = call.next_at is not None and not call.outside and call.started_at
        return None if body.attempts < call.attempt + bool(waits_for_next) else call

    def _beat(self, call: Call, body: Body, message: Message) -> None:
        details = None if body.value is UNSET or bytes(body.value) == b"null" else bytes(body.value).decode()
        self._executor.beats.note(call, details)
        if call.outside:
            self._alive(call, message.at)
            call.run.record_attempt(call.row(outside=True, next_at=call.next_at))
        call.run.consume(message.message_id)
        call.run.call_waits()

    def _answer(self, call: Call, body: Body, message_id: str) -> None:
        if not call.outside:  # it came before the attempt's code had ended
            call = self._executor.supersede(call, ANSWERED)
        call.attempt = body.attempts
        failure = body.error if body.error is not UNSET else self._misfit(call, body)
        if failure is None:
            self._executor.deliver(call, body.value, message_id)
        else:
            self._fail(call, failure, message_id)

    def _misfit(self, call: Call, body: Body) -> Failure | None:
        activity = self._executor.activity(call.pending.name)
        try:
            if activity is not None:
                activity.codec.decode_result(body.value if body.value is not UNSET else Raw(b"null"))
        except InvalidInput as error:
            return fatal(to_failure(error))
        return None


def answered_early(run: LiveRun, messages: Sequence[Message], attempts: Sequence[Attempt]) -> set[int]:
    """Calls whose answer is in the inbox: they need not be executed again."""
    found = set()
    for message in messages:
        if message.kind is MessageKind.ACTIVITY and message.name == str(run.run_id):
            body = json.decode(message.body, type=Body)
            failures = sum(one.seq == body.seq and one.ended_at is not None for one in attempts)
            if body.reason != BEAT and body.attempts > failures:
                found.add(body.seq)
    return found
