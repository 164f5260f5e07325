"""What the code of an activity may ask of the attempt that it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from msgspec import Struct, json

from batuta.authoring.tokens import AttemptRef
from batuta.errors import WorkerError
from batuta.ids import RunId
from batuta.serde import decode, decoder_for

if TYPE_CHECKING:
    from batuta.authoring.checkpoints import BatchInfo
    from batuta.authoring.transactions import Transaction

T = TypeVar("T")


class ActivityInfo(Struct, frozen=True, kw_only=True):
    """Which call of which activity this is."""

    key: str
    """The same over retries, crashes and a retry from the failed step: pass it on as the idempotency key."""
    name: str
    attempt: int
    run_id: RunId
    id: str
    """Of the run that called it, as are `run_id` and `seq`, also where another queue executes it."""
    seq: int
    started_at: datetime
    namespace: str
    ref: AttemptRef
    """What `token` names."""
    last_details: str | None = None
    """JSON of the last heartbeat's details."""
    is_lost: Callable[[], bool]
    trace: str = ""
    """The W3C `traceparent` that its run was started with."""
    headers: Mapping[str, str] = {}
    """What its run was started with besides its arguments."""

    @property
    def token(self) -> str:
        """Names this attempt to whoever completes it from outside: `client.complete(token, value)`."""
        return self.ref.token()

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for this attempt any more. Asked anew each time; for sync code, which can't be
        interrupted."""
        return self.is_lost()

    @property
    def details(self) -> Any:
        """What the last heartbeat of this call brought, of this attempt or one before, as plain JSON values."""
        return None if self.last_details is None else json.decode(self.last_details)

    def details_as(self, kind: type[T]) -> T | None:
        """The details as a value of that type; None when there are none. Raises InvalidInput when they do not fit."""
        if self.last_details is None:
            return None
        what = f"the heartbeat details of activity {self.name!r}"
        value: T = decode(self.last_details, decoder_for(kind, what), what)
        return value


class CompleteLater(BaseException):
    """Raised by an activity that has done its part: its answer comes from outside, by `activity_info().token`.

    The attempt then holds no place, and its run needs no memory. Not an Exception: `except Exception` must not catch
    it.
    """


class Attempt(Protocol):
    """A try of an activity, as its code sees it through the functions below. Given by the backend."""

    def info(self) -> ActivityInfo: ...
    def heartbeat(self, details: Any) -> None: ...

    def checkpoint(self, state: Any) -> Future[None]:
        """Done when it is durable."""
        ...

    def progress(self, value: Any) -> None: ...
    def batch(self) -> Future[BatchInfo]: ...

    def transaction(self) -> Transaction:
        """Raises WorkerError when it has none."""
        ...


current_activity: ContextVar[Attempt | None] = ContextVar("batuta_activity", default=None)
"""Set in the context of every attempt; the info is only made when it is asked for."""


def current_attempt(asked: str) -> Attempt:
    """The attempt whose code asks. Raises WorkerError when `asked` is called elsewhere."""
    found = current_activity.get()
    if found is None:
        raise WorkerError(
            f"{asked} was called outside an activity that a worker runs; a thread that an activity starts itself must "
            f"run in its context: Thread(target=contextvars.copy_context().run, args=(work,))"
        )
    return found


def activity_info() -> ActivityInfo:
    """Inside an activity: which call this is, and its stable key."""
    return current_attempt("activity_info()").info()


def heartbeat(details: Any = None) -> None:
    """Inside an activity: say that it is alive, and how far it has come. Cheap, and safe in any thread that has the
    activity's context.

    `details` are kept for the next attempt, which reads them in `activity_info().details`; None keeps those before.
    Raises ActivityCancelled or LostAttempt when nobody waits for this attempt any more, so that its code can stop.
    """
    current_attempt("heartbeat()").heartbeat(details)
