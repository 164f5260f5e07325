"""Heartbeats of attempts: taken in whatever thread, written now and then. Checkpoints are written at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, cast

from batuta.engine.calls import LEASE_OVER, Beats, Call
from batuta.engine.dbclock import DatabaseClock
from batuta.errors import LostAttempt
from batuta.failpoints import failpoint
from batuta.serde import encode

if TYPE_CHECKING:
    from batuta.engine.jobs import CallRun


class Heartbeats:
    """All of one worker's."""

    def __init__(self, clock: DatabaseClock, may_act: Callable[[], bool], limit: int) -> None:
        self._clock, self._may_act, self._limit = clock, may_act, limit
        self.loop: asyncio.AbstractEventLoop

    def take(self, call: Call, details: Any) -> None:
        """One came, from the attempt's own code. Raises LostAttempt when nobody waits for the attempt."""
        self._check(call)
        text = None if details is None else encode(details, "the details of a heartbeat", self._limit).decode()
        self.note(call, text)

    def _check(self, call: Call) -> None:
        if call.over:
            raise call.complaint()
        if not self._may_act():
            call.lost = LEASE_OVER  # not `over`: if the lease is renewed, the run is still ours
            raise call.complaint()

    def note(self, call: Call, details: str | None) -> None:
        """The attempt is alive. `details` are JSON."""
        beats = call.beats = call.beats or Beats()
        beats.at = self._clock.now()
        if details is not None:
            beats.details, beats.unwritten = details, True

    def write(self, call: Call) -> bool:
        """Have the last details and progress written with the next batch, if they are not. Whether there was
        anything."""
        beats = call.beats
        if beats is None or call.over:
            return False
        if beats.progress is not None and call.run.is_call:
            cast("CallRun", call.run).say(beats.progress)
            beats.progress = None
        if not beats.unwritten:
            return False
        beats.unwritten = False
        call.noted = True
        call.run.record_attempt(call.row())
        return True

    # -- checkpoints and progress

    def checkpoint(self, call: Call, state: Any) -> Future[None]:
        """Have it written. The future is done when it is durable."""
        self._check(call)
        return self.save(call, encode(state, "the state of a checkpoint", self._limit).decode())

    def save(self, call: Call, text: str) -> Future[None]:
        """The same, of JSON. From any thread."""
        future: Future[None] = Future()
        if asyncio._get_running_loop() is self.loop:
            self._save(call, text, future)
        else:
            try:
                self.loop.call_soon_threadsafe(self._save, call, text, future)
            except RuntimeError:  # the worker's loop is closed
                raise LostAttempt(f"the worker of activity {call.pending.name!r} has stopped") from None
        return future

    def _save(self, call: Call, text: str, future: Future[None]) -> None:
        if call.over or call.run.leaving:
            future.set_exception(call.complaint())
            return
        self.note(call, text)
        beats = cast(Beats, call.beats)
        beats.unwritten, call.noted = False, True
        beats.saving.append(future)
        failpoint("checkpoint.before")
        call.run.record_attempt(call.row(), lambda: self._saved(beats, future))

    def _saved(self, beats: Beats, future: Future[None]) -> None:
        failpoint("checkpoint.after")
        if future in beats.saving:
            beats.saving.remove(future)
        if not future.done():
            future.set_result(None)

    def progress(self, call: Call, value: Any) -> None:
        """It said how far it is. Raises LostAttempt when nobody waits for the attempt."""
        self._check(call)
        self.note_progress(call, encode(value, "the progress of a job", self._limit).decode())

    def note_progress(self, call: Call, text: str) -> None:
        self.note(call, None)
        cast(Beats, call.beats).progress = text

    def lose(self, call: Call) -> None:
        """Nobody waits for the attempt any more: nor must its code wait for us."""
        if call.beats is None:
            return
        waiting, call.beats.saving = call.beats.saving, []
        for future in waiting:
            if not future.done():
                future.set_exception(call.complaint())

    def finish(self, call: Call) -> None:
        """The attempt's code has ended: what it said last goes with the answer."""
        if call.beats is not None:
            if call.beats.progress is not None and call.run.is_call and not call.over:
                cast("CallRun", call.run).say_last(call.beats.progress)
                call.beats.progress = None
            self.lose(call)
