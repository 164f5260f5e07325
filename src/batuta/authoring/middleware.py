"""Middleware: code of the user around starts, runs and attempts of activities, and ears for events."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from batuta.authoring.activity.attempt import ActivityInfo, Attempt
from batuta.authoring.workflow.context import RunInfo, info
from batuta.errors import InvalidInput
from batuta.ids import RunId
from batuta.telemetry import EVENTS, Event

Proceed = Callable[[], Awaitable[Any]]
"""Calls the next middleware and, after the last, the wrapped operation."""

AroundStart = Callable[[Sequence["Start"], Proceed], Awaitable[None]]
"""As `Middleware.start` is."""

TRACE = "traceparent"
"""The header that is kept as a run's trace."""


class Start(Struct, kw_only=True):
    """A run on its way into the store. `headers` and `tags` may be added to."""

    name: str
    kind: str
    """workflow or job; in `begin` also activity."""
    id: str | None
    queue: str
    tags: dict[str, str]
    headers: dict[str, str]
    """Kept in the journal, and given to everything that the run calls and starts."""


class Sent(Struct):
    """A signal or update that a client is about to send."""

    kind: str
    """signal or update."""
    name: str
    id: str
    """The id of the run that it is for."""
    headers: dict[str, str]
    """Kept with the message, and in the journal of the run that reads it."""


class AttemptFacts(Struct, frozen=True):
    """Facts about the attempt."""

    name: str
    attempt: int
    id: str
    """The id of the run that called it, as are `run_id` and `seq`."""
    run_id: RunId
    seq: int
    kind: str
    """activity or job."""
    queue: str


class Described(Attempt, Protocol):
    """An attempt, as the backend gives it to middleware."""

    def facts(self) -> AttemptFacts: ...


class ActivityCall(Struct, eq=False, gc=False):
    """An attempt of an activity, or of a job, that is about to be made."""

    of: Described
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    """Decoded; you may replace them. An activity in a process gets its original arguments."""
    trace: str
    """The W3C `traceparent` that the run was started with."""
    headers: Mapping[str, str]
    """The headers of the run; they must not be changed here."""

    @property
    def facts(self) -> AttemptFacts:
        """Which attempt of what."""
        return self.of.facts()

    def info(self) -> ActivityInfo:
        """The same as `activity_info()` in its code."""
        return self.of.info()


class RunCall(Struct, eq=False):
    """A run whose code is about to be called: for the first time, or again in a replay."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @property
    def info(self) -> RunInfo:
        """The same as `info()` in its code, as of now."""
        return info()

    @property
    def replaying(self) -> bool:
        """Whether this has happened before: do not report it again."""
        return info().replaying


class Middleware:
    """Override what you need; other methods cost nothing.

    Give it to `connect(middleware=[...])`, for the client and all its workers, or to one `worker(middleware=[...])`.
    The first of a list is the outermost.
    """

    events: ClassVar[Sequence[type[Event]]] = EVENTS
    """The events that `event` receives."""
    missing: ClassVar[str] = ""
    """`begin` is for runs that came without this header; empty: for all."""
    alike: ClassVar[bool] = False
    """Set it to True if `before` sets the same variables whenever it does not return True: then the next attempt may
    share the context. Otherwise an attempt for which it has set something gets its own context, which costs a
    little."""

    def before_start(self) -> Mapping[str, str] | str | AroundStart:
        """Return what to put around a client call that starts runs: `start`. If that would only add headers, the same
        for all of them, return the headers instead, which saves most of the cost; a string is the `traceparent`.

        It runs in the caller's context, and its errors reach the caller. Called only if this is the only middleware
        with `start`; `start` must also work without it.
        """
        return self.start

    async def start(self, starts: Sequence[Start], proceed: Proceed) -> None:
        """Around a client call that starts runs or enqueues jobs: all of them, in one call.

        They are durable when `proceed()` returns; with `transaction=`, only prepared for the caller's transaction.
        Exceptions reach the caller.
        """
        await proceed()

    async def send(self, message: Sent, proceed: Proceed) -> None:
        """Around a client call that signals or updates a run.

        When `proceed()` returns, a signal is durable, and an update is answered. Exceptions reach the caller.
        """
        await proceed()

    def begin(self, start: Start) -> None:
        """In the worker, in the first turn of a run, which may come from a schedule or from a client without
        middleware: headers that are added are kept in its journal. Not called in replay; but a turn that did not become
        durable is made again."""

    async def run(self, run: RunCall, proceed: Proceed) -> Any:
        """Around the code of a workflow; returns the result.

        It runs again in each replay and must do the same (`run.replaying` says so), without its own activities, timers
        or messages.
        """
        return await proceed()

    def before(self, trace: str, headers: Mapping[str, str]) -> bool | Callable[[], object]:
        """Whether `activity` is to be around an attempt of an async activity: where it only sets context variables,
        set them here and return False, which saves most of its cost; or return a function that sets them, which is
        called for this attempt and, in place of `before`, for the run's later ones. With the trace and headers of the
        run, in the attempt's context. Asked where this is all the middleware around activities; `activity` must do
        without."""
        return True

    async def activity(self, call: ActivityCall, proceed: Proceed) -> Any:
        """Around each attempt of an activity or job; it returns the result. On the worker's event loop, also when the
        activity itself is in a thread, which gets the context variables that are set here, or in a process."""
        return await proceed()

    def event(self, event: Event) -> None:
        """Something happened, and is durable. It must not block: it is called on the worker's event loop."""


def check_middleware(middleware: Sequence[Middleware]) -> list[Middleware]:
    """Raises InvalidInput."""
    if isinstance(middleware, Middleware) or not isinstance(middleware, Sequence):
        raise InvalidInput(f"middleware={middleware!r} must be a list of instances of batuta.Middleware")
    for one in middleware:
        if not isinstance(one, Middleware):
            raise InvalidInput(f"{one!r} is not middleware: give an instance of a class derived from batuta.Middleware")
    return list(middleware)
