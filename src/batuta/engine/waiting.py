"""What a run that does nothing waits for, and how long it should stay in memory for that."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from batuta.clock import SECOND
from batuta.engine.routes import next_check
from batuta.journal.entries import EntryKind
from batuta.journal.records import Attempt

if TYPE_CHECKING:
    from batuta.engine.host import Host
    from batuta.engine.live import LiveRun

_TALK = (EntryKind.SIGNAL, EntryKind.UPDATE, EntryKind.ACCEPTED, EntryKind.CHILD_DONE, EntryKind.CHILD_FAILED)
_TALK_SECONDS = 2


def only_waits(run: LiveRun) -> bool:
    """Whether every activity waits for its next try, or for an answer from outside: none needs memory for that."""
    return run.calls.keys() == run.machine.activities.keys() and all(call.idle for call in run.calls.values())


def is_at_work(run: LiveRun) -> bool:
    """Whether an attempt is in flight. One that waits for a place can do so elsewhere."""
    return any(not (call.idle or call.queued) for call in run.calls.values())


def next_wake(run: LiveRun) -> int | None:
    """When something is due in a run that only waits."""
    times = [call.next_at for call in run.calls.values() if call.next_at is not None]
    times += [timer[0]] if (timer := run.machine.next_timer()) is not None else []
    times += [run.deadline] if run.deadline is not None else []
    if run.machine.kin is not None and (check := next_check(run.machine.kin)) is not None:
        times.append(check)
    return min(times, default=None)


def stays_until(run: LiveRun, host: Host, keep: int) -> int:
    """A run that hears from others is kept for a while after each turn: it would be read again for each word."""
    kin, at = run.machine.kin, run.machine.at
    if kin is not None and kin.awaits_word():  # the store's word is on its way
        return host.clock.latest() + max(keep, SECOND)
    if kin is not None and (kin.children or kin.routed):
        until = at + keep
    elif run.last in _TALK:
        until = at + min(keep, _TALK_SECONDS * SECOND)
    else:
        return 0
    return until if host.may_linger(run) else 0


def is_owed(run: LiveRun, backlog: Collection[object]) -> bool:
    """Whether an input is under way that only the next owner can bring again: the run must be due for that."""
    return bool(backlog) or (run.machine.kin is not None and run.machine.kin.awaits_word())


def pick_up(run: LiveRun, pending: set[int], attempts: Sequence[Attempt], answered: set[int]) -> None:
    """Go on with calls that stood still, or were not begun, because the run was closing."""
    if run.leaving:
        return
    for seq in sorted(pending & run.machine.activities.keys() - run.lacking.keys() - answered):
        if seq not in run.calls:
            run.executor.resume(run, seq, [a for a in attempts if a.seq == seq])
    run.executor.remind(run)


def leave_if_all_wait(run: LiveRun, host: Host) -> bool:
    """Whether it leaves memory, because every activity waits, and for long."""
    if run.reading or not only_waits(run):
        return False
    now, keep = host.clock.now(), int(host.settings.keep_in_memory * SECOND)
    when, stays = next_wake(run), stays_until(run, host, keep)
    if stays > now:
        host.arm(run, stays)
    elif when is None or when > now + keep:
        run.leave(when)
    return run.leaving
