"""Inside a transactional activity: its transaction, and what leaves with it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from batuta.authoring.attempt import current_attempt
from batuta.authoring.backend import Letter, StartRequest
from batuta.authoring.enqueueing import JobRequest, job_request
from batuta.authoring.letters import signal_letter, start_request
from batuta.authoring.starting import check_id
from batuta.errors import InvalidInput, WorkerError
from batuta.ids import new_run_id

Outgoing = JobRequest | StartRequest | tuple[str, Letter]
"""A job, a workflow, or a signal and the id of the run that it goes to."""


class Transaction:
    """The transaction of one attempt. Made by the backend; asked for with `transaction()`.

    Jobs, workflows and signals given to it are written when the activity's code has ended, in the same commit as its
    result: they leave if, and only if, that commits. When one of them cannot leave (nobody has the id that a signal is
    sent to, that run is closed, or an id is taken and `if_exists` is "reject") nothing is committed, and the attempt
    fails with UnknownRun, RunClosed or AlreadyStarted.
    """

    def __init__(self, connection: Callable[[], Any], limit: int) -> None:
        self._connection, self._limit = connection, limit
        self.outgoing: list[Outgoing] = []
        self.over = False
        """The activity's code has ended."""

    @property
    def connection(self) -> Any:
        """Of the store's own database, in the transaction. On PostgreSQL one of asyncpg, as from a pool; on SQLite one
        that does what a `sqlite3.Connection` does, but for committing. Never commit it or roll it back: batuta does.
        """
        self._check()
        return self._connection()

    def enqueue(self, job: Any, /, *args: Any, **options: Any) -> str:
        """Have a job executed once this commits. As `client.enqueue`, but for `debounce`. Returns its id."""
        self._check()
        request = job_request(job, args, options, self._limit)
        if request.debounce is not None:
            raise InvalidInput("debounce= cannot be given in a transactional activity: enqueue a job that does it")
        if request.unique is None:
            request.id = request.id or str(new_run_id())
        self.outgoing.append(request)
        return request.id or f"{request.job}:{request.unique}"

    def start(self, workflow: Any, /, *args: Any, id: str | None = None, **options: Any) -> str:
        """Start a workflow once this commits. As `client.start`. Returns its id."""
        self._check()
        request = start_request(workflow, args, id or str(new_run_id()), options, self._limit)
        self.outgoing.append(request)
        return request.id or ""

    def signal(self, id: str, signal: Any, value: Any = None, *, message_id: str | None = None) -> None:
        """Send a signal to the current run of that id once this commits. As `handle.signal`."""
        self._check()
        self.outgoing.append((check_id(id), signal_letter(signal, value, message_id, self._limit)))

    def _check(self) -> None:
        if self.over:
            raise WorkerError("the transaction is over: its activity has ended, or was over its time")


def transaction() -> Transaction:
    """Inside an activity with `transactional=True`: its transaction. Raises WorkerError elsewhere."""
    return current_attempt("transaction()").transaction()
