"""Attempts whose answer comes from outside, by token: a person, a webhook, another system.

Their code has ended without an answer. They hold no place, and their run needs no memory while it waits.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol, cast

from msgspec import UNSET, Raw, UnsetType, json

from batuta.authoring.activity.tokens import with_token
from batuta.authoring.definitions import Activity
from batuta.authoring.failures.conversion import to_failure
from batuta.clock import SECOND
from batuta.engine.activities.call import ANSWERED, Call, CallingRun, fatal
from batuta.engine.activities.heartbeats import Heartbeats
from batuta.errors import InvalidInput
from batuta.failpoints import failpoint
from batuta.ids import new_secret
from batuta.journal.entries import Body
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt, Message

log = logging.getLogger("batuta.engine")


BEAT = "heartbeat"
"""The reason of a message that is a sign of life."""
HURRY = "hurry"
"""Message id of a request to begin the waiting attempts of a run now."""


class Attempts(Protocol):
    """The part of the executor that completes attempts."""

    beats: Heartbeats

    def activity(self, name: str) -> Activity[..., Any] | None: ...
    def wake_in(self, wait: float, work: Callable[[Call], None], call: Call) -> None: ...
    def supersede(self, call: Call, why: str) -> Call: ...
    def try_again_in(self, wait: float, call: Call) -> None: ...
    def conclude(self, call: Call, failure: Failure, message_id: str = "", *, outside: bool = False) -> None: ...
    def deliver(self, call: Call, answer: Raw | UnsetType | Failure, message_id: str) -> None: ...


class ExternalCompletion:
    """The calls of one worker's runs that wait for an answer from outside."""

    def __init__(self, executor: Attempts) -> None:
        self._executor = executor
        self._asking = threading.Lock()

    # -- tokens

    def ask(self, call: Call) -> bytes:
        """The secret of the attempt's token: its code asks for it, in whatever thread. The hash is written with the
        next batch; an answer that comes sooner waits for that."""
        with self._asking:
            if call.secret:
                return call.secret
            call.secret = new_secret()
            call.tokens = with_token(call.tokens, call.secret)
        loop = self._executor.beats.loop
        if asyncio._get_running_loop() is loop:
            self._keep_token(call)
        else:
            with suppress(RuntimeError):  # the worker's loop is closed, and so the attempt is lost
                loop.call_soon_threadsafe(self._keep_token, call)
        return call.secret

    def _keep_token(self, call: Call) -> None:
        if not call.over and (call.outside or call.next_at is None):
            call.noted = True
            call.run.record_attempt(call.row(outside=call.outside, next_at=call.next_at))

    # -- waiting

    def begin(self, call: Call) -> None:
        """The attempt's code has ended; its answer is to come."""
        failpoint("outside.begin")
        call.outside = True
        self._alive(call, call.run.now())
        call.run.record_attempt(call.row(outside=True, next_at=call.next_at))
        call.run.call_waits()

    def resume(self, call: Call, attempt: Attempt) -> None:
        """The same, found at the end of the journal."""
        call.outside = True
        call.started_at, call.next_at, call.tokens = attempt.started_at, attempt.next_at, attempt.tokens
        self.watch(call)

    def _alive(self, call: Call, at: int) -> None:
        """A sign of life: the time until the next one counts from here, or from the end of the pause it came in."""
        ends, silence = call.ends_at(), call.pending.options.heartbeat
        if silence is not None:
            silent = call.run.counted_from(at) + int(silence * SECOND)
            ends = silent if ends is None else min(ends, silent)
        call.next_at = ends
        self.watch(call)

    def watch(self, call: Call) -> None:
        """Look when its time is over."""
        if call.next_at is not None:
            wait = (call.next_at - call.run.now()) / SECOND
            self._executor.wake_in(max(0.0, wait), self._check, call)
        elif call.waking is not None:
            call.waking.cancel()

    def _check(self, call: Call) -> None:
        if call.over or call.next_at is None or call.run.leaving:
            return
        now = call.run.now()
        if now < call.next_at:
            self._executor.wake_in((call.next_at - now) / SECOND + 0.001, self._check, call)
            return
        end, silence = call.ends_at(), call.pending.options.heartbeat
        silent = silence is not None and (end is None or now < end)
        failure = call.silent(silence or 0) if silent else call.too_long(now)
        self._fail(call, failure)

    def _fail(self, call: Call, failure: Failure, message_id: str = "") -> None:
        call.outside, call.next_at = False, None
        self._executor.conclude(call, failure, message_id, outside=True)

    # -- answers

    def take(self, run: CallingRun, message: Message) -> None:
        """An answer or a heartbeat came, or word not to wait. An answer for an attempt that is over is thrown away."""
        failpoint("outside.answer")
        body = json.decode(message.body, type=Body)
        if body.reason == HURRY:
            self._hurry(run)
            run.consume(message.message_id)
            return
        call = self._waiting(run, body) if message.name == str(run.run_id) else None
        if call is None:
            log.warning(
                "an answer for an attempt of run %s that is over is thrown away",
                run.identity.id,
                extra=run.machine.logged,
            )
            run.consume(message.message_id)
        elif body.reason == BEAT:
            self._beat(call, body, message)
        else:
            self._answer(call, body, message.message_id)

    def _hurry(self, run: CallingRun) -> None:
        """Retries of its calls are due now."""
        for call in run.calls.values():
            if call.next_at is not None and not call.outside and not call.over:
                call.next_at = min(call.next_at, run.now())
                self._executor.try_again_in(0.0, call)

    def _waiting(self, run: CallingRun, body: Body) -> Call | None:
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
        self._executor.beats.tell(call)
        if call.outside:
            self._alive(call, min(message.at + call.run.ahead, call.run.now()))
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
