"""CPU-bound activities: each attempt has a process to itself while it runs.

A process that takes too long, or is not wanted any more, is killed; the others do not notice.
"""

from __future__ import annotations

import asyncio
import atexit
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from msgspec import Raw, json

from batuta.authoring.activity.attempt import CompleteLater
from batuta.authoring.client.messages import Draft
from batuta.authoring.failures.conversion import to_failure
from batuta.engine.activities.call import Call, GatesLapsed
from batuta.engine.activities.heartbeats import Heartbeats
from batuta.engine.activities.process_child import (
    ANSWERS,
    BEAT,
    DONE,
    FAILED,
    LATER,
    PROGRESS,
    PUBLISH,
    SAVE,
    TOKEN,
    Request,
    facts_of,
    serve,
)
from batuta.engine.activities.threads import DaemonExecutor, wait_for_permission
from batuta.errors import ProcessDied
from batuta.journal.failures import Failure

_spawn = multiprocessing.get_context("spawn")  # fork would copy the locks and sockets of a process full of threads


class _Draft(Draft, kw_only=True):
    """With a payload that is JSON already."""

    payload: Raw


class Raised(Exception):
    """The activity raised in its process. `failure` is what remains of that."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Child:
    """A process that executes one attempt at a time, with a process group of its own.

    A thread waits for its end. That of the pipe tells nothing: processes that the activity has begun may have it, too.
    """

    def __init__(self) -> None:
        self.pipe, theirs = _spawn.Pipe()
        self._process = _spawn.Process(target=serve, args=(theirs,), name="batuta-activity")
        self._process.start()
        theirs.close()
        self.was_idle = False
        self._ended = threading.Event()
        self._closing = threading.Lock()
        threading.Thread(target=self._wait, name="batuta-process-end", daemon=True).start()

    def kill(self) -> None:
        """Kill it, and the processes that it has begun."""
        if not self._ended.is_set():
            self._kill_group()
            self._process.kill()  # it may not have got as far as to have a group

    def _kill_group(self) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid or 0, signal.SIGKILL)

    def _wait(self) -> None:
        if hasattr(os, "waitid"):
            # Not collected yet, so that the number of its group is still its own.
            with suppress(ChildProcessError):
                os.waitid(os.P_PID, self._process.pid or 0, os.WEXITED | os.WNOWAIT)
        self._kill_group()
        self._process.join()
        self._ended.set()
        with self._closing, suppress(OSError):
            if not self.pipe.closed:  # what it said is still read, and then there is an end
                with socket.socket(fileno=os.dup(self.pipe.fileno())) as end:
                    end.shutdown(socket.SHUT_RDWR)

    def asked(self, request: bytes) -> bool:
        """Give it work. False when it is not there any more."""
        try:
            self.pipe.send_bytes(request)
        except OSError:
            return False
        return True

    def reaped(self) -> int | None:
        """It is killed, or about to end: wait for that. Its exit code, negative for a signal."""
        if not self._ended.wait(5):
            return None
        with self._closing:
            self.pipe.close()
        return self._process.exitcode


class Processes:
    """The processes of one worker, made when they are needed and kept for the next attempt."""

    def __init__(self, beats: Heartbeats, may_act: Callable[[], bool]) -> None:
        self._beats, self._may_act = beats, may_act
        self._threads = DaemonExecutor("batuta-process")
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._busy: dict[Call, Child] = {}
        self._closed = False
        atexit.register(self.close)

    def start(self, loop: asyncio.AbstractEventLoop, call: Call, limit: int) -> asyncio.Future[bytes]:
        """Execute an attempt. The future has the JSON of its result, or what it raised."""
        return loop.run_in_executor(self._threads, self._execute, call, limit)

    def kill(self, call: Call) -> None:
        """The attempt is not wanted any more (`call.over` says so already)."""
        with self._lock:
            if call in self._busy:
                self._busy[call].kill()

    def close(self) -> None:
        """Kill all of them. What they were at is lost."""
        atexit.unregister(self.close)
        if self._pid != os.getpid():
            return  # forked: they are the parent's
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            for child in (*idle, *self._busy.values()):
                child.kill()
        for child in idle:
            child.reaped()
        self._threads.shutdown()

    # -- in a thread

    def _execute(self, call: Call, limit: int) -> bytes:
        wait_for_permission(call, self._may_act)
        request = json.encode(_request(call, limit))
        child = self._take(call)
        try:
            call.check_gates()
        except GatesLapsed:
            self._give_back(call, child)
            raise
        while child.was_idle and not child.asked(request):  # it died meanwhile, and nothing has begun
            child.reaped()
            child = self._take(call)
        try:
            if not child.was_idle:
                child.pipe.send_bytes(request)
            answer = self._listen(call, child)
        except (EOFError, OSError):
            with self._lock:
                self._busy.pop(call, None)
            code = child.reaped()
            if call.over:
                raise asyncio.CancelledError from None
            raise ProcessDied(
                f"the process of activity {call.pending.name!r} ended before it answered "
                f"({f'killed by signal {-code}' if code is not None and code < 0 else f'exit code {code}'}): "
                f"it crashed, or something killed it, as the system does when memory runs out"
            ) from None
        self._give_back(call, child)
        return _read(answer)

    def _take(self, call: Call) -> Child:
        with self._lock:
            child = self._idle.pop() if self._idle else None
        child = child or Child()
        with self._lock:
            if not call.over and not self._closed:
                self._busy[call] = child
                return child
        child.kill()
        child.reaped()
        raise asyncio.CancelledError

    def _listen(self, call: Call, child: Child) -> bytes:
        while True:
            frame = child.pipe.recv_bytes()
            if frame[:1] in ANSWERS:
                return frame
            self._hear(call, child, frame[:1], frame[1:].decode())

    def _hear(self, call: Call, child: Child, kind: bytes, text: str) -> None:
        """Something that its code says or asks while it runs."""
        if kind == BEAT:
            self._beats.note(call, text or None)
        elif kind == PROGRESS:
            self._beats.note_progress(call, text)
        elif kind == TOKEN:
            child.pipe.send_bytes(DONE + json.encode(call.ask()))
        elif kind == PUBLISH:
            child.pipe.send_bytes(_asked(lambda: call.publish(json.decode(text, type=_Draft))))
        else:
            child.pipe.send_bytes(_asked(lambda: self._beats.save(call, text) if kind == SAVE else call.batch()))

    def _give_back(self, call: Call, child: Child) -> None:
        with self._lock:
            self._busy.pop(call, None)
            if not call.over and not self._closed:  # else it was, or is being, killed
                child.was_idle = True
                self._idle.append(child)
                return
        child.kill()
        child.reaped()


def _request(call: Call, limit: int) -> Request:
    fn = call.activity.fn
    return Request(
        **facts_of(call.info()),
        module=fn.__module__,
        function=fn.__qualname__,
        arguments=Raw(call.pending.data),
        limit=limit,
        time_left=call.time_left(),
    )


def _asked(ask: Callable[[], Future[Any]]) -> bytes:
    try:
        return DONE + json.encode(ask().result())
    except Exception as error:  # noqa: BLE001 - whatever it is, the code that asked is told
        return FAILED + json.encode(to_failure(error))


def _read(answer: bytes) -> bytes:
    if answer[:1] == DONE:
        return answer[1:]
    if answer[:1] == LATER:
        raise CompleteLater
    raise Raised(json.decode(answer[1:], type=Failure))
