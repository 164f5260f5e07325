"""A call of an activity, as it is known while it is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any, Protocol, cast
from urllib.parse import quote

from msgspec import Struct

from batuta.authoring.activity.attempt import ActivityInfo, BatchInfo
from batuta.authoring.activity.tokens import AttemptRef
from batuta.authoring.activity.transactional import Transaction
from batuta.authoring.client.messages import Draft, new_message
from batuta.authoring.definitions import Activity, ExecutionMode
from batuta.authoring.failures.conversion import to_failure
from batuta.authoring.gates import Passes, have_lapsed
from batuta.authoring.middleware import AttemptFacts
from batuta.clock import SECOND, as_datetime
from batuta.durations import human_duration
from batuta.engine.activities.publisher import Publisher
from batuta.engine.machine.core import PendingActivity
from batuta.engine.machine.identity import RunIdentity
from batuta.engine.machine.machine import Machine
from batuta.engine.machine.routing import Caller, caller_of
from batuta.errors import ActivityCancelled, ActivityTimeout, LostAttempt, WorkerError
from batuta.ids import RunId, jitter, trace_id_of_run
from batuta.journal.bus.messages import NewMessage
from batuta.journal.entries import Body, Command, EntryKind, StartInfo
from batuta.journal.failures import Failure
from batuta.journal.records import Attempt, Change, Refusal
from batuta.journal.store import Store
from batuta.telemetry import RunFacts

SHORT_WAIT = 1.0
"""A run that is one call, and waits longer for its next attempt, leaves memory and its place in its queue."""

CANCELLED = "its call or its run was cancelled"
ENDED = "its run has ended"
DROPPED = "its run is not this worker's any more"
ANSWERED = "it was completed from outside"
OVERDUE = "it is over its time"
STOPPED = "its worker has stopped"
LEASE_OVER = "the worker's lease is over, and another one may have its run"
"""Why an attempt is lost."""


Effect = Command | Callable[[], None]
"""Waits for a change to be durable."""
Turn = tuple[Change, list[Effect]]
"""The change that a turn wants written, and what may act then."""


class CallServices(Protocol):
    """The worker as the code of an attempt sees it, in any thread."""

    def heartbeat(self, call: Call, details: Any) -> None: ...
    def checkpoint(self, call: Call, state: Any) -> Future[None]: ...
    def progress(self, call: Call, value: Any) -> None: ...
    def token(self, call: Call) -> bytes: ...

    publisher: Publisher
    loop: asyncio.AbstractEventLoop
    max_payload: int

    def transaction(self, call: Call) -> Transaction: ...


class CallingRun(Protocol):
    """A run, as its calls and what executes them see it."""

    run_id: RunId
    identity: RunIdentity
    machine: Machine
    calls: dict[int, Call]
    ahead: int
    leaving: bool
    is_call: bool
    """It is one call: a job, or an activity that was sent here from another queue."""
    pausing: str | None
    prepare: Callable[[], object] | None
    told: RunFacts | None
    """What events say of it, once that is known."""

    @property
    def executor(self) -> CallServices: ...
    @property
    def named(self) -> tuple[str, str]: ...
    @property
    def started_with(self) -> StartInfo: ...
    def begun_facts(self) -> RunFacts: ...
    @property
    def deadline(self) -> int | None:
        """When the run is over its time."""
        ...

    def now(self) -> int: ...
    def counted_from(self, at: int) -> int: ...
    def deliver(self, kind: EntryKind, body: Body) -> None: ...
    def record_attempt(self, attempt: Attempt, then: Callable[[], None] | None = None) -> None: ...
    def consume(self, message_id: str) -> None: ...
    def say(self, progress: str) -> None: ...
    def say_last(self, progress: str) -> None: ...
    def gave_up(self, attempt: Attempt) -> None: ...
    def batch(self, loop: asyncio.AbstractEventLoop) -> Future[BatchInfo]: ...
    def call_waits(self) -> None: ...
    def call_over(self) -> None: ...
    def be_patient(self) -> None: ...
    def prepare_with(self, prepare: Callable[[], object]) -> None: ...
    def lack(self, seq: int, why: str) -> None: ...
    def evict_when_draining(self) -> None: ...
    def drop(self) -> None: ...

    # answers that are written in transactions of their own
    def add_input(self, answer: TransactionalInput) -> None: ...
    def remove_input(self, answer: TransactionalInput) -> None: ...
    def take_turn(self, answer: TransactionalInput, data: bytes) -> None: ...
    def take_back(self, answer: TransactionalInput, turn: Turn, then: Callable[[], None]) -> None: ...
    def settle_transaction(self, turn: Turn, refusals: Sequence[Refusal]) -> None: ...


class GatesLapsed(BaseException):
    """Raised in place of an attempt's code, which took too long to begin: the gates that let it in are asked again."""


class _Soon:
    """Stands for the task of a call until the call has one. It is done, so that nothing tries to cancel it."""

    def done(self) -> bool:
        return True


SOON = cast("asyncio.Future[Any]", _Soon())


class HeartbeatState(Struct, eq=False):
    """The heartbeat details of a call, over its attempts."""

    details: str | None = None
    at: int = 0
    """When the last one came; 0 when none came in this process."""
    untold: int = 0
    """How many came for which no event was sent."""
    unwritten: bool = False
    progress: str | None = None
    """How far the attempt said that it is, while that is not written."""
    saving: list[Future[None]] = []
    """Checkpoints that are not durable yet."""


class Call(Struct, eq=False):
    """One activity call of one run, over all its attempts. A struct, for it is made for every step."""

    run: CallingRun
    seq: int
    pending: PendingActivity
    activity: Activity[..., Any]
    attempt: int
    started_at: int = 0
    task: asyncio.Future[Any] | None = None
    """The task or thread that executes it, or `SOON`. Set rarely: attributes of a struct are set slowly."""
    begun: bool = False
    """An attempt has been begun before, here or elsewhere: it did start in time."""
    finished: bool = False
    """Its code has ended, and its transaction has not."""
    waking: asyncio.TimerHandle | None = None
    deadline: int | None = None
    next_at: int | None = None
    """When the next attempt is due, while the call waits for it. Outside: when this one is over its time."""
    queued: bool = False
    """It waits for a place, and nothing of it has begun."""
    shelved: bool = False
    """There was a place for it while its run was held."""
    over: bool = False
    """Its answer is given, or not wanted."""
    noted: bool = False
    """Its start is in the attempts table."""
    noting: bool = False
    """It has its place, and that it starts is being written."""
    unwritten: bool = False
    """Its failure is not durable yet: it is not tried again before, or a death could repeat more than one attempt."""
    outside: bool = False
    """Its code has ended, and its answer is to come from outside."""
    beats: HeartbeatState | None = None
    secret: bytes = b""
    """The secret of the token that its code has asked for."""
    tokens: str | None = None
    """Hashes of that and of those that the attempt was given before, by workers that died."""
    lost: str = ""
    """Why its answer is not wanted."""
    passes: Passes | None = None
    """The gates that let its attempt in."""
    gate: str = ""
    """The gate that it waits for."""
    topic: str = ""
    """The name that wakes it there; empty: no gate holds it."""
    refused_at: int = 0
    """When it began to wait for gates."""
    published: int = 0
    """Messages that the attempt has published without an id of their own."""

    def successor(self, attempt: int) -> Call:
        """The same call, to be tried again."""
        fresh = Call(self.run, self.seq, self.pending, self.activity, attempt, 0, None, True)
        fresh.beats = self.beats
        if attempt == self.attempt:
            fresh.secret, fresh.tokens = self.secret, self.tokens
        return fresh

    @property
    def in_flight(self) -> bool:
        """Whether its code is at work, or about to be."""
        return self.task is not None and not self.finished

    @property
    def idle(self) -> bool:
        """Whether it only waits, and needs no memory for that."""
        return self.outside or self.next_at is not None

    # -- its time

    def ends_at(self) -> int | None:
        """When the attempt, begun at its `started_at`, is over its time."""
        options = self.pending.options
        ends = []
        if options.timeout is not None:
            ends.append(self.run.counted_from(self.started_at) + int(options.timeout * SECOND))
        if options.total_timeout is not None:
            ends.append(self.run.counted_from(self.pending.issued_at) + int(options.total_timeout * SECOND))
        return min(ends, default=None)

    def again_in(self, failure: Failure, now: int) -> float | None:
        """Seconds until the next attempt after this failure; None when there is none."""
        options = self.pending.options
        delay = None if options.once else options.retry.delay_after(failure, self.attempt, jitter())
        if delay is not None and options.total_timeout is not None:
            end = self.run.counted_from(self.pending.issued_at) + options.total_timeout * SECOND
            if now + delay * SECOND >= end:
                return None
        return delay

    def too_long(self, now: int) -> Failure:
        """The failure of an attempt that is over its time."""
        options = self.pending.options
        total, since = options.total_timeout, self.run.counted_from(self.pending.issued_at)
        if total is not None and now >= since + total * SECOND:
            return fatal(self._timeout("total", "took longer than its", total))
        return self._timeout("attempt", "took longer than its", options.timeout or 0)

    def too_late(self, limit: float) -> Failure:
        """The failure of a call that did not start in time."""
        return fatal(self._timeout("start", "did not start within", limit))

    def silent(self, limit: float) -> Failure:
        """The failure of an attempt that sent no heartbeat for too long."""
        return self._timeout("heartbeat", "sent no heartbeat for", limit)

    def _timeout(self, kind: str, what: str, seconds: float) -> Failure:
        message = f"activity {self.pending.name!r} {what} {human_duration(seconds)} (attempt {self.attempt})"
        return to_failure(ActivityTimeout(message, kind))

    # -- what its code asks, in whatever thread

    def time_left(self) -> float | None:
        """Seconds until the attempt is over its time, or its run is."""
        ends = [one for one in (self.ends_at(), self.run.deadline) if one is not None]
        return max(0.0, (min(ends) - self.run.now()) / SECOND) if ends else None

    def info(self) -> ActivityInfo:
        run, seq = self.run, self.seq
        caller = caller_of(run.machine.start) or Caller(run.identity.id, run.run_id, seq)
        namespace = run.identity.namespace
        return ActivityInfo(
            key=self.pending.key or run.machine.key(seq, self.pending.name),
            name=self.pending.name,
            attempt=self.attempt,
            run_id=caller.run_id,
            id=caller.id,
            seq=caller.seq,
            started_at=as_datetime(self.started_at),
            namespace=namespace,
            ref=AttemptRef(namespace, run.run_id, seq, self.attempt, self.pending.entry),
            ask=self.ask,
            last_details=self.details,
            is_lost=self.is_lost,
            trace=run.machine.start.trace,
            trace_id=trace_id_of_run(run.machine.start.trace, run.identity.chain_id),
            headers=run.machine.start.headers,
            slot=as_datetime(run.machine.start.slot or None),
        )

    def facts(self) -> AttemptFacts:
        id, queue = self.run.named
        caller = caller_of(self.run.started_with) if self.run.is_call else None
        kind = "job" if self.run.is_call and caller is None else "activity"
        by = caller or Caller(id, self.run.run_id, self.seq)
        return AttemptFacts(self.pending.name, self.attempt, by.id, by.run_id, by.seq, kind, queue)

    def heartbeat(self, details: Any) -> None:
        self.run.executor.heartbeat(self, details)

    def checkpoint(self, state: Any) -> Future[None]:
        if self.activity.execution_mode is ExecutionMode.STORE:
            raise WorkerError(
                f"checkpoint() was called in activity {self.pending.name!r}, which is transactional: an attempt that "
                f"is not committed has done nothing that another one need not do"
            )
        return self.run.executor.checkpoint(self, state)

    def progress(self, value: Any) -> None:
        self.run.executor.progress(self, value)

    def batch(self) -> Future[BatchInfo]:
        return self.run.batch(self.run.executor.loop)

    def publish(self, draft: Draft) -> Future[str]:
        transactional = self.activity.execution_mode is ExecutionMode.STORE
        if draft.id is None:
            self.published += 1
        message = self.message(draft)
        if transactional:
            self.transaction().messages.append(message)
            done: Future[str] = Future()
            done.set_result(message.id)
            return done
        executor = self.run.executor
        return executor.publisher.publish_from(executor.loop, message)

    def store(self) -> Store:
        return self.run.executor.publisher.store

    def message(self, draft: Draft) -> NewMessage:
        """The messages it publishes. Raises InvalidInput, TooLarge."""
        run, executor = self.run, self.run.executor
        key = self.pending.key or run.machine.key(self.seq, self.pending.name)
        return new_message(
            draft,
            f"{key}:{self.published}",
            executor.max_payload,
            source=f"/batuta/{quote(run.identity.namespace)}/{quote(self.pending.name)}",
            time=run.now(),
            trace=run.machine.start.trace,
            via=executor.publisher.via,
        )

    def ask(self) -> bytes:
        return self.run.executor.token(self)

    def transaction(self) -> Transaction:
        return self.run.executor.transaction(self)

    def is_lost(self) -> bool:
        return self.over

    def check_gates(self) -> None:
        """Its code is about to begin. Raises GatesLapsed."""
        if self.passes is not None and have_lapsed(self.passes):
            raise GatesLapsed(f"activity {self.pending.name!r} could not begin soon after its gates had let it in")

    def gate_arguments(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return self.activity.codec.decode_args(self.pending.data)

    def complaint(self) -> LostAttempt | ActivityCancelled:
        """The error that tells the attempt's code to stop."""
        kind = ActivityCancelled if self.lost in (CANCELLED, ENDED) else LostAttempt
        why = self.lost or "it has ended"
        return kind(
            f"attempt {self.attempt} of activity {self.pending.name!r} of run {self.run.identity.id!r} is not needed "
            f"any more ({why}): stop"
        )

    # -- its row in the store

    @property
    def details(self) -> str | None:
        """JSON of the last heartbeat's details."""
        return None if self.beats is None else self.beats.details

    def row(self, **more: Any) -> Attempt:
        return Attempt(
            seq=self.seq,
            number=self.attempt,
            started_at=self.started_at,
            details=self.details,
            tokens=self.tokens,
            name=self.pending.name,
            **more,
        )


class TransactionalInput:
    """An answer that waits to be the next input of its run, for it is written in a transaction of its own. `data`: JSON
    of it, when it is known before that."""

    __slots__ = ("body", "call", "data", "reached", "turn")

    def __init__(self, call: Call, data: bytes | None = None) -> None:
        self.call, self.data = call, data
        self.body = Body(call.seq, call.pending.name)
        self.reached: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when it is the next input. Its turn has run then, if the answer was known; see `turn`."""
        self.turn: Turn | None = None

    def wait_again(self) -> None:
        """It is the next input, and its answer is known only now: wait for its turn."""
        self.reached = asyncio.get_running_loop().create_future()

    def turned(self, turn: Turn | None) -> None:
        """Its turn has run, or never was."""
        self.turn = turn


def last_beats(attempts: Sequence[Attempt]) -> HeartbeatState | None:
    """Heartbeat details of earlier attempts, here or elsewhere. The attempts are in order."""
    details = next((a.details for a in reversed(attempts) if a.details is not None), None)
    return None if details is None else HeartbeatState(details)


def fatal(failure: Failure) -> Failure:
    """After which no other attempt is made."""
    failure.retryable = False
    return failure
