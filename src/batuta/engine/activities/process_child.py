"""The other side of an activity in a process: reads requests from a pipe, one at a time, and answers them.

Values cross the pipe as JSON; nothing of the user's is ever pickled.
"""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

from msgspec import Raw, json, structs

from batuta.authoring.activity.attempt import ActivityInfo, BatchInfo, CallFacts, CompleteLater, current_activity
from batuta.authoring.client.messages import Draft
from batuta.authoring.definitions import Activity
from batuta.authoring.failures.conversion import answerable, to_exception, to_failure
from batuta.clock import SystemClock
from batuta.errors import InvalidInput, WorkerError
from batuta.journal.failures import Failure
from batuta.serde import Codec, encode

DONE, FAILED, LATER = b"+", b"-", b"?"
ANSWERS = (DONE, FAILED, LATER)
"""The first byte of what comes back at the end."""
BEAT, PROGRESS, SAVE, BATCH, PUBLISH, TOKEN = b"~", b"%", b"!", b"#", b"@", b"&"
"""The same before. The last four are answered, too, with DONE or FAILED."""

_LOOK_SECONDS = 1.0


class Request(CallFacts, frozen=True, kw_only=True):
    """One attempt, to be executed."""

    module: str
    function: str
    arguments: Raw
    limit: int
    time_left: float | None = None


def facts_of(one: CallFacts) -> dict[str, Any]:
    """The facts that the worker and the process share."""
    return {name: getattr(one, name) for name in CallFacts.__struct_fields__}


class ChildAttempt:
    """The attempt, as its code sees it in this process."""

    def __init__(self, request: Request, pipe: Pipe) -> None:
        self._request, self._pipe, self._details = request, pipe, request.last_details
        self._began = SystemClock.monotonic()

    def time_left(self) -> float | None:
        left = self._request.time_left
        return None if left is None else max(0.0, left - (SystemClock.monotonic() - self._began))

    def info(self) -> ActivityInfo:
        facts = facts_of(self._request) | {"last_details": self._details}
        return ActivityInfo(**facts, ask=self._ask, is_lost=bool)  # never: a process whose attempt is lost is killed

    def _ask(self) -> bytes:
        return json.decode(self._pipe.ask(TOKEN), type=bytes)

    def heartbeat(self, details: Any) -> None:
        data = b"" if details is None else encode(details, "the details of a heartbeat", self._request.limit)
        if data:
            self._details = data.decode()
        self._pipe.send(BEAT + data)

    def checkpoint(self, state: Any) -> Future[None]:
        data = encode(state, "the state of a checkpoint", self._request.limit)
        self._pipe.ask(SAVE + data)
        self._details = data.decode()
        return _done(None)

    def progress(self, value: Any) -> None:
        self._pipe.send(PROGRESS + encode(value, "the progress of a job", self._request.limit))

    def batch(self) -> Future[BatchInfo]:
        return _done(json.decode(self._pipe.ask(BATCH), type=BatchInfo))

    def publish(self, draft: Draft) -> Future[str]:
        """The worker publishes it: it knows the store, and what the attempt has published before."""
        payload = encode(draft.payload, f"the payload of a message on topic {draft.topic!r}", self._request.limit)
        asked = json.encode(structs.replace(draft, payload=Raw(payload)))
        return _done(json.decode(self._pipe.ask(PUBLISH + asked), type=str))

    def store(self) -> NoReturn:
        raise WorkerError("an activity with process=True has no store")

    def transaction(self) -> NoReturn:
        raise WorkerError("an activity with process=True has no transaction")


def _done(value: Any) -> Future[Any]:
    future: Future[Any] = Future()
    future.set_result(value)
    return future


class Pipe:
    """To the worker, from whatever thread."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe
        self._lock, self._asking = threading.Lock(), threading.Lock()

    def send(self, frame: bytes) -> None:
        with self._lock:
            self._pipe.send_bytes(frame)

    def ask(self, frame: bytes) -> bytes:
        """Wait for the answer: only the code of an attempt asks, while nothing else is to be read."""
        with self._asking:
            self.send(frame)
            answer = self._pipe.recv_bytes()
        if answer[:1] == FAILED:
            raise to_exception(json.decode(answer[1:], type=Failure))
        return answer[1:]


def serve(pipe: Connection) -> None:
    """The life of the process. It ends with the pipe, and with the worker."""
    os.setpgid(0, 0)  # killed with all that it has begun
    # A signal to all processes of a service asks the worker to stop, which waits for us or kills us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_worker, daemon=True).start()
    shared = Pipe(pipe)
    try:
        while True:
            shared.send(_answer(json.decode(pipe.recv_bytes(), type=Request), shared))
    except (EOFError, OSError):
        return


def _end_with_worker() -> None:
    worker = parent_process()
    if worker is not None:
        # Looked at, too: a process forked from the worker has the other end of the sentinel.
        while os.getppid() == worker.pid and not wait([worker.sentinel], _LOOK_SECONDS):
            pass
        os.killpg(0, signal.SIGKILL)


def _answer(request: Request, pipe: Pipe) -> bytes:
    try:
        fn, codec = _find(request)
        args, kwargs = codec.decode_args(request.arguments)
        context = contextvars.Context()
        context.run(current_activity.set, ChildAttempt(request, pipe))
        return DONE + codec.encode_result(context.run(fn, *args, **kwargs), request.limit)
    except CompleteLater:
        return LATER
    except BaseException as error:  # noqa: BLE001 - whatever an activity raises is its answer
        error = answerable(error)
        failure = to_failure(error)
        failure.retryable = failure.retryable and not isinstance(error, InvalidInput)
        return FAILED + json.encode(failure)


def _redact_logs() -> None:
    """The worker's handlers are not here: those that the activity's module has set up, or Python's own."""
    redaction = import_module("batuta.redaction")  # here: most processes have no use for it
    try:
        found = redaction.from_env()
    except InvalidInput:
        found = redaction.Redactor()  # a worker's command refuses it; this is no place to fail
    redaction.redact_handlers(found)


def _find(request: Request) -> tuple[Callable[..., Any], Codec]:
    found = getattr(import_module(request.module), request.function)
    if os.environ.get("BATUTA_REDACT"):
        _redact_logs()
    if isinstance(found, Activity):
        return found.fn, found.codec
    return found, Codec(found, f"activity {request.name!r}")
