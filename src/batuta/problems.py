"""Errors as problem details (RFC 9457): what an HTTP answer says of each of ours."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct, json

from batuta import errors
from batuta.errors import BatutaError

MEDIA_TYPE = "application/problem+json"
TRACE_HEADER = "X-Trace-Id"
_TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-[0-9a-f]{16}-[0-9a-f]{2}")
_WORD = re.compile(r"(?<!^)(?=[A-Z])")
_NO_TRACE = "0" * 32


class Problem(Struct, kw_only=True):
    """One answer that says why something was not done."""

    status: int
    code: str
    """For programs; it stays the same when the words change."""
    title: str
    detail: str
    """The problem, the thing that has it, and what to do next."""
    retry_after: float | None = None
    """Seconds after which it may work."""
    more: dict[str, Any] = {}
    """Further members, such as the id and state of the run."""

    def document(self, trace_id: str) -> dict[str, Any]:
        """The members of the answer's body."""
        wait = {} if self.retry_after is None else {"retry_after": self.retry_after}
        return {
            "type": f"urn:batuta:problem:{self.code}",
            "title": self.title,
            "status": self.status,
            "detail": self.detail,
            "code": self.code,
            "trace_id": trace_id,
            **wait,
            **self.more,
        }

    def body(self, trace_id: str) -> bytes:
        return json.encode(self.document(trace_id))

    def headers(self, trace_id: str) -> dict[str, str]:
        wait = {} if self.retry_after is None else {"Retry-After": str(max(1, -int(-self.retry_after // 1)))}
        return {"Content-Type": MEDIA_TYPE, "Cache-Control": "no-store", TRACE_HEADER: trace_id} | wait


_STATUS: tuple[tuple[type[BaseException], int, str], ...] = (
    (errors.TooLarge, 413, ""),
    (errors.InvalidInput, 400, ""),
    (errors.UnknownLetter, 404, "unknown_dead_letter"),
    (errors.LetterResolved, 409, "dead_letter_resolved"),
    (errors.AlreadyStarted, 409, ""),
    (errors.IdempotencyKeyReused, 409, ""),
    (errors.IdempotencyInProgress, 409, ""),
    (errors.ScheduleExists, 409, ""),
    (errors.FlowConflict, 409, ""),
    (errors.WrongWorkflow, 409, ""),
    (errors.RunClosed, 409, ""),
    (errors.RunOpen, 409, ""),
    (errors.RunMoved, 409, ""),
    (errors.NotParked, 409, ""),
    (errors.LostAttempt, 409, ""),
    (errors.RunNotCompleted, 409, ""),
    (errors.PayloadSealed, 409, ""),
    (errors.QuotaExceeded, 429, ""),
    (errors.LimitReached, 429, ""),
    (errors.GateRefused, 503, ""),
    (errors.UpdateRejected, 422, ""),
    (errors.UpdateFailed, 422, ""),
    (errors.QueryFailed, 422, ""),
    (errors.BadData, 400, ""),
    (errors.StoreUnavailable, 503, ""),
    (errors.StoreError, 503, ""),
    (LookupError, 404, ""),
)
"""The first class that fits gives the status. The code is the error's own name unless one stands here."""

_HIDDEN: tuple[tuple[type[BaseException], str], ...] = (
    (errors.StoreFull, "the database has no room: nothing was written; make room, then try again"),
    (errors.StoreUnavailable, "the database is away or locked: nothing was written; try again"),
    (
        errors.OutcomeUnknown,
        "the connection to the database broke during a write, which may or may not be durable: look, then try again",
    ),
    (
        errors.SchemaMismatch,
        "the database has another schema than this server: run `batuta migrate`, or upgrade the server",
    ),
    (errors.PayloadRefused, "this server lacks the keys of the namespace's payloads: give it BATUTA_KEYS"),
    (errors.AuditKeyMissing, "this server lacks the key of the audit log: give it BATUTA_AUDIT_KEY"),
    (
        errors.BadData,
        "the database cannot hold a value of this request: a number is too large, or a text is odd; send another",
    ),
    (errors.StoreError, "the database failed: the server's log tells more under this trace id"),
)
"""Errors whose own words may name hosts, files or statements: these are said in their place."""

_MEMBERS = ("id", "state", "quota", "limit", "used")


async def send_problem(problem: Problem, trace_id: str, send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Answer an ASGI request with it."""
    headers = [(name.lower().encode(), value.encode()) for name, value in problem.headers(trace_id).items()]
    await send({"type": "http.response.start", "status": problem.status, "headers": headers})
    await send({"type": "http.response.body", "body": problem.body(trace_id)})


def code_of(kind: type[BaseException]) -> str:
    """The code of an error: its name in snake case, unless the table has another."""
    for known, _, code in _STATUS:
        if code and issubclass(kind, known):
            return code
    return _WORD.sub("_", kind.__name__).lower()


def problem_of(error: BaseException) -> Problem:
    """The problem that an error is for the caller. Errors that are not ours tell nothing of themselves."""
    status = next((status for known, status, _ in _STATUS if isinstance(error, known)), 500)
    if not isinstance(error, BatutaError) or status == 500:
        return internal_error()
    code = code_of(type(error))
    detail = next((words for kind, words in _HIDDEN if isinstance(error, kind)), None) or errors.words_of(error, 4_000)
    wait = getattr(error, "retry_after", None)
    if isinstance(error, errors.StoreUnavailable):
        wait = 1.0
    members = {
        name: getattr(error, name) for name in _MEMBERS if isinstance(getattr(error, name, None), str | int | float)
    }
    return Problem(status=status, code=code, title=title_of(code), detail=detail, retry_after=wait, more=members)


def internal_error() -> Problem:
    return Problem(
        status=500,
        code="internal_error",
        title="Internal error",
        detail="the server failed and its log tells why under this trace id: try again, and report it if it stays",
    )


def title_of(code: str) -> str:
    """A code in words."""
    return code.replace("_", " ").capitalize()


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace id of a W3C `traceparent`; None when it is none."""
    found = _TRACEPARENT.fullmatch((traceparent or "").strip())
    return None if found is None or found[1] == _NO_TRACE else found[1]
