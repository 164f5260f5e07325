"""The one place that maps errors: of the directory and of ours to gRPC statuses, and those to errors of activities.

| What happened | gRPC status | In an activity |
|---|---|---|
| 400, 410 | INVALID_ARGUMENT; FAILED_PRECONDITION where the state forbids it | InvalidArgument; Refused |
| 403 | PERMISSION_DENIED | Refused |
| 404 | NOT_FOUND | NotFound |
| 409 | ABORTED | BridgeError, again |
| 429, an empty bucket | RESOURCE_EXHAUSTED | RateLimited, when tokens come |
| 500, an answer that cannot be read | INTERNAL | BridgeError, again |
| 503, no connection | UNAVAILABLE | BridgeUnavailable, again |
| the store of kept answers is away | UNAVAILABLE | BridgeUnavailable, again |
| breaker open | UNAVAILABLE | CircuitOpen, when it lets calls in |
| no answer in time | DEADLINE_EXCEEDED | BridgeUnavailable, again |
"""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

import grpc

from batuta.errors import (
    BreakerOpen,
    GateRefused,
    IdempotencyInProgress,
    IdempotencyKeyReused,
    InvalidInput,
    StoreUnavailable,
)
from pixdict.bridge.directory import BrokenAnswer, DirectoryUnreachable
from pixdict.dict.problems import DirectoryRefused
from pixdict.errors import BridgeError, BridgeUnavailable, CircuitOpen, InvalidArgument, NotFound, RateLimited, Refused
from pixdict.proto import bridge_pb2 as pb

BREAKER_OPEN = "breaker_open"
PROBLEM = "pixdict-problem-bin"
"""The key of a Problem in the trailing metadata."""

Code = grpc.StatusCode

_BY_STATUS = {
    403: Code.PERMISSION_DENIED,
    404: Code.NOT_FOUND,
    409: Code.ABORTED,
    410: Code.FAILED_PRECONDITION,
    429: Code.RESOURCE_EXHAUSTED,
    500: Code.INTERNAL,
    503: Code.UNAVAILABLE,
}
STATE = frozenset(
    """EntryLimitExceeded EntryAlreadyExists EntryKeyOwnedByDifferentPerson EntryKeyInCustodyOfDifferentParticipant
    EntryLockedByClaim EntryBlocked EntryWithFraudRelatedRestriction EntryCannotBeQueriedForBookTransfer
    TaxIdNumberBlocked UserOrAccountWithFraudRelatedRestriction ClaimTypeInconsistent ClaimAlreadyExistsForKey
    ClaimResultingEntryAlreadyExists ClaimOperationInvalid ClaimResolutionPeriodNotEnded
    ClaimCompletionPeriodNotEnded""".split()
)
"""Problems with status 400 that another state of the directory would not have."""


class DeadlineExceeded(Exception):
    """The time of the call is over."""


class Failure(NamedTuple):
    """A failure as a gRPC client sees it."""

    code: grpc.StatusCode
    problem: pb.Problem

    @property
    def text(self) -> str:
        return f"{self.problem.name}: {self.problem.detail}" if self.problem.detail else self.problem.name


def failure_of(error: BaseException) -> Failure:
    """What to tell a client."""
    match error:
        case DirectoryRefused():
            return _refused(error)
        case BreakerOpen():
            return _ours(Code.UNAVAILABLE, BREAKER_OPEN, error, error.retry_after)
        case GateRefused():
            return _ours(Code.RESOURCE_EXHAUSTED, "rate_limited", error, error.retry_after)
        case DeadlineExceeded():
            return _ours(Code.DEADLINE_EXCEEDED, "deadline_exceeded", error)
        case BrokenAnswer():
            return _ours(Code.INTERNAL, "broken_answer", error)
        case DirectoryUnreachable():
            return _ours(Code.UNAVAILABLE, "directory_unreachable", error)
        case StoreUnavailable():
            return _ours(Code.UNAVAILABLE, "store_unavailable", error)
        case IdempotencyInProgress():
            return _ours(Code.ABORTED, "request_in_progress", error)
        case IdempotencyKeyReused():
            return _ours(Code.INVALID_ARGUMENT, "RequestIdAlreadyUsed", error)
        case InvalidInput() | InvalidArgument():
            return _ours(Code.INVALID_ARGUMENT, "invalid_argument", error)
    return _ours(Code.INTERNAL, "internal", f"{type(error).__name__} in the Bridge; its log says more")


def _refused(error: DirectoryRefused) -> Failure:
    code = _BY_STATUS.get(error.status)
    if code is None:
        code = Code.INVALID_ARGUMENT if 400 <= error.status < 500 else Code.INTERNAL
    if error.status == 400 and error.name in STATE:
        code = Code.FAILED_PRECONDITION
    problem = pb.Problem(
        name=error.name,
        http_status=error.status,
        title=error.problem().title,
        detail=error.detail or "",
        correlation_id=error.correlation_id or "",
        retry_after=error.retry_after or 0,
        violations=[
            pb.Violation(reason=one.reason, value=one.value or "", property=one.property or "")
            for one in error.violations
        ],
    )
    return Failure(code, problem)


def _ours(code: grpc.StatusCode, name: str, detail: object, retry_after: float = 0.0) -> Failure:
    return Failure(code, pb.Problem(name=name, detail=str(detail), retry_after=retry_after))


_AWAY = frozenset((Code.UNAVAILABLE, Code.DEADLINE_EXCEEDED))
_REFUSED = frozenset((Code.FAILED_PRECONDITION, Code.PERMISSION_DENIED, Code.UNAUTHENTICATED, Code.ALREADY_EXISTS))
_WRONG = frozenset((Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.UNIMPLEMENTED))
_USUAL_WAIT = 60.0


def error_of(error: grpc.aio.AioRpcError) -> Exception:
    """What an activity raises, with the class that decides whether it is tried again."""
    code, text = error.code(), error.details() or error.code().name
    if code in _AWAY:
        return CircuitOpen(text) if problem_of(error).name == BREAKER_OPEN else BridgeUnavailable(text)
    if code is Code.NOT_FOUND:
        return NotFound(text)
    if code in _WRONG:
        return InvalidArgument(text)
    if code in _REFUSED:
        return Refused(text)
    if code is Code.RESOURCE_EXHAUSTED:
        wait = problem_of(error).retry_after
        return RateLimited(wait if isfinite(wait) and wait > 0 else _USUAL_WAIT, text)
    return BridgeError(f"{code.name}: {text}")


def problem_of(error: grpc.aio.AioRpcError) -> pb.Problem:
    """What the Bridge said; empty when it was not the Bridge that failed."""
    problem = pb.Problem()
    metadata: Any = error.trailing_metadata() or ()
    for key, value in metadata:
        if key == PROBLEM and isinstance(value, bytes):
            problem.ParseFromString(value)
    return problem
