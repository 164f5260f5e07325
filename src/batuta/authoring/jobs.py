"""@job: a function that can be enqueued, and runs on the same queues and workers as workflows."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from batuta.authoring.call_options import ActivityOptions, check_seconds
from batuta.authoring.client.start import check_start_options
from batuta.authoring.definitions import Activity
from batuta.durations import Duration, in_seconds

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")


def job_code(name: str) -> str:
    """The code name that a worker needs to run a job of that name."""
    return f"job:{name}"


class Job(Activity[P, R]):
    """A function that `client.enqueue` has executed by a worker. Awaited in a workflow it is a durable step of that
    workflow, as any activity; elsewhere it is a plain call."""

    what: ClassVar = "job"

    def __init__(
        self,
        fn: Callable[P, Any],
        name: str | None,
        options: ActivityOptions,
        *,
        process: bool = False,
        limit: int | None = None,
        transactional: bool = False,
        raises: Sequence[type[Exception]] = (),
        result: bool = True,
        priority: int = 0,
        expires: Duration | None = None,
    ) -> None:
        super().__init__(fn, name, options, process=process, limit=limit, transactional=transactional, raises=raises)
        lasts: float | None = in_seconds(expires)
        check_seconds("expires", lasts)
        check_start_options({"priority": priority})
        self.keeps_result, self.priority, self.expires = result, priority, lasts

    def call(self, *args: P.args, **kwargs: P.kwargs) -> JobCall[R]:
        """A call to be enqueued: for `enqueue_many`, `on_done` and arguments given by name."""
        return JobCall(self, *args, **kwargs)

    def with_options(self, **changes: Any) -> Job[P, R]:
        """The same job, with some options changed."""
        return cast("Job[P, R]", super().with_options(**changes))

    def __get__(self: Job[Concatenate[Any, Q], R], instance: object | None, owner: type | None = None) -> Job[Q, R]:
        return cast("Job[Q, R]", super().__get__(instance, owner))

    def __repr__(self) -> str:
        return f"<job {self.name}>"


class JobCall(Generic[R]):
    """A job, its arguments, and how it is to be enqueued. The job may be given by its name."""

    __slots__ = ("args", "job", "kwargs", "options")

    def __init__(self, job: Job[..., R] | str, /, *args: Any, **kwargs: Any) -> None:
        self.job, self.args, self.kwargs = job, args, kwargs
        self.options: dict[str, Any] = {}

    def with_options(self, **options: Any) -> JobCall[R]:
        """The same call, enqueued with these options (see `Batuta.enqueue`)."""
        twin: JobCall[R] = JobCall(self.job, *self.args, **self.kwargs)
        twin.options = self.options | options
        return twin

    def __repr__(self) -> str:
        return f"<call of job {self.job if isinstance(self.job, str) else self.job.name}>"


class _Decorator:
    """The type of `@job(...)`: async and sync functions alike become jobs."""

    def __init__(self, name: str | None, options: ActivityOptions, own: dict[str, Any]) -> None:
        self._name, self._options, self._own = name, options, own

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Job[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return Job(fn, self._name, self._options, **self._own)


@overload
def job(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Job[P, R]: ...
@overload
def job(fn: Callable[P, R], /) -> Job[P, R]: ...
@overload
def job(
    *,
    name: str | None = None,
    process: bool = False,
    limit: int | None = None,
    transactional: bool = False,
    raises: Sequence[type[Exception]] = (),
    result: bool = True,
    priority: int = 0,
    expires: Duration | None = None,
    **options: Any,
) -> _Decorator: ...
def job(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    process: bool = False,
    limit: int | None = None,
    transactional: bool = False,
    raises: Sequence[type[Exception]] = (),
    result: bool = True,
    priority: int = 0,
    expires: Duration | None = None,
    **options: Any,
) -> Any:
    """Make a function a job. Give it to a worker with `jobs=[...]`, and have it executed with `client.enqueue`.

    Options are those of ActivityOptions: retry, timeout (of an attempt), total_timeout, heartbeat, queue, ...
    `result=False`: its result is not kept. `priority` and `expires` are what `enqueue` uses when it is given none.
    `process`, `limit`, `transactional` and `raises` are as for an activity.
    """
    own: dict[str, Any] = {"process": process, "limit": limit, "transactional": transactional, "raises": raises}
    own |= {"result": result, "priority": priority, "expires": expires}
    decorate = _Decorator(name, ActivityOptions().merged(options), own)
    return decorate if fn is None else decorate(fn)
