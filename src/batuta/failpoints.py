"""Named points at which a test can kill, stop, delay or fail this process. Inert unless BATUTA_FAILPOINT is set.

    BATUTA_FAILPOINT=commit.after:3:kill   (name : which passage, from 1 : kill | stop | raise | sleep)

Several are separated by commas. `BATUTA_FAILPOINT_COUNTS=path` appends each passage's name to a file, so that a dry
run enumerates what a sweep must cover.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable

SITES: dict[str, str] = {
    "start.before_commit": "the first turn has run, nothing is written",
    "start.after_commit": "a new run is durable, its starter does not know yet",
    "enqueue.before": "a batch of jobs is encoded, nothing is written",
    "enqueue.after": "a batch of jobs is durable, its caller does not know yet",
    "claim.before": "about to claim",
    "claim.after": "runs are owned, the worker does not know yet",
    "claim.loaded": "journals are in memory, nothing is replayed",
    "replay.before": "about to rebuild a run",
    "replay.after": "a run is rebuilt, nothing pending has been started",
    "turn.before": "an input has arrived, its turn has not run",
    "turn.after": "the turn has run, its entry is not queued",
    "commit.queued": "an entry waits for the committer",
    "commit.before": "a batch is built, nothing is sent",
    "commit.inside": "within the transaction, before it commits (SQLite)",
    "commit.after": "a batch is durable, its runs do not know yet",
    "commit.effects": "a batch is durable and its effects are going out",
    "activity.before": "an activity is about to be called",
    "activity.after": "an activity has returned, nothing is recorded",
    "transaction.begun": "an activity's transaction is open, its code has not begun",
    "transaction.turned": "an activity and the turn of its answer have run, its entry is not in the transaction",
    "transaction.written": "its entry is in the transaction, which is not committed",
    "transaction.committed": "the transaction is durable, the store does not know yet",
    "transaction.durable": "the transaction is durable, its effects have not gone out",
    "activity.failed": "an attempt has failed, nothing is recorded",
    "activity.retry": "a retry is due",
    "outside.begin": "an activity has ended without an answer, nothing is recorded",
    "outside.answer": "an answer from outside is in memory, nothing is recorded",
    "checkpoint.before": "a checkpoint is in memory, nothing is written",
    "checkpoint.after": "a checkpoint is durable, the code that saved it does not know yet",
    "timer.fired": "a timer is due, its turn has not run",
    "evict.before": "a run is about to leave memory",
    "evict.after": "a run has left memory",
    "message.read": "unread messages are in memory, none is consumed",
    "close.durable": "a run is closed, its waiters do not know yet",
    "lease.before_beat": "about to renew the lease",
    "lease.after_beat": "the lease is renewed, its reply is not processed",
    "recover.before": "about to release a dead worker's runs",
    "recover.after": "a dead worker's runs are released",
    "schedule.before_fire": "schedules are due and decided on, nothing is written",
    "schedule.after_fire": "slots have their runs, the worker does not know yet",
    "reprocess.before": "the forks of a page of dead letters are planned, nothing is written",
    "reprocess.after": "they are durable, its caller does not know yet",
    "fork.before": "a run is read and its fork planned, nothing is written",
    "fork.inside": "within the transaction of a fork, before it commits (SQLite)",
    "fork.after": "a fork is durable, its caller does not know yet",
    "idempotency.begun": "the key of a request is locked, its work has not begun",
    "idempotency.done": "the work of a request is done, its answer is not kept",
    "idempotency.kept": "the answer of a request is kept, its caller does not know yet",
    "stop.begin": "a graceful stop has begun",
    "stop.released": "idle runs are released, the worker is still registered",
}
"""Every site, with the state of the world when it is passed."""


class InjectedFault(RuntimeError):
    """Raised by a failpoint with action `raise`."""


class _Armed:
    def __init__(self, text: str, counts: str | None) -> None:
        self.plan: dict[tuple[str, int], str] = {}
        for part in filter(None, text.split(",")):
            name, nth, action = _read(part.strip())
            if name not in SITES:
                raise ValueError(f"BATUTA_FAILPOINT names {name!r}, which is none of: {', '.join(SITES)}")
            self.plan[name, nth] = action
        self.passed: dict[str, int] = {}
        self.counts = os.open(counts, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600) if counts else None

    def pass_by(self, name: str) -> None:
        nth = self.passed[name] = self.passed.get(name, 0) + 1
        if self.counts is not None:
            os.write(self.counts, f"{name}\n".encode())
        action = self.plan.get((name, nth))
        if action is not None:
            act(action, name)


def _read(part: str) -> tuple[str, int, str]:
    """One `name:nth:action`. What could never happen is refused here: a test that waits for it would prove nothing."""
    found = re.fullmatch(r"([^:]*):([1-9][0-9]*):(kill|stop|raise|sleep(?:=[0-9.]+)?)", part)
    if found is None:
        raise ValueError(
            f"BATUTA_FAILPOINT {part!r} is not name:nth:action; actions are kill, stop, raise, sleep[=SECONDS]"
        )
    return found[1], int(found[2]), found[3]


def act(action: str, name: str) -> None:
    """Perform the action of a failpoint: kill, stop, raise or sleep (`sleep` or `sleep=SECONDS`)."""
    match action.partition("="):
        case ("kill", _, _):
            os.kill(os.getpid(), signal.SIGKILL)
        case ("stop", _, _):
            os.kill(os.getpid(), signal.SIGSTOP)
        case ("raise", _, _):
            raise InjectedFault(f"failpoint {name}")
        case ("sleep", _, seconds):
            time.sleep(float(seconds or 1))
        case _:
            raise ValueError(f"failpoint action {action!r} is none of kill, stop, raise, sleep")


armed: _Armed | None = None


def arm(text: str = "", counts: str | None = None) -> None:
    """Arm by hand, as the environment variable does at import. Empty text and no counts disarm."""
    global armed  # noqa: PLW0603 - a process has one set of failpoints
    armed = _Armed(text, counts) if text or counts else None


class _Observed(_Armed):
    def __init__(self, observer: Callable[[str], None]) -> None:
        super().__init__("", None)
        self._observer = observer

    def pass_by(self, name: str) -> None:
        self._observer(name)


def observe(observer: Callable[[str], None]) -> None:
    """Have the observer called with the name of every site that is passed; it may raise. `arm()` ends it."""
    global armed  # noqa: PLW0603 - a process has one set of failpoints
    armed = _Observed(observer)


def failpoint(name: str) -> None:
    """Pass a named site. Costs a comparison when nothing is armed."""
    if armed is not None:
        armed.pass_by(name)


arm(os.environ.get("BATUTA_FAILPOINT", ""), os.environ.get("BATUTA_FAILPOINT_COUNTS"))
