"""Every error of Batuta, in one tree. Each says what, which and what next; its fields are for programs.

BatutaError
├── InvalidInput                an invalid value, name or option; nothing was written
│   ├── NotSerialisable         a value has no JSON form, or does not come back the same
│   ├── TooLarge                a payload, reason or note over the limit
│   ├── InvalidURL              a store address that names no store
│   ├── InvalidSchedule         an unknown cron expression, time zone or policy
│   ├── InvalidToken            a text that no attempt of this namespace has handed out
│   ├── MissingExtra            an optional dependency is not installed
│   ├── WrongTransaction        a caller's transaction that Batuta cannot use
│   ├── InvalidFork             a point or an edit that does not fit the run
│   ├── MatchesEverything       no filter: acting on every run must be explicit
│   ├── NotConfirmed            a command for many runs, without --yes
│   ├── DuplicateDefinition     two definitions of one name in one worker
│   └── DuplicateTimer          a timer id used twice in one run
├── UnknownRun / UnknownSchedule / UnknownWorkflow / UnknownActivity / UnknownJob / UnknownQueue / UnknownLetter
├── UnknownApiKey               no key of the server has this id
├── IdempotencyKeyReused        the key came before with another request
├── IdempotencyInProgress       the request of this key is under way
├── AlreadyStarted              the id is taken
├── WrongWorkflow               the id is that of a run of another workflow or job
├── GateRefused                 a gate did not let a call in, and the call does not wait
│   ├── BreakerOpen             the circuit breaker of a partner is open
│   └── LimitReached            a limit towards a partner is used up
├── GateFailed                  a gate raised an error, or answered what it must not
├── UnknownPartner              no breaker or limit has this name
├── UnknownEndpoint             no webhook endpoint has this id
├── DamagedPartner              what the store keeps of a breaker or limit cannot be read
├── QuotaExceeded               the namespace has started as much as it may, or too many messages wait for a run
├── ScheduleExists              the id of a schedule is taken
├── RunClosed                   the run has ended; the message was refused
├── NotParked                   no attempt of the run waits, nor is it parked
├── RunOpen                     the run or a child of it is open: it cannot be deleted
├── NothingMatches              no run matches the filter
├── RunMoved                    the run changed since it was read
├── LetterResolved              the dead letter was already reprocessed or discarded
├── TransactionFailed           the caller's own transaction had failed before
├── TransactionEnded            the transaction of an activity ended before the activity
├── RunNotCompleted             the run ended without a result
│   ├── RunFailed · RunCancelled · RunTerminated · RunTimedOut
├── ActivityError               raised into workflow code
│   ├── ActivityFailed          the activity raised an error whose class its worker did not know
│   ├── ActivityTimeout
│   ├── ProcessDied             the process of an activity ended before it answered
│   └── Interrupted             a `once` activity was interrupted and may or may not have happened
├── LostAttempt                 raised into an activity: this attempt no longer counts
│   ├── ActivityCancelled       because its call or its run was cancelled
│   └── TokenUsed               because it was already completed from outside
├── CompensationFailed          a compensation of a saga failed for good, and its run is a dead letter
├── UpdateRejected              the validator refused, or there is no handler; it left no trace
├── UpdateFailed                the handler of an accepted update raised
│   └── UpdateInterrupted       the run continued as new before the handler was done
├── UnknownQuery                the run answers no such query
├── QueryFailed                 a query could not be answered
├── NotPublished                the run has published no such value
├── AddressRefused              a host that may not be called; trying again does not help
├── PartnerUnreachable          a host that could not be reached in time; trying again may help
├── ResponseTooLarge            an answer over the limit
├── InvalidSignature            an incoming webhook that its sender did not sign
├── NonRetryable                raised by an activity: do not try again
├── RetryLater                  raised by an activity: try again after a number of seconds
│   └── WebhookNotAccepted      the receiver of a webhook answered with another status than 2xx
├── WorkflowBroken              a run is parked; it is not the caller's fault and not lost
│   ├── Nondeterministic · Forbidden · Spins · WaitsForNothing · ErrorNotLoaded
├── PayloadSealed               a payload cannot be read: this process lacks its key or codec
│   └── PayloadDamaged          it was changed or moved, or was not encrypted and must be
├── StoreError
│   ├── StoreUnavailable (StoreFull) · OutcomeUnknown · BadData (PayloadRefused) · StoreFailed · SchemaMismatch
│   └── AuditKeyMissing
├── ClientError                 a client was used in the wrong way
└── WorkerError                 a worker was used in the wrong way
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from batuta.durations import Duration, human_duration, in_seconds

LONGEST_WORDS = 16_000
"""Characters of an error's message that are kept."""


def cut(text: str, most: int = LONGEST_WORDS) -> str:
    """The text, or its beginning and how much is missing."""
    left = len(text) - most
    return text if left <= 0 else f"{text[:most]}... ({left:,} more characters were cut)"


def words_of(error: BaseException, most: int = LONGEST_WORDS) -> str:
    """The message of an error, cut if it is long. Never fails, whatever the error's class does."""
    try:
        return cut(str(error), most)
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - a `__str__` of the user's own
        return f"<{type(error).__qualname__} without a readable message>"


def told(error: BaseException) -> str:
    """Its class and message."""
    return f"{type(error).__qualname__}: {words_of(error)}"


class BatutaError(Exception):
    """The root: `except BatutaError` catches all that Batuta raises."""


# -- invalid input


class InvalidInput(BatutaError, ValueError):
    """A value, name or option that cannot be used. Nothing was written."""


class NotSerialisable(InvalidInput):
    """A value has no JSON form."""


class TooLarge(InvalidInput):
    """A payload, or a text such as a reason, over the limit."""

    def __init__(
        self,
        what: str,
        size: int,
        limit: int,
        advice: str = "pass a reference to where the data lies, or raise BATUTA_MAX_PAYLOAD",
        unit: str = "bytes of JSON",
    ) -> None:
        super().__init__(f"{what} is {size:,} {unit}, over the limit of {limit:,}: {advice}")
        self.what, self.size, self.limit = what, size, limit


class InvalidURL(InvalidInput):
    """A store address that names no store."""


class InvalidSchedule(InvalidInput):
    """A schedule that cannot be: its cron expression, time zone, policy or limits. Nothing was written."""


class InvalidToken(InvalidInput):
    """The text is not a token, or no attempt of an activity of this namespace has handed it out."""


class MissingExtra(InvalidInput):
    """An optional dependency is not installed."""

    def __init__(self, what: str, extra: str) -> None:
        super().__init__(f"{what}: an extra is needed that is not installed: pip install 'batuta[{extra}]'")
        self.extra = extra


class WrongTransaction(InvalidInput):
    """`transaction=` is nothing in which a run can be started: of another database or driver, or not begun."""


class InvalidFork(InvalidInput):
    """The run's journal does not have the point, or an edit does not fit the call that it replaces."""


class DuplicateDefinition(InvalidInput):
    """Two definitions of one name in one worker."""


class DuplicateTimer(InvalidInput):
    """A timer id was used twice in one run."""

    def __init__(self, timer_id: str) -> None:
        super().__init__(f"timer {timer_id!r} was set before in this run: an id names one timer of a run")
        self.timer_id = timer_id


# -- unknown or existing things


class UnknownRun(BatutaError, LookupError):
    """No run has this id."""

    def __init__(self, which: object, namespace: str = "") -> None:
        place = f" in namespace {namespace!r}" if namespace else ""
        super().__init__(f"no run {str(which)!r}{place}: check the id, and that this is the right database")
        self.which = which


class UnknownQueue(BatutaError, LookupError):
    """The queue of this name holds no runs, has no worker and no settings."""

    def __init__(self, name: str) -> None:
        super().__init__(f"no queue {name!r}: `batuta queues list` shows all queues")
        self.name = name


class UnknownSchedule(BatutaError, LookupError):
    """No schedule has this id."""

    def __init__(self, which: str, namespace: str = "") -> None:
        place = f" in namespace {namespace!r}" if namespace else ""
        super().__init__(f"no schedule {which!r}{place}: `batuta schedules list` shows all schedules")
        self.which = which


class UnknownFlow(BatutaError, LookupError):
    """No flow has this id."""

    def __init__(self, which: object) -> None:
        super().__init__(f"no flow {str(which)!r} in this namespace: GET /api/workflows lists all flows")
        self.which = which


class UnknownEvent(BatutaError, LookupError):
    """No event has this id."""

    def __init__(self, which: object) -> None:
        super().__init__(f"no event {str(which)!r} in this namespace: GET /api/events lists all events")
        self.which = which


class FlowConflict(BatutaError):
    """The flow is not in the state that the call needs: published, a draft, or changed since it was read."""


class ScheduleExists(BatutaError):
    """The id is taken by another schedule."""

    def __init__(self, which: str) -> None:
        super().__init__(f"there is a schedule {which!r}: give another id, or replace it")
        self.which = which


class UnknownWorkflow(BatutaError, LookupError):
    """No live worker of the run's queue has its workflow. `describe` gives this as the reason why the run waits."""

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
    """No live worker of the run's queue has its job. `describe` gives this as the reason why the run waits."""

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
        self.digest: str | None = None
        """Of the arguments that were given, when they were compared."""
        self.existing_digest: str | None = None
        """Digest of the arguments that the run was started with; None when they are no longer kept."""

    @classmethod
    def with_others(cls, id: str, state: str, digest: str, existing: str | None) -> AlreadyStarted:
        """The run was started with other arguments."""
        theirs = f"digest {existing[:12]}" if existing else "which are not kept any more"
        error = cls(
            id,
            state,
            f"it was started with other arguments ({theirs}) than those given now (digest {digest[:12]}): use another "
            f"id, or start with if_exists='return' to get it whatever its arguments",
        )
        error.digest, error.existing_digest = digest, existing
        return error


class WrongWorkflow(BatutaError):
    """The id belongs to a run of another workflow or job. Nothing was written.

    `kind` ("workflow", "job" or "activity") and `found` (its name) describe that run; `wanted_kind` and `wanted` the
    request.
    """

    def __init__(self, id: str, kind: str, found: str, wanted_kind: str, wanted: str) -> None:
        super().__init__(
            f"run {id!r} is of {kind} {found!r}, not of {wanted_kind} {wanted!r}: give each a prefix of its own in its "
            f"ids, such as {wanted + '-' + id!r}"
        )
        self.id, self.kind, self.found, self.wanted_kind, self.wanted = id, kind, found, wanted_kind, wanted


class QuotaExceeded(BatutaError):
    """The namespace may not start this now, or too many messages wait for the run. Nothing was written.

    `quota` is its name, `limit` what it allows, `used` how much is taken (for payload_bytes: the size of the input).
    `retry_after`: seconds after which a retry may work; None if waiting does not help.
    """

    def __init__(
        self, quota: str, namespace: str, limit: float, used: float, retry_after: float | None, message: str
    ) -> None:
        when = "" if retry_after is None else f": try again in {human_duration(float(f'{retry_after:.3g}'))}"
        super().__init__(f"quota {quota} of namespace {namespace!r} is exceeded: {message}{when}")
        self.quota, self.namespace, self.limit, self.used = quota, namespace, limit, used
        self.retry_after = retry_after


class GateRefused(BatutaError):
    """A gate did not let a call in, and the call does not wait. The call was not made.

    `gate` is its name; `retry_after`: seconds after which it is worth to try again.
    """

    word = "gate"

    def __init__(self, gate: str, why: str = "", retry_after: float = 0.0) -> None:
        when = f": try again in {human_duration(float(f'{retry_after:.3g}'))}" if retry_after else ""
        super().__init__(f"{self.word} {gate!r} refused the call{f' ({why})' if why else ''}{when}")
        self.gate, self.why, self.retry_after = gate, why, retry_after


class BreakerOpen(GateRefused):
    """The circuit breaker of a partner is open, or all its probes are under way. The call was not made."""

    word = "breaker"


class LimitReached(GateRefused):
    """A limit towards a partner is used up. The call was not made."""

    word = "limit"


class GateFailed(BatutaError):
    """A gate raised an error, or answered what it must not. The call was not made."""

    def __init__(self, gate: str, error: BaseException) -> None:
        super().__init__(f"gate {gate!r} could not be asked: {told(error)}")
        self.gate = gate


class UnknownPartner(BatutaError, LookupError):
    """No breaker or limit of this name was declared."""

    def __init__(self, kind: str, name: str) -> None:
        super().__init__(
            f"no {kind} {name!r}: a worker that has it in gates= declares it when it first uses it, and `batuta "
            f"partners list` shows all"
        )
        self.kind, self.name = kind, name


class DamagedPartner(BatutaError):
    """The stored state of a breaker or limit cannot be read. Calls that need it fail."""

    def __init__(self, kind: str, name: str, error: BaseException) -> None:
        super().__init__(
            f"what the store keeps of {kind} {name!r} cannot be read ({told(error)}): `batuta partners delete {kind} "
            f"{name}` removes it, and workers declare it again"
        )
        self.kind, self.name = kind, name


class RunClosed(BatutaError):
    """The run has ended: the message was refused, or its answer will not come.

    `how` is the error that it failed with, or why it was ended; empty if there is none or it was not looked up.
    """

    def __init__(self, id: object, state: str, why: str = "it takes no more messages", how: str = "") -> None:
        super().__init__(f"run {str(id)!r} is {state}{f' ({how})' if how else ''}: {why}")
        self.id, self.state, self.why, self.how = id, state, why, how


class NotParked(BatutaError):
    """Only a parked run, or a run whose attempt waits for its next try, can be tried again; others go on alone."""

    def __init__(self, id: object, state: str) -> None:
        super().__init__(
            f"run {str(id)!r} is {state}: only a parked run (needs_code, poisoned) can be tried again, or "
            f"a run with a failed attempt that waits for its next try"
        )
        self.id, self.state = id, state


class RunOpen(BatutaError):
    """The run has not ended, or a child or its parent has not: it cannot be deleted. Nothing was."""

    def __init__(self, id: str) -> None:
        super().__init__(f"run {id!r} is open, or has an open child or parent: terminate that, or wait for its end")
        self.id = id


class NothingMatches(BatutaError, LookupError):
    """No run is as the filter says. Nothing was done."""


class MatchesEverything(InvalidInput):
    """No filter was given, and the call would act on every run. Nothing was done."""


class NotConfirmed(InvalidInput):
    """A command that would change many runs was given without --yes. Nothing was done."""


class RunMoved(BatutaError):
    """The run changed since it was read. Nothing was written: look again."""

    def __init__(self, id: str, why: str) -> None:
        super().__init__(f"run {id!r} {why}: look at it again")
        self.id = id


class UnknownLetter(BatutaError, LookupError):
    """No run of that id is a dead letter."""

    def __init__(self, id: str) -> None:
        super().__init__(f"run {id!r} is not a dead letter: `batuta dead-letters list` shows all of them")
        self.id = id


class UnknownApiKey(BatutaError, LookupError):
    """No key of the server has this id, or it is not valid any more."""

    def __init__(self, id: str) -> None:
        super().__init__(f"no API key {id!r}: `batuta api-keys list` shows all keys")
        self.id = id


class IdempotencyKeyReused(BatutaError):
    """The idempotency key came before with another request. Nothing was done."""

    def __init__(self, key: str) -> None:
        super().__init__(f"idempotency key {key!r} came before with another request: use another key for this one")
        self.key = key


class IdempotencyInProgress(BatutaError):
    """The request of this idempotency key is under way. Nothing was done."""

    retry_after = 1.0

    def __init__(self, key: str) -> None:
        super().__init__(f"the request with idempotency key {key!r} is under way: try again to get its answer")
        self.key = key


class LetterResolved(BatutaError):
    """The dead letter was reprocessed or discarded before. Nothing was written."""

    def __init__(self, id: str, state: str) -> None:
        super().__init__(
            f"the dead letter of run {id!r} was {state} before: only an open one can be reprocessed or discarded"
        )
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
    """The workflow raised. `traceback` is the text of its traceback, possibly cut."""

    traceback = ""


class RunCancelled(RunNotCompleted):
    """The run was cancelled and let it happen."""


class RunTerminated(RunNotCompleted):
    """The run was ended from outside, without a word to its code."""


class RunTimedOut(RunNotCompleted):
    """The run or its chain was over its time."""


# -- messages to a run, and reads of its state


class CompensationFailed(BatutaError):
    """A compensation of a saga failed for good: its run is a dead letter. `undone` and `failed` name compensations."""

    def __init__(self, message: str, undone: Sequence[str] = (), failed: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.undone, self.failed = list(undone), list(failed)


class UpdateRejected(BatutaError):
    """The update was refused before it reached the run's code: the validator refused it, there is no handler, or its
    arguments do not fit.

    It left no trace in the run. `__cause__` is the validator's error.
    """

    def __init__(self, name: str, id: str, message: str) -> None:
        super().__init__(f"run {id!r} rejected update {name!r}: {message}")
        self.name, self.id = name, id


class UpdateFailed(BatutaError):
    """The handler of an accepted update raised; `__cause__` is its error. The run goes on."""

    def __init__(self, name: str, id: str, message: str) -> None:
        super().__init__(f"update {name!r} of run {id!r} failed: {message}")
        self.name, self.id = name, id


class UpdateInterrupted(UpdateFailed):
    """The run had accepted the update, and continued as new before its handler was done.

    The handler may have done a part of its work. It is not repeated, and its id stands for this request.
    """

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
    """A query could not be answered: its handler raised (`__cause__`), the run is not to begin yet, the code that is
    here does not replay it, or it has messages to read that cannot be read for it."""

    needs_code = False
    """The code of the workflow is not in this process."""

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
    """The activity raised an error whose class its worker, or the asking client, did not know.

    `type` and `message` are the original's.
    """

    def __init__(self, message: str, type: str = "", details: Any = None) -> None:
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
    """Raised by an activity to stop retries."""


class RetryLater(BatutaError):
    """Raised by an activity or a job to be tried again, but not before `seconds` (or a timedelta) have passed.

    The next attempt waits that long, whatever the policy says. It counts as an attempt like any other failure. If it
    was the last one, the call fails with this error. A negative number means now.
    """

    seconds = 0.0

    def __init__(self, seconds: Duration, message: str = "") -> None:
        wait: object = in_seconds(seconds)
        if isinstance(wait, bool) or not isinstance(wait, int | float) or not abs(wait) <= LONGEST_WAIT:  # nan, too
            raise InvalidInput(
                f"RetryLater({seconds!r}) must be given seconds or a timedelta, at most 10 billion seconds: a "
                f"header such as Retry-After is text, and may be a date"
            )
        self.seconds = max(0.0, float(wait))
        super().__init__(message or f"asked to be tried again after {human_duration(self.seconds)}")


LONGEST_WAIT = 1e10
"""Seconds that a policy, or an error, may have an attempt wait."""


class LostAttempt(BatutaError):
    """This attempt no longer counts: it exceeded its time, or its run has ended or runs elsewhere.

    `heartbeat()` raises it in the activity, which should stop. So do the calls that complete an attempt from outside.
    """


class ActivityCancelled(LostAttempt):
    """This attempt no longer counts: its call or its run was cancelled."""


class TokenUsed(LostAttempt):
    """This attempt was completed, or failed, from outside before: a token serves once."""


# -- raised by workflow code


class Failed(BatutaError):
    """Raised by a workflow to fail the run on purpose (declined, out of stock). Derive your own from it.

    It is not a bug: nothing is logged at ERROR, and the run does not become a dead letter.
    """


# -- a run that is parked


class WorkflowBroken(BatutaError):
    """Workflow code did what cannot be replayed. The run is parked as needs_code, with this as its reason."""


class Nondeterministic(WorkflowBroken):
    """Replay issued other commands than the journal holds."""

    def __init__(self, where: str, expected: str, got: str) -> None:
        super().__init__(
            f"the code does not replay its journal at {where}\n  recorded: {expected}\n  today's code: {got}\n"
            f"deploy code that replays it: the run goes on by itself{_way_out(where)}"
        )
        self.where, self.expected, self.got = where, expected, got


def _way_out(where: str) -> str:
    """The way out for a run that began during a bad deploy."""
    word, _, rest = where.partition(" ")
    number = rest.partition(" ")[0].rstrip(",")
    if word != "entry" or not number.isdecimal():
        return ""
    to = int(number) - 1
    return f". If that code is not to come back: `batuta runs reset ID --to {to}` lets today's go on from there"


class Forbidden(WorkflowBroken):
    """Workflow code reached for threads, sockets, processes or a foreign future."""


class Spins(WorkflowBroken):
    """One turn ran too many callbacks without waiting for anything."""


class WaitsForNothing(WorkflowBroken):
    """The workflow waits, and nothing that could wake it is pending."""


class ErrorNotLoaded(WorkflowBroken):
    """The journal holds an error, or a value of one, whose class is not loaded here: the run cannot get it."""

    def __init__(self, type: str, inside: str = "", *, loaded: bool = False) -> None:
        module, _, path = type.rpartition(":")
        what = f"an error of class {inside} that holds a {type}" if inside else f"an error of class {type}"
        if loaded:
            todo = "which today's class can't be made from: deploy one that can"
        else:
            todo = (
                f"which is not loaded here: import {path} from {module} at the top of the workflow's module, and the "
                f"run goes on by itself; if another module of the worker imports it, `batuta runs retry` has it go on"
            )
        super().__init__(f"the journal holds {what}, {todo}")
        self.type, self.module = type, module


class NotAwaited(WorkflowBroken):
    """Workflow code called an activity, a child or the like, and did not await it: it would never have happened."""

    def __init__(self, workflow: str, what: str) -> None:
        super().__init__(
            f"workflow {workflow!r} called {what} and did not await it, so that it would never happen: put `await` "
            f"before it (`batuta check` names the line), or close() it if it is not wanted"
        )
        self.workflow, self.what = workflow, what


class WorkflowRaised(WorkflowBroken):
    """An error left the code of a workflow with `on_error="park"`, which does not declare it."""

    def __init__(self, summary: str, traceback: str) -> None:
        super().__init__(
            f"the workflow raised {summary}\n{traceback}\n"
            f"deploy code that does not: the run goes on by itself from before this turn"
        )
        self.summary, self.traceback = summary, traceback


# -- payloads that went through a codec


class PayloadSealed(BatutaError):
    """A payload cannot be read: it went through a codec, or was encrypted with a key, that is not here.

    A run of which this is true is parked, and taken up by a worker that can read it. Nothing of it is lost."""


class PayloadDamaged(PayloadSealed):
    """A payload differs from what was written: changed, cut short, moved, or not encrypted where it must be."""


# -- the store


# -- HTTP to strangers


class AddressRefused(BatutaError):
    """The host may not be called: it has an address that is not public and not allowed. Nothing was sent."""

    def __init__(self, host: str, address: str) -> None:
        super().__init__(
            f"{host} may not be called ({address}): only public addresses may, and those in BATUTA_WEBHOOK_ALLOW"
        )
        self.host, self.address = host, address


class PartnerUnreachable(BatutaError):
    """The host gave no answer. The request may have arrived."""

    def __init__(self, host: str, why: str) -> None:
        super().__init__(f"{host} gave no answer: {why}")
        self.host, self.why = host, why


class BusUnavailable(BatutaError):
    """The broker of the bus is away. Messages wait in the store; it may be tried again."""


class ResponseTooLarge(BatutaError):
    """The answer is longer than allowed, and was not read to its end."""

    def __init__(self, host: str, limit: int) -> None:
        super().__init__(f"the answer of {host} has more than {limit:,} bytes")
        self.host, self.limit = host, limit


class UnknownEndpoint(BatutaError, LookupError):
    """No webhook endpoint has this id."""

    def __init__(self, id: str) -> None:
        super().__init__(f"no webhook endpoint {id!r}: `batuta webhooks list` shows all")
        self.id = id


class WebhookNotAccepted(RetryLater):
    """The receiver of a webhook answered, but not with 2xx. It is tried again, after `Retry-After` if it said so."""

    def __init__(self, status: int, retry_after: float | None, said: str = "") -> None:
        super().__init__(0.0, f"the receiver answered with status {status}" + (f": {said}" if said else ""))
        self.status = status
        self.seconds = -1.0 if retry_after is None else retry_after  # negative: the policy decides


class InvalidSignature(BatutaError):
    """An incoming webhook was not signed with a known secret, or is too old. Refuse it with status 401."""

    def __init__(self, why: str) -> None:
        super().__init__(f"the webhook can't be trusted: {why}")
        self.why = why


class StoreError(BatutaError):
    """Something about the database."""


class StoreUnavailable(StoreError):
    """Away or locked. Nothing was written; it may be tried again."""


class StoreFull(StoreUnavailable):
    """No room. Nothing was written; it may be tried again when there is."""


class OutcomeUnknown(StoreError):
    """The connection broke during a write, which may or may not be durable."""


class BadData(StoreError):
    """The database refused a value, or a payload codec failed to encode it. Nothing was written."""


class PayloadRefused(BadData):
    """The namespace is marked as encrypted, and this process could not read what others write there. Nothing was
    written."""


class StoreFailed(StoreError):
    """An fsync failed: nothing since the last good one can be trusted. Reopen and read again."""


class SchemaMismatch(StoreError):
    """The database has another schema than this code: migrate it, or upgrade Batuta."""


class AuditKeyMissing(StoreError):
    """The audit log has a key, and this client has none. Nothing was written."""

    def __init__(self, namespace: str) -> None:
        super().__init__(
            f"the audit log of namespace {namespace!r} is written with a key, and this client has none: "
            f"set BATUTA_AUDIT_KEY, or the keys of its payloads (BATUTA_KEYS)"
        )
        self.namespace = namespace


class ClientError(BatutaError):
    """A client was used in a way it cannot be: closed, of another process or event loop, or blocking inside one."""


class WorkerError(BatutaError):
    """A worker was used in a way it cannot be."""
