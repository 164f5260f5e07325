"""Deadlines that travel: how much time is left, in workflows, activities and requests, and headers that tell it.

A deadline is passed on as the time that is left, so that clocks need not agree: `X-Timeout-Left: 1.250` over HTTP,
`grpc-timeout: 1250m` over gRPC.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from batuta.authoring.activity.attempt import current_activity
from batuta.authoring.call_options import check_seconds
from batuta.authoring.workflow.context import current_runtime
from batuta.clock import SystemClock
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput
from batuta.ids import new_trace_id
from batuta.problems import Problem, send_problem, title_of, trace_id_of

HTTP_HEADER = "X-Timeout-Left"
GRPC_HEADER = "grpc-timeout"
_GRPC = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNITS = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_LONGEST = 1e8

_monotonic = SystemClock.monotonic
_deadline: ContextVar[float | None] = ContextVar("batuta_deadline", default=None)
"""The deadline of a request, by the monotonic clock."""


def timeout_left() -> float | None:
    """Seconds until the caller no longer waits; None when there is no limit. Never negative.

    In a workflow: until the run exceeds its timeout, or its chain the execution timeout, the same in every replay. In
    an activity: until the attempt, the call or its run is over its time. In other code: what `deadline()` or the
    middleware `Deadlines` has set.
    """
    runtime, attempt = current_runtime.get(), current_activity.get()
    if runtime is not None:
        return runtime.timeout_left()
    found = [] if attempt is None else [attempt.time_left()]
    if (until := _deadline.get()) is not None:
        found.append(max(0.0, until - _monotonic()))
    return min((one for one in found if one is not None), default=None)


@contextmanager
def deadline(seconds: Duration | None) -> Iterator[None]:
    """Code in this block, and tasks that it starts, have so many seconds left, or fewer if there was a limit before."""
    given: float | None = in_seconds(seconds)
    if given is not None and given != 0:
        check_seconds("deadline", given)
    before = _deadline.get()
    until = None if given is None else _monotonic() + given
    token = _deadline.set(before if until is None else until if before is None else min(until, before))
    try:
        yield
    finally:
        _deadline.reset(token)


def deadline_headers(*, grpc: bool = False) -> dict[str, str]:
    """The header that tells the next one how much time is left, for an HTTP request or (`grpc`) as metadata; empty when
    there is no limit."""
    left = timeout_left()
    if left is None:
        return {}
    if not grpc:
        return {HTTP_HEADER: f"{left:.3f}"}
    millis = round(left * 1000)
    return {GRPC_HEADER: f"{millis}m" if millis < 10**8 else f"{min(round(left), 10**8 - 1)}S"}


def read_deadline(headers: Mapping[str, str]) -> float | None:
    """Seconds that the caller has left, by the headers of its request; None when they set no limit. Raises InvalidInput
    for rubbish."""
    lower = {name.lower(): value for name, value in headers.items()}
    text = lower.get(HTTP_HEADER.lower())
    if text is not None:
        try:
            seconds = float(text)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= _LONGEST:
            raise InvalidInput(f"{HTTP_HEADER}: {text[:100]!r} must be a number of seconds, such as 1.5")
        return seconds
    text = lower.get(GRPC_HEADER)
    if text is None:
        return None
    found = _GRPC.fullmatch(text)
    if found is None:
        raise InvalidInput(f"{GRPC_HEADER}: {text[:100]!r} must be a number and a unit, such as 1500m")
    return min(int(found[1]) * _UNITS[found[2]], _LONGEST)  # clients without a deadline may send 99999999H


Scope = MutableMapping[str, Any]
Application = Callable[[Scope, Any, Any], Awaitable[None]]


class Deadlines:
    """ASGI middleware: a request that says how much time its caller has left is handled within `deadline()`.

    A request without time left gets 504 `deadline_exceeded`; an unreadable header gets 400."""

    def __init__(self, app: Application) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            left = read_deadline(headers)
        except InvalidInput as error:
            await _refuse(400, "invalid_input", str(error), headers, send)
            return
        if left == 0:
            await _refuse(504, "deadline_exceeded", "the caller has no time left: nothing was done", headers, send)
            return
        with deadline(left):
            await self._app(scope, receive, send)


async def _refuse(status: int, code: str, detail: str, headers: Mapping[str, str], send: Any) -> None:
    problem = Problem(status=status, code=code, title=title_of(code), detail=detail)
    trace_id = trace_id_of(headers.get("traceparent")) or new_trace_id()
    await send_problem(problem, trace_id, send)
