"""Inside a transactional activity: its transaction, and what leaves with it."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast, overload

from batuta.authoring.activity.attempt import Attempt, current_attempt
from batuta.authoring.backend import ClientMessage, StartRequest
from batuta.authoring.client.enqueue import EnqueueOptions, JobRequest, job_request
from batuta.authoring.client.messages import Draft
from batuta.authoring.client.requests import signal_message, start_request
from batuta.authoring.client.start import StartOptions, check_id
from batuta.authoring.jobs import JobCall
from batuta.authoring.workflow.messages import Signal
from batuta.errors import InvalidInput, WorkerError
from batuta.ids import new_run_id
from batuta.journal.bus.messages import NewMessage
from batuta.journal.records import IfExists

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

Outgoing = JobRequest | StartRequest | tuple[str, ClientMessage]
"""A job, a workflow, or a signal and the id of the run that it goes to."""


class Transaction:
    """The transaction of one attempt. Made by the backend; asked for with `transaction()`.

    Jobs, workflows, signals and messages given to it are written when the activity's code has ended, in the same commit
    as its result. If one of them cannot be written (the signal has no receiver or a closed one, an id is taken and
    `if_exists` is "reject", or a run of another workflow or job has the id), nothing is committed, and the attempt
    fails with UnknownRun, RunClosed, AlreadyStarted or WrongWorkflow.
    """

    def __init__(
        self, connection: Callable[[], Any], limit: int, publish: Callable[[Draft], Future[str]] | None = None
    ) -> None:
        self._connection, self._limit, self._publish = connection, limit, publish
        self.outgoing: list[Outgoing] = []
        self.messages: list[NewMessage] = []
        self.over = False
        """The activity's code has ended."""

    @property
    def connection(self) -> Any:
        """A connection of the store's own database, in the transaction.

        On PostgreSQL an asyncpg connection; on SQLite an object like a `sqlite3.Connection` that cannot commit. Never
        commit it or roll it back: Batuta does.
        """
        self._check()
        return self._connection()

    @overload
    def enqueue(
        self, job: Callable[[*Ts], Coroutine[Any, Any, Any]], /, *args: *Ts, **options: Unpack[EnqueueOptions]
    ) -> str: ...
    @overload
    def enqueue(self, job: JobCall[Any], /, **options: Unpack[EnqueueOptions]) -> str: ...
    @overload
    def enqueue(self, job: str, /, *args: Any, **options: Unpack[EnqueueOptions]) -> str: ...
    def enqueue(self, job: Any, /, *args: Any, **options: Any) -> str:  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
        """Have a job executed once this commits. As `client.enqueue`, but for `debounce`. Returns its id."""
        self._check()
        request = job_request(job, args, options, self._limit)
        if request.debounce is not None:
            raise InvalidInput("debounce= is not allowed in a transactional activity: enqueue a job that does it")
        _check_comparable(request.if_exists)
        if request.unique is None:
            request.id = request.id or str(new_run_id())
        self.outgoing.append(request)
        return request.id or request.unique_id or ""

    @overload
    def start(
        self,
        workflow: Callable[[*Ts], Coroutine[Any, Any, Any]],
        /,
        *args: *Ts,
        id: str | None = None,
        **options: Unpack[StartOptions],
    ) -> str: ...
    @overload
    def start(self, workflow: str, /, *args: Any, id: str | None = None, **options: Unpack[StartOptions]) -> str: ...
    def start(self, workflow: Any, /, *args: Any, id: str | None = None, **options: Any) -> str:  # type: ignore[misc]  # mypy does not see that *Any takes *Ts
        """Start a workflow once this commits. As `client.start`. Returns its id."""
        self._check()
        request = start_request(workflow, args, id or str(new_run_id()), options, self._limit)
        _check_comparable(request.if_exists)
        self.outgoing.append(request)
        return request.id or ""

    @overload
    def signal(self, id: str, signal: Signal[T], value: T, *, message_id: str | None = None) -> None: ...
    @overload
    def signal(self, id: str, signal: Signal[None], *, message_id: str | None = None) -> None: ...
    @overload
    def signal(self, id: str, signal: str, value: Any = None, *, message_id: str | None = None) -> None: ...
    def signal(self, id: str, signal: Any, value: Any = None, *, message_id: str | None = None) -> None:
        """Send a signal to the current run of that id once this commits. As `handle.signal`."""
        self._check()
        self.outgoing.append((check_id(id), signal_message(signal, value, message_id, self._limit)))

    def publish(
        self,
        topic: str,
        payload: Any,
        *,
        key: str = "",
        id: str | None = None,
        type: str | None = None,
    ) -> str:
        """Publish a message once this commits, as `batuta.bus.publish` does elsewhere. Returns its id."""
        self._check()
        if self._publish is None:
            raise WorkerError("this transaction cannot publish messages")
        return self._publish(Draft(topic=topic, payload=payload, key=key, id=id, type=type)).result()

    def _check(self) -> None:
        if self.over:
            raise WorkerError("the transaction has ended: its activity has ended, or exceeded its time")


def _check_comparable(policy: IfExists) -> None:
    if policy is IfExists.SAME:
        raise InvalidInput(
            "if_exists='same' is not allowed in a transactional activity: start it in the workflow, or from a client"
        )


class TransactionalAttempt(Attempt, Protocol):
    """An attempt that may have a transaction. Given by the backend."""

    def transaction(self) -> Transaction:
        """Raises WorkerError when it has none."""
        ...


def transaction() -> Transaction:
    """Inside an activity with `transactional=True`: its transaction. Raises WorkerError elsewhere."""
    return cast(TransactionalAttempt, current_attempt("transaction()")).transaction()
