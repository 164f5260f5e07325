"""Heartbeats of attempts: taken in whatever thread, written now and then. Checkpoints are written at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from batuta.engine.activities.call import LEASE_OVER, Call, HeartbeatState
from batuta.errors import LostAttempt
from batuta.failpoints import failpoint
from batuta.serde import encode


class Heartbeats:
    """All of one worker's."""

    def __init__(self, may_act: Callable[[], bool], limit: int) -> None:
        self._may_act, self._limit = may_act, limit
        self.loop: asyncio.AbstractEventLoop
        self._on_beats: Callable[[Call, int], None] | None = None

    def report_to(self, on_beats: Callable[[Call, int], None] | None) -> None:
        """Tell it how many came, on the event loop. None: no middleware listens."""
        self._on_beats = on_beats

    def open(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def take(self, call: Call, details: Any) -> None:
        """The attempt's own code sent one. Raises LostAttempt when its answer is not wanted any more."""
        self._check(call)
        text = None if details is None else encode(details, "the details of a heartbeat", self._limit).decode()
        self.note(call, text)

    def _check(self, call: Call) -> None:
        if call.over:
            raise call.complaint()
        if not self._may_act():
            call.lost = LEASE_OVER  # not `over`: if the lease is renewed, the run is still ours
            raise call.complaint()

    def note(self, call: Call, details: str | None) -> HeartbeatState:
        """The attempt is alive. `details` are JSON."""
        beats = call.beats = call.beats or HeartbeatState()
        beats.at = call.run.now()
        beats.untold += 1
        if details is not None:
            beats.details, beats.unwritten = details, True
        return beats

    def tell(self, call: Call) -> None:
        """Have an event sent of those that came since the last one."""
        beats = call.beats
        if self._on_beats is not None and beats is not None and beats.untold:
            count, beats.untold = beats.untold, 0
            self._on_beats(call, count)

    def write(self, call: Call) -> bool:
        """Have the last details and progress written with the next batch, if they are not. Whether there was
        anything."""
        beats = call.beats
        if beats is None or call.over:
            return False
        if beats.progress is not None and call.run.is_call:
            call.run.say(beats.progress)
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
        beats = self.note(call, text)
        beats.unwritten, call.noted = False, True
        beats.saving.append(future)
        failpoint("checkpoint.before")
        call.run.record_attempt(call.row(), lambda: self._saved(beats, future))

    def _saved(self, beats: HeartbeatState, future: Future[None]) -> None:
        failpoint("checkpoint.after")
        if future in beats.saving:
            beats.saving.remove(future)
        if not future.done():
            future.set_result(None)

    def progress(self, call: Call, value: Any) -> None:
        """It said how far it is. Raises LostAttempt when its answer is not wanted any more."""
        self._check(call)
        self.note_progress(call, encode(value, "the progress of a job", self._limit).decode())

    def note_progress(self, call: Call, text: str) -> None:
        self.note(call, None).progress = text

    def lose(self, call: Call) -> None:
        """The attempt's answer is not wanted any more: its code must not wait for us either."""
        if call.beats is None:
            return
        waiting, call.beats.saving = call.beats.saving, []
        for future in waiting:
            if not future.done():
                future.set_exception(call.complaint())

    def finish(self, call: Call) -> None:
        """The attempt's code has ended: what it said last goes with the answer."""
        self.tell(call)
        if call.beats is not None:
            if call.beats.progress is not None and call.run.is_call and not call.over:
                call.run.say_last(call.beats.progress)
                call.beats.progress = None
            self.lose(call)
