"""A run that an operator holds: what is in flight ends and is written, nothing new begins, and it leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from batuta.engine.waiting import pick_up
from batuta.journal.records import Message, MessageKind, Tape

if TYPE_CHECKING:
    from batuta.engine.live import LiveRun


def pause_of(messages: Sequence[Message]) -> Message | None:
    """What says that a run is to be held."""
    return next((message for message in messages if message.kind is MessageKind.PAUSE), None)


def hold_unread(run: LiveRun, tape: Tape, message: Message, now: int) -> None:
    """It was to be held by a worker that has died since: it need not be brought to life for that."""
    run.head = run.durable = tape.run.head
    run.pausing = message.name
    run.leave(now)


def news(run: LiveRun, messages: Sequence[Message]) -> None:
    """The inbox of a run that is to be held was read: goes on if the PAUSE was taken back, ends if it was told to."""
    if run.leaving or run.pausing is None:
        return
    if pause_of(messages) is not None:
        run.receive(messages)
    elif run.head == run.durable and not run.backlog:
        _go_on(run, messages)
    # Else it leaves when it can: the store sees that it is not to be held any more, and makes it due.


def counted_from(run: LiveRun, at: int) -> int:
    """From when a time that began at `at` counts: later by as long as the run was paused since. Two clocks are
    compared: what of a pause seems to lie before that does not count, and none takes time away."""
    return at + sum(max(0, (one.ended_at or 0) - max(one.started_at, at)) for one in run.pauses if one.number)


def _go_on(run: LiveRun, messages: Sequence[Message]) -> None:
    run.pausing = None
    run.executor.unshelve(run)
    pick_up(run, set(run.machine.activities), [], set())
    if messages and not run.leaving:
        run.receive(messages)
    run.wake(run.executor.clock.now())
