"""Middleware at work: chosen when a worker is made, so that without it nothing is asked on the way."""

from __future__ import annotations

import contextvars
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

from msgspec import Raw

from batuta.authoring.activity.attempt import current_activity
from batuta.authoring.client.start import check_headers
from batuta.authoring.definitions import Activity, ExecutionMode, Workflow
from batuta.authoring.middleware import TRACE, ActivityCall, Middleware, Proceed, RunCall, Sent, Start, check_middleware
from batuta.engine.activities.call import Call
from batuta.engine.activities.executor import Executor
from batuta.engine.machine.headers import headers_of, put_headers
from batuta.engine.machine.routing import RoutedCall
from batuta.engine.run.jobs import JobWorkflow
from batuta.engine.run.owned_run import OwnedRun
from batuta.journal.entries import StartInfo

log = logging.getLogger("batuta.engine")

T = TypeVar("T")
Handler = Callable[[T, Proceed], Awaitable[Any]]
Body = Callable[[tuple[Any, ...], dict[str, Any]], Awaitable[Any]]
Before = Callable[[str, Mapping[str, str]], bool | Callable[[], object]]


class MiddlewareStack:
    """The middleware of one client or worker, by what it does."""

    def __init__(self, middleware: Sequence[Middleware]) -> None:
        found = check_middleware(middleware)
        starts = [one for one in found if _overrides(one, "start")]
        self.start: list[Handler[Sequence[Start]]] = [one.start for one in starts]
        only = starts[0] if len(starts) == 1 and _speaks_for(starts[0], "start", "before_start") else None
        self.before_start = None if only is None else only.before_start
        self.send: list[Handler[Sent]] = [one.send for one in found if _overrides(one, "send")]
        self.begin = [one for one in found if _overrides(one, "begin")]
        self._begin_untraced = all(one.missing == TRACE for one in self.begin)
        self.run: list[Handler[RunCall]] = [one.run for one in found if _overrides(one, "run")]
        attempts = [one for one in found if _overrides(one, "activity")]
        self.activity: list[Handler[ActivityCall]] = [one.activity for one in attempts]
        only = attempts[0] if len(attempts) == 1 and _speaks_for(attempts[0], "activity", "before") else None
        self._before = None if only is None else only.before
        self._alike = only is not None and only.alike
        self.ears = [one for one in found if listens(one)]

    def begins(self, run: OwnedRun, start: StartInfo) -> None:
        """The first turn of a run is about to be made: its first entry keeps the headers added here."""
        if start.trace and self._begin_untraced:
            return
        id, queue = run.named
        before = headers_of(start)
        headers = before.copy()
        told = Start(name=run.workflow.name, kind=kind_of(run.workflow), id=id, queue=queue, tags={}, headers=headers)
        try:
            for one in self.begin:
                if one.missing not in headers:
                    one.begin(told)
            if headers != before:
                put_headers(start, check_headers(headers))
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("middleware failed at the beginning of run %s, which begins without it", id)

    def put_around(self, executor: Executor, activities: Mapping[str, Activity[..., Any]]) -> None:
        """All activities are then called on the loop, at first."""
        if not self.activity:
            return
        twins = {name: _around_activity(one, self.activity, executor) for name, one in activities.items()}
        choose = None
        if self._before is not None:
            plain = {name: one for name, one in activities.items() if one.execution_mode is ExecutionMode.LOOP}
            choose = _choosing(self._before, {name: twins[name].fn for name in plain})
            twins |= plain
        executor.surround(twins, functools.partial(_within, self.activity), choose, self._alike)


def middleware_stack(middleware: Sequence[Middleware]) -> MiddlewareStack | None:
    """None where there is no middleware, so that callers need not look further."""
    return MiddlewareStack(middleware) if middleware else None


def listens(one: Middleware) -> bool:
    """Whether this middleware listens to events."""
    return _overrides(one, "event")


def _overrides(one: Middleware, name: str) -> bool:
    return getattr(type(one), name) is not getattr(Middleware, name) or name in vars(one)


def _speaks_for(one: Middleware, name: str, before: str) -> bool:
    """Whether `before` and the method come from the same class. If a subclass overrides only the method, the inherited
    `before` cannot decide that the method may be skipped."""
    own = next(each for each in (one, *type(one).__mro__) if {before, name} & vars(each).keys())
    return own is not Middleware and before in vars(own)


def chained(handlers: Sequence[Handler[T]], call: T, innermost: Proceed) -> Awaitable[Any]:
    """Call the handlers, each inside the one before it, and `innermost` inside the last."""
    if len(handlers) == 1:
        return handlers[0](call, innermost)
    proceed = innermost
    for handler in reversed(handlers):
        proceed = functools.partial(handler, call, proceed)
    return proceed()


def _as_one(handlers: Sequence[Handler[T]]) -> Handler[T]:
    return handlers[0] if len(handlers) == 1 else functools.partial(chained, handlers)


def kind_of(workflow: Workflow[..., Any]) -> str:
    """In the words of `journal.records.RunKind`."""
    if isinstance(workflow, RoutedCall):
        return "job" if isinstance(workflow, JobWorkflow) else "activity"
    return "workflow"


# -- runs


def wrap_runs(code: dict[str, Workflow[..., Any]], around: MiddlewareStack | None) -> dict[str, Workflow[..., Any]]:
    """The same workflows with middleware around their code. Jobs are activities in this."""
    if around is None or not around.run:
        return code
    twins = {id(one): _around_run(one, around.run) for one in code.values() if not isinstance(one, RoutedCall)}
    return {name: twins.get(id(one), one) for name, one in code.items()}


def _around_run(workflow: Workflow[..., Any], handlers: Sequence[Handler[RunCall]]) -> Workflow[..., Any]:
    fn, outermost = workflow.fn, _as_one(handlers)

    # No coroutine of its own, where the outermost has one: every turn would go through it.
    def begun(*args: Any, **kwargs: Any) -> Awaitable[Any]:
        call = RunCall(args, kwargs)
        return outermost(call, lambda: fn(*call.args, **call.kwargs))

    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await begun(*args, **kwargs)

    around: Callable[..., Any] = begun if inspect.iscoroutinefunction(handlers[0]) else awaited
    functools.update_wrapper(around, fn)

    _ = workflow.fingerprint  # of the workflow's own code: what the twin is made of is no part of it
    twin: Workflow[..., Any] = object.__new__(type(workflow))
    twin.__dict__ = {**workflow.__dict__, "fn": around}
    return twin


# -- activities


def _around_activity(
    activity: Activity[..., Any], handlers: Sequence[Handler[ActivityCall]], executor: Executor
) -> Activity[..., Any]:
    if activity.execution_mode is ExecutionMode.STORE:
        return activity  # its executor calls `within`
    kind = _PLACES[activity.execution_mode]
    fn, outermost = activity.fn, _as_one(handlers)
    current = cast("contextvars.ContextVar[Call]", current_activity)

    # No coroutine of its own, nor has that of the loop one: each would cost every attempt.
    @functools.wraps(fn)
    def around(*args: Any, **kwargs: Any) -> Awaitable[Any]:
        attempt = current.get()
        start = attempt.run.started_with
        call = kind(attempt, args, kwargs, start.trace, start.headers, fn, executor)
        return outermost(call, call.body)

    codec, twin = activity.codec, activity.with_options()
    twin.fn = around
    twin.__dict__["codec"] = codec
    return twin


def _choosing(before: Before, around: Mapping[str, Callable[..., Any]]) -> Callable[[Call], Callable[..., Any]]:
    """What the runner calls: the code itself, where the middleware need not be around it. `around`: the way through the
    middleware, of those that have a choice."""

    def choose(call: Call) -> Callable[..., Any]:
        run, activity = call.run, call.activity
        wrapped = around.get(activity.name)
        if wrapped is None:
            return activity.fn
        try:
            prepare = run.prepare
            if prepare is None:
                start = run.started_with
                found = before(start.trace, start.headers)
                if not callable(found):
                    return wrapped if found else activity.fn
                run.prepare_with(found)
                prepare = found
            prepare()
            return activity.fn
        except KeyboardInterrupt:
            raise
        except BaseException:
            log.exception("middleware failed before an attempt of %s, and is put around it", activity.name)
            return wrapped

    return choose


class _Place(ActivityCall, eq=False, gc=False):
    """The call, and the way to its code."""

    fn: Callable[..., Any]
    executor: Executor


class _OnLoop(_Place, eq=False, gc=False):
    def body(self) -> Awaitable[Any]:
        if self.executor.may_act():  # asked where the effect begins: the middleware may have waited for long
            found: Awaitable[Any] = self.fn(*self.args, **self.kwargs)
            return found
        return self._when_permitted()

    async def _when_permitted(self) -> Any:
        await self.executor.permission()
        return await self.fn(*self.args, **self.kwargs)


class _InThread(_Place, eq=False, gc=False):
    def body(self) -> Awaitable[Any]:
        context = contextvars.copy_context()
        return self.executor.in_thread(cast(Call, self.of), self.fn, self.args, self.kwargs, context)


class _InProcess(_Place, eq=False, gc=False):
    async def body(self) -> Any:
        call = cast(Call, self.of)
        return call.activity.codec.decode_result(Raw(await self.executor.in_process(call)))


_PLACES: dict[ExecutionMode, type[_OnLoop | _InThread | _InProcess]] = {
    ExecutionMode.LOOP: _OnLoop,
    ExecutionMode.THREAD: _InThread,
    ExecutionMode.PROCESS: _InProcess,
}


def _within(
    handlers: Sequence[Handler[ActivityCall]], attempt: Call, args: tuple[Any, ...], kwargs: dict[str, Any], body: Body
) -> Awaitable[Any]:
    """Around an attempt that `body` makes."""
    start = attempt.run.started_with
    call = ActivityCall(attempt, args, kwargs, start.trace, start.headers)
    return chained(handlers, call, lambda: body(call.args, call.kwargs))


# -- starts


def as_start(request: Any) -> Start:
    """The request as middleware sees it. It changes the request's own headers and tags: never those of the caller."""
    request.headers, request.tags = dict(request.headers), dict(request.tags)
    is_job = hasattr(request, "job")
    return Start(
        name=request.job if is_job else request.workflow,
        kind="job" if is_job else "workflow",
        id=request.id,
        queue=request.queue,
        tags=request.tags,
        headers=request.headers,
    )
