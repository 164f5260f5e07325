"""Every error of Batuta, in one tree. Each says what, which and what next; its fields are for programs.

BatutaError
├── InvalidInput                a value, name or option that cannot be used; nothing was written
│   ├── NotSerialisable         a value has no JSON form, or does not come back the same
│   ├── TooLarge                a payload over the limit
│   ├── InvalidURL              a store address that names no store
│   ├── InvalidSchedule         a cron expression, time zone or policy that there is not
│   ├── InvalidToken            a text that names no attempt of an activity of this namespace
│   ├── MissingExtra            an optional dependency is not installed
│   ├── WrongTransaction        a transaction of the caller's in which nothing can be started
│   ├── InvalidFork             a point or an edit that does not fit the run
│   ├── MatchesEverything       a filter that restricts nothing: that must be said in so many words
│   ├── NotConfirmed            a command for many runs, without --yes
│   ├── DuplicateDefinition     two definitions of one name in one worker
│   └── DuplicateTimer          a timer id used twice in one run
├── UnknownRun / UnknownSchedule / UnknownWorkflow / UnknownActivity / UnknownJob / UnknownQueue / UnknownLetter
├── AlreadyStarted              the id is taken
├── QuotaExceeded               the namespace has started as much as it may, or the input is larger than it may be
├── ScheduleExists              the id of a schedule is taken
├── RunClosed                   the run has ended; the message was refused
├── NotParked                   the run goes on by itself; there is nothing to try again
├── RunOpen                     the run has not ended, or a child of it has not: it cannot be deleted
├── NothingMatches              no run is as the filter says
├── RunMoved                    the run is not any more as it was when it was looked at
├── LetterResolved              the dead letter was reprocessed or discarded before
├── TransactionFailed           the caller's own transaction had failed before
├── TransactionEnded            the transaction of an activity was ended before the activity was
├── RunNotCompleted             awaiting a result that will not come
│   ├── RunFailed · RunCancelled · RunTerminated · RunTimedOut
├── ActivityError               raised into workflow code
│   ├── ActivityFailed          the activity raised an error whose class is not known here
│   ├── ActivityTimeout
│   ├── ProcessDied             the process of an activity ended before it answered
│   └── Interrupted             a `once` activity was cut off and may or may not have happened
├── LostAttempt                 raised into an activity: nobody waits for this attempt any more
│   ├── ActivityCancelled       because its call or its run was cancelled
│   └── TokenUsed               because it was completed from outside before
├── UpdateRejected              the run's validator, or the lack of a handler, said no; it left no trace in the run
├── UpdateFailed                the handler of an accepted update raised
│   └── UpdateInterrupted       the run continued as new before the handler was done
├── UnknownQuery                the run answers no such query
├── QueryFailed                 a query could not be answered
├── NotPublished                the run has published no such value
├── NonRetryable                raised by an activity: do not try again
├── WorkflowBroken              a run is parked; it is not the caller's fault and not lost
│   ├── Nondeterministic · Forbidden · Spins · WaitsForNothing
├── PayloadSealed               a payload cannot be read: its key or codec is not here
│   └── PayloadDamaged          it was changed or moved, or was not encrypted and must be
├── StoreError
│   ├── StoreUnavailable (StoreFull) · OutcomeUnknown · BadData · StoreFailed · SchemaMismatch
├── ClientError                 a client was used in a way it cannot be
└── WorkerError                 a worker was used in a way it cannot be
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any


class BatutaError(Exception):
    """The root: `except BatutaError` catches all that Batuta raises."""


# -- what a caller gave


class InvalidInput(BatutaError, ValueError):
    """A value, name or option that cannot be used. Nothing was written."""


class NotSerialisable(InvalidInput):
    """A value has no JSON form."""


class TooLarge(InvalidInput):
    """A payload over the limit."""

    def __init__(
        self,
        what: str,
        size: int,
        limit: int,
        advice: str = "pass a reference to where the data lies, or raise BATUTA_MAX_PAYLOAD",
    ) -> None:
        super().__init__(f"{what} is {size:,} bytes of JSON, over the limit of {limit:,}: {advice}")
        self.what, self.size, self.limit = what, size, limit


class InvalidURL(InvalidInput):
    """A store address that names no store."""


class InvalidSchedule(InvalidInput):
    """A schedule that cannot be: its cron expression, time zone, policy or limits. Nothing was written."""


class InvalidToken(InvalidInput):
    """A text that names no attempt of an activity, or one of another namespace."""


class MissingExtra(InvalidInput):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}: an extra is needed that is not installed: pip install 'batuta[{extra}]'")
        self.extra = extra


class WrongTransaction(InvalidInput):
    """`transaction=` is nothing in which a run can be started: of another database or driver, or not begun."""


class InvalidFork(InvalidInput):
    """A point that the run's journal does not have, or an edit that does not fit what it is to take the place of."""


class DuplicateDefinition(InvalidInput):
    """Two definitions of one name in one worker."""


class DuplicateTimer(InvalidInput):
    """A timer id was used twice in one run."""

    def __init__(self, timer_id: str) -> None:
        super().__init__(f"timer {timer_id!r} was set before in this run: an id names one timer of a run")
        self.timer_id = timer_id


# -- what was asked for is not there, or there already


class UnknownRun(BatutaError, LookupError):
    """No run has this id."""

    def __init__(self, which: object, namespace: str = "") -> None:
        place = f" in namespace {namespace!r}" if namespace else ""
        super().__init__(f"no run {str(which)!r}{place}: check the id, and that this is the right database")
        self.which = which


class UnknownQueue(BatutaError, LookupError):
    """There is nothing in a queue of this name, nobody works on it, and nobody has set it up."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no queue {name!r}: `batuta queues list` shows those that there are")
        self.name = name


class UnknownSchedule(BatutaError, LookupError):
    """No schedule has this id."""

    def __init__(self, which: str, namespace: str = "") -> None:
        place = f" in namespace {namespace!r}" if namespace else ""
        super().__init__(f"no schedule {which!r}{place}: `batuta schedules list` shows those that there are")
        self.which = which


class ScheduleExists(BatutaError):
    """The id is taken by another schedule."""

    def __init__(self, which: str) -> None:
        super().__init__(f"there is a schedule {which!r}: give another id, or replace it")
        self.which = which


class UnknownWorkflow(BatutaError, LookupError):
    """No worker of the run's queue has its workflow: the run waits, and `describe` gives this as the reason."""

    def __init__(self, name: str, known: Iterable[str], version: str = "") -> None:
        have = ", ".join(sorted(known)) or "none"
        which = f"{name!r} version {version!r}" if version else f"{name!r}"
        super().__init__(
            f"no live worker of this queue has workflow {which} (they have: {have}): add it to worker(workflows=[...])"
        )
        self.name, self.version = name, version


class UnknownActivity(BatutaError, LookupError):
    """A workflow called an activity that its worker does not have."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        have = ", ".join(sorted(known)) or "none"
        super().__init__(f"activity {name!r} is not known here (known: {have}): add it to worker(activities=[...])")
        self.name = name


class UnknownJob(BatutaError, LookupError):
    """No worker of the run's queue has its job: the run waits, and `describe` gives this as the reason."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        have = ", ".join(sorted(known)) or "none"
        super().__init__(
            f"no live worker of this queue has job {name!r} (they have: {have}): add it to worker(jobs=[...])"
        )
        self.name = name


class AlreadyStarted(BatutaError):
    """The id is taken by another run."""

    def __init__(
        self,
        id: str,
        state: str,
        advice: str = "use another id, or start with if_exists='return' to get it (if_exists='restart' begins anew "
        "once it is closed)",
    ) -> None:
        super().__init__(f"a run with id {id!r} exists and is {state}: {advice}")
        self.id, self.state = id, state


class QuotaExceeded(BatutaError):
    """The namespace may not start this now. Nothing was written.

    `quota` is its name, `limit` what it allows, `used` what of that is taken (of payload_bytes: the size of the input).
    `retry_after`: seconds after which it may work; None: never, as it is.
    """

    def __init__(
        self, quota: str, namespace: str, limit: float, used: float, retry_after: float | None, message: str
    ) -> None:
        when = "" if retry_after is None else f": try again in {retry_after:.3g} s"
        super().__init__(f"quota {quota} of namespace {namespace!r} is exceeded: {message}{when}")
        self.quota, self.namespace, self.limit, self.used = quota, namespace, limit, used
        self.retry_after = retry_after


class RunClosed(BatutaError):
    """The run has ended: the message was refused, or its answer will not come."""

    def __init__(self, id: object, state: str, why: str = "it takes no more messages") -> None:
        super().__init__(f"run {str(id)!r} is {state}: {why}")
        self.id, self.state = id, state


class NotParked(BatutaError):
    """Only a run that is parked can be tried again; this one is open and goes on by itself."""

    def __init__(self, id: object, state: str) -> None:
        super().__init__(f"run {str(id)!r} is {state}: only a parked run (needs_code, poisoned) can be tried again")
        self.id, self.state = id, state


class RunOpen(BatutaError):
    """The run has not ended, or a child or its parent has not: it cannot be deleted. Nothing was."""

    def __init__(self, id: str) -> None:
        super().__init__(f"run {id!r} is open, or has an open child or parent: terminate that, or wait for its end")
        self.id = id


class NothingMatches(BatutaError, LookupError):
    """No run is as the filter says. Nothing was done."""


class MatchesEverything(InvalidInput):
    """The filter restricts nothing, and what was asked for would be done to every run. Nothing was done."""


class NotConfirmed(InvalidInput):
    """A command that would change many runs was given without --yes. Nothing was done."""


class RunMoved(BatutaError):
    """The run is not any more as it was when it was looked at. Nothing was written: look again."""

    def __init__(self, id: str, why: str) -> None:
        super().__init__(f"run {id!r} {why}: look at it again")
        self.id = id


class UnknownLetter(BatutaError, LookupError):
    """No run of that id is a dead letter."""

    def __init__(self, id: str) -> None:
        super().__init__(f"run {id!r} is no dead letter: `batuta letters list` shows those that are")
        self.id = id


class LetterResolved(BatutaError):
    """The dead letter was reprocessed or discarded before. Nothing was written."""

    def __init__(self, id: str, state: str) -> None:
        super().__init__(f"the dead letter of run {id!r} was {state} before: only open ones can be")
        self.id, self.state = id, state


class TransactionFailed(BatutaError):
    """The caller's own transaction had failed before: it can only be rolled back, and nothing was started in it."""


# -- a result that will not come


class TransactionEnded(BatutaError):
    """The transaction of an activity was ended before the activity was: by its own code, or by the database."""


class RunNotCompleted(BatutaError):
    """The run ended without a result. `__cause__` is the error it ended with, if any."""

    def __init__(self, id: str, state: str, message: str = "") -> None:
        super().__init__(f"run {id!r} {state.replace('_', ' ')}" + (f": {message}" if message else ""))
        self.id, self.state = id, state


class RunFailed(RunNotCompleted):
    """The workflow raised."""


class RunCancelled(RunNotCompleted):
    """The run was cancelled and let it happen."""


class RunTerminated(RunNotCompleted):
    """The run was ended from outside, without a word to its code."""


class RunTimedOut(RunNotCompleted):
    """The run or its chain was over its time."""


# -- messages to a run, and what is read from it


class UpdateRejected(BatutaError):
    """The update was refused before it reached the run's code: by its validator, for want of a handler, or because its
    arguments do not fit. It left no trace in the run. `__cause__` is what the validator raised."""

    def __init__(self, name: str, id: str, message: str) -> None:
        super().__init__(f"run {id!r} rejected update {name!r}: {message}")
        self.name, self.id = name, id


class UpdateFailed(BatutaError):
    """The handler of an accepted update raised; `__cause__` is its error. The run goes on."""

    def __init__(self, name: str, id: str, message: str) -> None:
        super().__init__(f"update {name!r} of run {id!r} failed: {message}")
        self.name, self.id = name, id


class UpdateInterrupted(UpdateFailed):
    """The run had accepted the update, and continued as new before its handler was done: it may have done a part of its
    work. It is not done again by itself, and its id names this try."""

    def __init__(self, name: str, id: str, message: str = "") -> None:
        super().__init__(
            name,
            id,
            message
            or "the run continued as new before it answered, and how far it came is not known: send it with another id "
            "if it may be done again (a workflow that calls `await handlers_done()` before `continue_as_new` answers "
            "all that it has accepted)",
        )


class UnknownQuery(BatutaError, LookupError):
    """The run answers no such query."""

    def __init__(self, name: str, id: str, known: Iterable[str]) -> None:
        have = ", ".join(sorted(known)) or "none"
        super().__init__(f"run {id!r} answers no query {name!r} (it answers: {have})")
        self.name, self.id = name, id


class QueryFailed(BatutaError):
    """A query could not be answered: its handler raised (`__cause__`), the run has not begun, or the code that is here
    does not replay it."""

    def __init__(self, name: str, id: str, message: str) -> None:
        super().__init__(f"query {name!r} of run {id!r} failed: {message}")
        self.name, self.id = name, id


class NotPublished(BatutaError, LookupError):
    """The run has published no such value, or not yet."""

    def __init__(self, name: str, id: str, known: Iterable[str]) -> None:
        have = ", ".join(sorted(known)) or "nothing"
        super().__init__(f"run {id!r} has not published {name!r} (it has published: {have})")
        self.name, self.id = name, id


# -- raised into workflow code


class ActivityError(BatutaError):
    """An activity did not give a result."""


class ActivityFailed(ActivityError):
    """The activity raised an error whose class is not known here; `type` and `message` are the original's."""

    def __init__(self, message: str, type: str = "", details: Any = None) -> None:  # noqa: A002 - its own word
        super().__init__(message)
        self.type, self.message, self.details = type, message, details


class ActivityTimeout(ActivityError, TimeoutError):
    """An attempt, or all of them together, took too long. `kind` says what: attempt, start, total or heartbeat."""

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.kind = kind


class ProcessDied(ActivityError):
    """The process of an activity ended before it answered: it crashed, or something killed it."""


class Interrupted(ActivityError):
    """A `once` activity was begun and its worker died: it may or may not have happened. Find out before going on."""


class NonRetryable(BatutaError):
    """Raised by an activity to say: do not try again."""


class LostAttempt(BatutaError):
    """Nobody waits for this attempt any more: it is over its time, its run has ended or runs elsewhere.

    Raised by `heartbeat()` in the activity, which should stop, and to whoever would complete the attempt from outside.
    """


class ActivityCancelled(LostAttempt):
    """Nobody waits for this attempt any more: its call or its run was cancelled."""


class TokenUsed(LostAttempt):
    """This attempt was completed, or failed, from outside before: a token serves once."""


# -- a run that is parked


class WorkflowBroken(BatutaError):
    """Workflow code did what cannot be replayed. The run is parked as needs_code, with this as its reason."""


class Nondeterministic(WorkflowBroken):
    """Replay issued other commands than the journal holds."""

    def __init__(self, where: str, expected: str, got: str) -> None:
        super().__init__(
            f"the code does not replay its journal at {where}\n  recorded: {expected}\n  today's code: {got}\n"
            f"deploy code that replays it: the run goes on by itself"
        )
        self.where, self.expected, self.got = where, expected, got


class Forbidden(WorkflowBroken):
    """Workflow code reached for threads, sockets, processes or a foreign future."""


class Spins(WorkflowBroken):
    """One turn ran too many callbacks without waiting for anything."""


class WaitsForNothing(WorkflowBroken):
    """The workflow waits, and nothing that could wake it is pending."""


# -- payloads that went through a codec


class PayloadSealed(BatutaError):
    """A payload cannot be read: it went through a codec, or was encrypted with a key, that is not here.

    A run of which this is true is parked, and taken up by a worker that can read it. Nothing of it is lost."""


class PayloadDamaged(PayloadSealed):
    """A payload is not what was written: changed, cut short, moved, or not encrypted where it must be."""


# -- the store


class StoreError(BatutaError):
    """Something about the database."""


class StoreUnavailable(StoreError):
    """Away or locked. Nothing was written; it may be tried again."""


class StoreFull(StoreUnavailable):
    """No room. Nothing was written; it may be tried again when there is."""


class OutcomeUnknown(StoreError):
    """The connection broke during a write, which may or may not be durable."""


class BadData(StoreError):
    """The database refused a value. Nothing was written."""


class StoreFailed(StoreError):
    """An fsync failed: nothing since the last good one can be trusted. Reopen and read again."""


class SchemaMismatch(StoreError):
    """The database has another schema than this code: migrate it, or upgrade Batuta."""


class ClientError(BatutaError):
    """A client was used in a way it cannot be: closed, of another process or event loop, or blocking inside one."""


class WorkerError(BatutaError):
    """A worker was used in a way it cannot be."""
