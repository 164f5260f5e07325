"""The attempt of an activity, as its code sees it."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import Future
from contextvars import ContextVar
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar

from msgspec import Struct, json
from msgspec.structs import replace

from batuta.authoring.activity.tokens import AttemptRef
from batuta.authoring.client.messages import Draft
from batuta.errors import WorkerError
from batuta.ids import RunId
from batuta.serde import decode, decoder_for

if TYPE_CHECKING:  # `import batuta` is everybody's, and it has no store
    from batuta.journal.store import Store

P = ParamSpec("P")
T = TypeVar("T")


class CallFacts(Struct, frozen=True, kw_only=True):
    """Which call of which activity an attempt is of."""

    key: str
    """The same over retries, crashes and a retry from the failed step: pass it on as the idempotency key."""
    name: str
    attempt: int
    run_id: RunId
    id: str
    """The id of the run that called it, as are `run_id` and `seq`, also where another queue executes it."""
    seq: int
    started_at: datetime
    namespace: str
    ref: AttemptRef
    """The attempt that `token` names."""
    last_details: str | None = None
    """JSON of the last heartbeat's details."""
    trace: str = ""
    """The W3C `traceparent` that its run was started with."""
    trace_id: str = ""
    """The trace id of `trace`; a run that came without one has one made from its id."""
    headers: Mapping[str, str] = {}
    """Headers of its run."""
    slot: datetime | None = None
    """The time that a schedule began its run, or this job, for; None when no schedule did."""


class ActivityInfo(CallFacts, frozen=True, kw_only=True):
    """Which call of which activity this is."""

    ask: Callable[[], bytes]
    """The secret of `token`. From the first time that it is asked for, the attempt can be completed from outside."""
    is_lost: Callable[[], bool]

    @property
    def token(self) -> str:
        """The token with which a client completes this attempt from outside: `client.complete(token, value)`.

        Only an attempt whose code has asked for its token can be completed from outside.
        """
        return replace(self.ref, secret=self.ask()).token()

    @property
    def cancelled(self) -> bool:
        """Whether this attempt no longer counts. For sync code, which cannot be interrupted; ask each time."""
        return self.is_lost()

    @property
    def details(self) -> Any:
        """Details of the last heartbeat of this call, of this or an earlier attempt, as plain JSON values."""
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


class BatchInfo(Struct, kw_only=True):
    """The outcome of a batch."""

    total: int
    """Jobs that the batch added. One that was there already, by its unique key or id, is not counted."""
    completed: int
    failed: int
    cancelled: int
    timed_out: int
    terminated: int
    not_completed: list[str]
    """The ids of those that did not complete, 1,000 of them at most."""

    @property
    def ok(self) -> bool:
        """Whether all of them completed."""
        return self.completed == self.total


class Attempt(Protocol):
    """A try of an activity, as its code sees it through the functions below. Given by the backend."""

    def info(self) -> ActivityInfo: ...
    def heartbeat(self, details: Any) -> None: ...

    def time_left(self) -> float | None:
        """Seconds until it is over its time, or its run is; None when there is no limit."""
        ...

    def checkpoint(self, state: Any) -> Future[None]:
        """Done when it is durable."""
        ...

    def progress(self, value: Any) -> None: ...
    def batch(self) -> Future[BatchInfo]: ...

    def publish(self, draft: Draft) -> Future[str]:
        """The message's id, when it is durable."""
        ...

    def store(self) -> Store:
        """That of its worker, for activities that belong to Batuta."""
        ...


current_activity: ContextVar[Attempt | None] = ContextVar("batuta_activity", default=None)
"""Set in the context of every attempt; the info is only made when it is asked for."""


def current_attempt(asked: str) -> Attempt:
    """The current attempt. Raises WorkerError when `asked` is called elsewhere."""
    found = current_activity.get()
    if found is None:
        raise WorkerError(
            f"{asked} was called outside an activity that a worker runs; a thread that an activity starts itself must "
            f"run in its context: Thread(target=contextvars.copy_context().run, args=(work,))"
        )
    return found


class AttemptVerb(Generic[P, T]):
    """Makes a function of an attempt one that its code calls: `await verb(...)` in async code, `verb.sync(...)` in code
    that runs in a thread or process."""

    def __init__(self, begin: Callable[Concatenate[Attempt, P], Future[T]]) -> None:
        self._begin, self._name, self.__doc__ = begin, begin.__name__, begin.__doc__
        of_begin = inspect.signature(begin)
        own = list(of_begin.parameters.values())[1:]
        self.__signature__ = of_begin.replace(parameters=own, return_annotation=inspect.Signature.empty)
        """For `help` and the like: without the attempt."""

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Awaitable[T]:
        name = self._name
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            raise WorkerError(
                f"{name}(...) was called where there is no event loop to await it: use {name}.sync(...)"
            ) from None
        return asyncio.wrap_future(self._begin(current_attempt(f"{name}()"), *args, **kwargs), loop=loop)

    def sync(self, *args: P.args, **kwargs: P.kwargs) -> T:
        """The same for code that is not async. It blocks."""
        name = self._name
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass  # what fails below must not seem to come from this error
        else:
            raise WorkerError(f"{name}.sync(...) would stop everything else in this event loop: use await {name}(...)")
        return self._begin(current_attempt(f"{name}.sync()"), *args, **kwargs).result()


def activity_info() -> ActivityInfo:
    """Inside an activity: which call this is, and its stable key."""
    return current_attempt("activity_info()").info()


def heartbeat(details: Any = None) -> None:
    """Inside an activity: report that it is alive, and how far it has come.

    Cheap, and safe in any thread that has the activity's context. The next attempt reads `details` in
    `activity_info().details`; None keeps the previous ones. Raises ActivityCancelled or LostAttempt when this attempt
    no longer counts, so that its code can stop.
    """
    current_attempt("heartbeat()").heartbeat(details)
