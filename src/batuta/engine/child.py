"""The other side of an activity in a process: reads requests from a pipe, one at a time, and answers them.

Values cross the pipe as JSON; nothing of the user's is ever pickled.
"""

from __future__ import annotations

import contextvars
import os
import signal
import threading
from collections.abc import Callable
from datetime import datetime
from importlib import import_module
from multiprocessing import parent_process
from multiprocessing.connection import Connection, wait
from typing import Any

from msgspec import Raw, Struct, json

from batuta.authoring.attempt import ActivityInfo, CompleteLater, current_activity
from batuta.authoring.definitions import Activity
from batuta.authoring.failures import to_failure
from batuta.authoring.tokens import AttemptRef
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.serde import Codec, encode

DONE, FAILED, BEAT, LATER = b"+", b"-", b"~", b"?"
"""The first byte of what comes back."""


class Request(Struct, kw_only=True):
    """One attempt, to be executed."""

    module: str
    function: str
    name: str
    arguments: Raw
    limit: int
    key: str
    attempt: int
    run_id: RunId
    id: str
    seq: int
    started_at: datetime
    namespace: str
    ref: AttemptRef
    last_details: str | None


class ChildAttempt:
    """The attempt, as its code sees it in this process."""

    def __init__(self, request: Request, send: Callable[[bytes], None]) -> None:
        self._request, self._send, self._details = request, send, request.last_details

    def info(self) -> ActivityInfo:
        asked = self._request
        return ActivityInfo(
            key=asked.key,
            name=asked.name,
            attempt=asked.attempt,
            run_id=asked.run_id,
            id=asked.id,
            seq=asked.seq,
            started_at=asked.started_at,
            namespace=asked.namespace,
            ref=asked.ref,
            last_details=self._details,
            is_lost=bool,  # never: a process whose attempt is lost is killed
        )

    def heartbeat(self, details: Any) -> None:
        data = b"" if details is None else encode(details, "the details of a heartbeat", self._request.limit)
        if data:
            self._details = data.decode()
        self._send(BEAT + data)


def serve(pipe: Connection) -> None:
    """The life of the process. It ends with the pipe, and with the worker."""
    # A signal to the whole group asks the worker to stop, which waits for us or kills us.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=_end_with_worker, daemon=True).start()
    lock = threading.Lock()

    def send(frame: bytes) -> None:
        with lock:
            pipe.send_bytes(frame)

    try:
        while True:
            send(_answer(json.decode(pipe.recv_bytes(), type=Request), send))
    except (EOFError, OSError):
        return


def _end_with_worker() -> None:
    worker = parent_process()
    if worker is not None:
        wait([worker.sentinel])
        os._exit(1)


def _answer(request: Request, send: Callable[[bytes], None]) -> bytes:
    try:
        fn, codec = _find(request)
        args, kwargs = codec.decode_args(request.arguments)
        context = contextvars.Context()
        context.run(current_activity.set, ChildAttempt(request, send))
        return DONE + codec.encode_result(context.run(fn, *args, **kwargs), request.limit)
    except CompleteLater:
        return LATER
    except BaseException as error:  # noqa: BLE001 - whatever an activity raises is its answer
        failure = to_failure(error)
        failure.retryable = failure.retryable and not isinstance(error, InvalidInput)
        return FAILED + json.encode(failure)


def _find(request: Request) -> tuple[Callable[..., Any], Codec]:
    found = getattr(import_module(request.module), request.function)
    if isinstance(found, Activity):
        return found.fn, found.codec
    return found, Codec(found, f"activity {request.name!r}")
