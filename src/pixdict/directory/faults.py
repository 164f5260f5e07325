"""Faults on purpose: what a test or a person makes the directory do wrong."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from pixdict.dict.operations import OPERATIONS

STATUSES = {409: "ResourceConflict", 429: "RateLimited", 500: "InternalServerError", 503: "ServiceUnavailable"}
ALL = "*"


class FaultKind(StrEnum):
    LATENCY = "latency"
    """The answer comes `seconds` later."""
    STATUS = "status"
    """Nothing is done; the answer has `status` (409, 429, 500 or 503) and maybe `retry_after`."""
    TIMEOUT = "timeout"
    """Nothing is done and nothing is answered, until the client goes away or `seconds` have passed (0: for ever)."""
    DROP = "drop"
    """Nothing is done; the connection is closed."""
    LOST_ANSWER = "lost_answer"
    """Everything is done; the connection is closed instead of an answer."""
    WRONG_SIGNATURE = "wrong_signature"
    """Everything is done; the answer is changed after it was signed."""


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One fault. It happens to the next `times` requests of an operation, or to all (None)."""

    kind: FaultKind
    operation: str = ALL
    times: int | None = 1
    seconds: float = 0.0
    status: int = 503
    retry_after: int | None = None

    def __post_init__(self) -> None:
        if self.operation != ALL and self.operation not in OPERATIONS:
            raise ValueError(f"unknown operation {self.operation!r}: choose * or one of {', '.join(OPERATIONS)}")
        if self.status not in STATUSES:
            raise ValueError(f"status {self.status}: choose one of {', '.join(map(str, STATUSES))}")
        if self.times is not None and self.times < 1:
            raise ValueError(f"times={self.times}: give 1 or more, or null for every request")
        if not 0 <= self.seconds <= 3600:
            raise ValueError(f"seconds={self.seconds}: give 0 to 3600")
        if self.retry_after is not None and self.retry_after < 0:
            raise ValueError(f"retry_after={self.retry_after}: give 0 or more")


class Faults:
    """The faults that are waiting. They are not durable: a directory that starts again has none."""

    def __init__(self) -> None:
        self._waiting: list[Fault] = []

    def add(self, kind: FaultKind | str, **options: object) -> Fault:
        """Add one; the options are the fields of `Fault`. Raises ValueError."""
        fault = Fault(kind=FaultKind(kind), **options)  # type: ignore[arg-type]  # checked by the struct's own rules
        self._waiting.append(fault)
        return fault

    def put(self, fault: Fault) -> None:
        """Add one that is made already."""
        self._waiting.append(fault)

    def clear(self) -> None:
        """Remove all."""
        self._waiting.clear()

    def all(self) -> list[Fault]:
        """Those that are waiting, oldest first."""
        return list(self._waiting)

    def take(self, operation: str) -> dict[FaultKind, Fault]:
        """What happens to this request: of each kind the oldest that fits, used up once."""
        taken: dict[FaultKind, Fault] = {}
        left: list[Fault] = []
        for fault in self._waiting:
            if fault.operation not in (ALL, operation) or fault.kind in taken:
                left.append(fault)
                continue
            taken[fault.kind] = fault
            if fault.times is None:
                left.append(fault)
            elif fault.times > 1:
                left.append(replace(fault, times=fault.times - 1))
        self._waiting = left
        return taken
