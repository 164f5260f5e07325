"""@workflow and @activity: they attach a definition to a function and register nothing."""

from __future__ import annotations

import functools
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Coroutine, Iterable, Sequence
from contextlib import nullcontext, suppress
from enum import IntEnum
from types import ModuleType
from typing import Any, ClassVar, Concatenate, Generic, ParamSpec, TypeVar, overload

from batuta.authoring.call_options import ActivityOptions
from batuta.authoring.failures.known_errors import check_raises
from batuta.authoring.workflow.context import current_runtime, current_saga
from batuta.errors import DuplicateDefinition, Failed, InvalidInput
from batuta.names import check_name, plain, quoted
from batuta.serde import Codec

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")

CONTINUE_AFTER = 10_000
"""Journal entries after which a run should continue as new, unless its workflow says otherwise."""

_LONGEST_VERSION = 100
_get_runtime, _get_saga = current_runtime.get, current_saga.get  # found once: called for every activity


def check_workflow_name(name: object) -> str:
    """A workflow's name: the part before `@version`. Raises InvalidInput."""
    checked = check_name(name, "workflow name")
    if "@" in checked or ":" in checked:
        raise InvalidInput(f"workflow name {name!r} must not hold '@' or ':': a version is given as version=")
    return checked


def check_version(version: object) -> str:
    """A workflow's version. Raises InvalidInput."""
    version = plain(version)
    if not isinstance(version, str) or len(version) > _LONGEST_VERSION or not (version.isprintable() or not version):
        raise InvalidInput(
            f"version {quoted(version)} must be a string of at most {_LONGEST_VERSION} printable characters"
        )
    return version


def code_of(name: str, version: str) -> str:
    """The code name that a worker needs to run a workflow of that name and version: any version, when the run names
    none."""
    return f"{name}@{version}" if version else name


class Workflow(Generic[P, R]):
    """A durable function. Called plainly it is just the function; `client.start` runs it durably."""

    def __init__(
        self,
        fn: Callable[P, Coroutine[Any, Any, R]],
        name: str | None = None,
        version: str = "",
        continue_after: int = CONTINUE_AFTER,
        dead_letter: bool = False,
        fails: Iterable[type[Exception]] = (),
        on_error: str = "fail",
    ) -> None:
        if inspect.isclass(fn):
            raise InvalidInput(f"{fn.__qualname__!r} is a class: a workflow is a function, defined with `async def`")
        if not inspect.iscoroutinefunction(fn):
            raise InvalidInput(f"workflow {fn.__qualname__!r} must be defined with `async def`")
        _check_no_method(fn)
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = check_workflow_name(name or fn.__name__)
        self.version = check_version(version)
        if type(continue_after) is not int or continue_after < 1:
            raise InvalidInput(f"continue_after={continue_after!r} must be a number of journal entries, at least 1")
        self.continue_after = continue_after
        self.dead_letter = dead_letter
        """Whether a run that fails with an error that it declares is a dead letter, too."""
        self.fails = _check_fails(fails)
        """The errors that its runs may fail with: others that leave its code are taken for bugs."""
        if on_error not in ("fail", "park"):
            raise InvalidInput(f"on_error={on_error!r} must be 'fail' or 'park'")
        self.on_error = on_error
        self.codec = Codec(fn, f"workflow {self.name!r}")
        _own_dict(self)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        return self.fn(*args, **kwargs)

    def __set_name__(self, owner: type, name: str) -> None:
        """Called for an attribute of a class, but not for one inside a @staticmethod."""
        first = next(iter(inspect.signature(self.fn).parameters.values()), None)
        is_its_own = self.fn.__qualname__ == f"{owner.__qualname__}.{self.fn.__name__}"
        if is_its_own and first is not None and first.kind is not first.KEYWORD_ONLY:
            raise _method_refused(self.fn, first.name)

    @property
    def code(self) -> str:
        """The code name that a run needs: this name, and this version if it has one."""
        return code_of(self.name, self.version)

    @functools.cached_property
    def fingerprint(self) -> str:
        """Identifies the code: the sources of its module and of modules beside it that it imports, version and
        Python."""
        digest = hashlib.blake2b(digest_size=8)
        for source in _sources_of(self.fn):
            digest.update(source)
        digest.update(f"{self.fn.__qualname__} {self.version} {sys.version_info[:2]}".encode())
        return digest.hexdigest()

    def __repr__(self) -> str:
        return f"<workflow {self.name}>"


def _check_no_method(fn: Callable[..., Any]) -> None:
    """A run has no instance: what would be its `self` is the first argument of the start."""
    first = next(iter(inspect.signature(fn).parameters), "")
    if _is_in_class(fn) and first in ("self", "cls"):
        raise _method_refused(fn, first)


def _is_in_class(fn: Callable[..., Any]) -> bool:
    return "." in getattr(fn, "__qualname__", "").rpartition("<locals>.")[2]


def _method_refused(fn: Callable[..., Any], first: str) -> InvalidInput:
    return InvalidInput(
        f"workflow {fn.__qualname__!r} is a method, and a run has no instance to be {first!r}: make it a function "
        f"(or a @staticmethod), and give it as arguments what it needs"
    )


def _sources_of(fn: Callable[..., Any]) -> list[bytes]:
    module = sys.modules.get(fn.__module__)
    return (_module_sources(module) if module is not None else []) or [fn.__code__.co_code]


@functools.cache
def _module_sources(module: ModuleType) -> list[bytes]:
    """The text of a module and, transitively, of the modules that it imports from the same root."""
    root = os.path.dirname(os.path.abspath(getattr(module, "__file__", None) or ""))
    for _ in range(module.__name__.count(".")):
        root = os.path.dirname(root)
    if os.path.basename(root) in ("site-packages", "dist-packages"):  # an installed package: its own files alone
        root = os.path.join(root, module.__name__.partition(".")[0])
    found: dict[str, bytes] = {}
    waiting = [module]
    while waiting:
        one = waiting.pop()
        file = os.path.abspath(getattr(one, "__file__", None) or "")
        if file not in found and _is_ours(file, root):
            found[file] = _read(file)
            waiting += _imports_of(one)
    return [found[file] for file in sorted(found, key=lambda file: file.removeprefix(root))]


def _is_ours(file: str, root: str) -> bool:
    return file.startswith(root + os.sep) and file.endswith(".py") and "site-packages" not in file.removeprefix(root)


def _imports_of(module: ModuleType) -> list[ModuleType]:
    """Modules in its namespace, and modules that objects in its namespace come from."""
    values = list(vars(module).values())
    names = {name for value in values if (name := _module_of(value)) is not None}
    return [v for v in values if inspect.ismodule(v)] + [sys.modules[name] for name in names if name in sys.modules]


def _module_of(value: object) -> str | None:
    try:
        name = getattr(value, "__module__", None)
    except Exception:  # noqa: BLE001 - proxies and the like may do anything when they are looked at
        return None
    return name if isinstance(name, str) else None


def _read(file: str) -> bytes:
    try:
        with open(file, "rb") as source:
            return source.read()
    except OSError:
        return b""


def _own_dict(thing: object) -> None:
    """Give an object attributes that Python 3.11 finds fast. Once somebody has asked for its `__dict__`, as
    `update_wrapper` does, each look at one misses the cache, for the keys are shared with other instances."""
    thing.__dict__ = dict(thing.__dict__)


class ExecutionMode(IntEnum):
    """Where a worker executes an activity."""

    LOOP = 0
    THREAD = 1
    PROCESS = 2
    STORE = 3
    """In a transaction of the store: on the loop where that is async, in a thread where it blocks."""


class Activity(Generic[P, R]):
    """A step that touches the world. Awaited in a workflow it is durable; elsewhere it is a plain call.

    Sync functions run in threads, or on request in processes. Decorated methods are activities of their instance: give
    the instance to the worker, and call it in workflows through the class: `await Gateway.reserve(sku)`.
    """

    what: ClassVar = "activity"
    """In messages."""

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
        compensate: Activity[..., Any] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.name = check_name(name or fn.__name__, "activity name")
        self.options = options
        self.is_async = inspect.iscoroutinefunction(fn)
        if inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
            raise InvalidInput(
                f"activity {self.name!r} is a generator and has no result: return a list, or use heartbeat()"
            )
        self.execution_mode = ExecutionMode.LOOP if self.is_async else ExecutionMode.THREAD
        if process:
            self.execution_mode = ExecutionMode.PROCESS
            _check_for_process(fn)
        if transactional:
            self.execution_mode = ExecutionMode.STORE
            _check_for_store(self.name, options, process=process)
        self.raises = check_raises(raises, f"activity {self.name!r}")
        """Errors that come back as themselves, whatever else is loaded. They also cover their subclasses."""
        self.limit = limit
        if limit is not None and (type(limit) is not int or limit < 1):
            raise InvalidInput(f"limit={limit!r} of activity {self.name!r} must be a whole number of at least 1")
        self.compensate = compensate
        """Undoes it, in a saga."""
        self._method = next(iter(inspect.signature(fn).parameters), "") == "self"
        self._late = self._method and _is_in_class(fn)
        """Annotations of a method may name its own class, which is there only when it is asked for its attribute."""
        with suppress(Exception) if self._late else nullcontext():
            self._make_codec()  # a bad annotation is found here, or in `__get__`
        if compensate is not None:
            check_compensation(self.name, self.fn, compensate)
        _own_dict(self)

    def _make_codec(self) -> None:
        bound = self._method and not inspect.ismethod(self.fn)
        self.codec = Codec(self.fn, f"{self.what} {self.name!r}", bound=bound)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> Coroutine[Any, Any, R]:
        runtime = _get_runtime()
        if runtime is not None:
            codec = self.codec
            call = runtime.call_activity(self.name, codec, codec.result_decoder, args, kwargs, self.options)
            saga = _get_saga()
            if saga is not None:
                call = saga.step(self, args, kwargs, call)
            runtime.made.append(call)
            return call
        return self._plain(*args, **kwargs)

    async def _plain(self, *args: P.args, **kwargs: P.kwargs) -> R:
        value: R = await self.fn(*args, **kwargs) if self.is_async else self.fn(*args, **kwargs)
        return value

    def with_options(self, **changes: Any) -> Activity[P, R]:
        """The same activity, called with some options changed."""
        options = self.options.merged(changes)
        if self.execution_mode is ExecutionMode.STORE:
            _check_for_store(self.name, options)
        return self._copy(self.fn, options)

    def __get__(
        self: Activity[Concatenate[Any, Q], R], instance: object | None, owner: type | None = None
    ) -> Activity[Q, R]:
        if self._late:
            self._make_codec()
            self._late = False
        fn = self.fn if instance is None else self.fn.__get__(instance, owner)
        return self._copy(fn, self.options)  # type: ignore[return-value]  # the first parameter is bound or left out

    def _copy(self, fn: Callable[..., Any], options: ActivityOptions) -> Activity[P, R]:
        twin: Activity[P, R] = object.__new__(type(self))
        twin.__dict__ = {**self.__dict__, "fn": fn, "options": options}
        return twin

    def __repr__(self) -> str:
        return f"<activity {self.name}>"


def check_compensation(name: str, fn: Callable[..., Any], compensate: object) -> None:
    """Raises InvalidInput."""
    if not isinstance(compensate, Activity):
        raise InvalidInput(f"compensate={compensate!r} of activity {name!r} must be an activity: decorate it first")
    compensation_arguments(name, fn, compensate, (), {}, None, check=True)


def compensation_arguments(
    name: str,
    fn: Callable[..., Any],
    compensate: Activity[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    result: Any,
    *,
    check: bool = False,
) -> dict[str, Any]:
    """What the compensation of a call is called with: parameters of the same name get the same arguments, `result` gets
    its result, and so does the only parameter of a compensation that has another name. Raises InvalidInput."""
    own = _parameters(fn)
    known = dict(zip(own, args, strict=False)) | kwargs
    wanted = _parameters(compensate.fn)
    needed = [one for one, parameter in wanted.items() if parameter.default is parameter.empty]
    if len(needed) == 1 and needed[0] not in own:
        return {needed[0]: result}
    strange = [one for one in needed if one not in own and one != "result"]
    if strange:
        raise InvalidInput(
            f"compensate={compensate.name!r} of activity {name!r} has parameters that nothing gives a value to "
            f"({', '.join(strange)}): name them like those of {name!r}, or `result` for its result"
        )
    given = {one: known[one] for one in wanted if one in known}
    return given if check or "result" not in wanted else given | {"result": result}


def _parameters(fn: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    found = dict(inspect.signature(fn).parameters)
    if next(iter(found), "") == "self":
        del found["self"]
    return found


def _check_for_process(fn: Callable[..., Any]) -> None:
    """Another process finds the function by its name, and has no event loop for it. Raises InvalidInput."""
    name = getattr(fn, "__qualname__", repr(fn))
    if inspect.iscoroutinefunction(fn):
        raise InvalidInput(f"activity {name!r} has process=True and is `async def`: define it with `def`")
    if not inspect.isfunction(fn) or "." in name or name == "<lambda>":
        raise InvalidInput(
            f"activity {name!r} has process=True and is not a function at the top of its module: another process could "
            f"not find it"
        )


def _check_for_store(name: str, options: ActivityOptions, *, process: bool = False) -> None:
    """Raises InvalidInput."""
    if process:
        raise InvalidInput(
            f"activity {name!r} has transactional=True and process=True: another process does not have the transaction"
        )
    if options.once:
        raise InvalidInput(
            f"activity {name!r} has transactional=True and once=True: what it writes is there once as it is, and an "
            f"attempt that was interrupted has written nothing; leave out once="
        )


@overload
def workflow(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Workflow[P, R]: ...
@overload
def workflow(
    *,
    name: str | None = None,
    version: str = "",
    continue_after: int = CONTINUE_AFTER,
    dead_letter: bool = False,
    fails: Iterable[type[Exception]] = (),
    on_error: str = "fail",
) -> Callable[[Callable[P, Coroutine[Any, Any, R]]], Workflow[P, R]]: ...
def workflow(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    version: str = "",
    continue_after: int = CONTINUE_AFTER,
    dead_letter: bool = False,
    fails: Iterable[type[Exception]] = (),
    on_error: str = "fail",
) -> Any:
    """Make an async function a workflow. Register it by giving it to a worker.

    Only workers that have a workflow's `version` take its runs. After `continue_after` journal entries
    `info().continue_hint` is true. `fails`: errors that its runs may fail with, besides `Failed`. Any other error that
    leaves the code counts as a bug: it is logged with its traceback, and the run fails and becomes a dead letter, or
    with `on_error="park"` is parked and goes on when the fix is deployed. A run that fails with an error of `fails`
    becomes a dead letter only with `dead_letter`.
    """

    def decorate(fn: Callable[P, Coroutine[Any, Any, R]]) -> Workflow[P, R]:
        return Workflow(fn, name, version, continue_after, dead_letter, fails, on_error)

    return decorate if fn is None else decorate(fn)


class _Decorator:
    """The type of `@activity(...)`: async and sync functions alike become awaitable activities."""

    def __init__(self, name: str | None, options: ActivityOptions, own: dict[str, Any]) -> None:
        self._name, self._options, self._own = name, options, own

    @overload
    def __call__(self, fn: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...
    @overload
    def __call__(self, fn: Callable[P, R], /) -> Activity[P, R]: ...
    def __call__(self, fn: Any, /) -> Any:
        return Activity(fn, self._name, self._options, **self._own)


@overload
def activity(fn: Callable[P, Coroutine[Any, Any, R]], /) -> Activity[P, R]: ...
@overload
def activity(fn: Callable[P, R], /) -> Activity[P, R]: ...
@overload
def activity(
    *,
    name: str | None = None,
    process: bool = False,
    limit: int | None = None,
    transactional: bool = False,
    raises: Sequence[type[Exception]] = (),
    compensate: Activity[..., Any] | None = None,
    **options: Any,
) -> _Decorator: ...
def activity(
    fn: Any = None,
    /,
    *,
    name: str | None = None,
    process: bool = False,
    limit: int | None = None,
    transactional: bool = False,
    raises: Sequence[type[Exception]] = (),
    compensate: Activity[..., Any] | None = None,
    **options: Any,
) -> Any:
    """Make a function an activity. Options are those of ActivityOptions: retry, timeout, heartbeat, once, ...

    `process`: execute it in a separate process, for a sync function that computes for long. `limit`: how many of it a
    worker executes at once. `transactional`: it writes to the store's own database, in a transaction that commits
    together with its result (see `batuta.transaction`); async on PostgreSQL, a plain function on SQLite. `raises`:
    errors that workflows catch by class. Without it, errors of modules that are imported only when the activity runs
    reach them as ActivityFailed. `compensate`: the activity that undoes it, called when a saga fails in which it was
    done (see `saga`).
    """
    own = {
        "process": process,
        "limit": limit,
        "transactional": transactional,
        "raises": raises,
        "compensate": compensate,
    }
    decorate = _Decorator(name, ActivityOptions().merged(options), own)
    return decorate if fn is None else decorate(fn)


def _check_fails(fails: object) -> tuple[type[Exception], ...]:
    """The declared classes, and `Failed`. Raises InvalidInput."""
    if isinstance(fails, str | type) or not isinstance(fails, Iterable):
        raise InvalidInput(f"fails={fails!r} must be a list of exception classes, such as fails=[OutOfStock]")
    found = tuple(fails)
    for one in found:
        if not isinstance(one, type) or not issubclass(one, Exception):
            raise InvalidInput(f"fails={list(found)!r} must contain only exception classes, not {one!r}")
    return (Failed, *found)


def activities_of(thing: object) -> list[Activity[..., Any]]:
    """An activity, or all activities of an instance. Raises InvalidInput when there is none."""
    if isinstance(thing, Activity):
        return [thing]
    names = [n for n in dir(type(thing)) if isinstance(inspect.getattr_static(type(thing), n), Activity)]
    if not names:
        raise InvalidInput(
            f"{thing!r} is not an activity and has no activity methods: decorate it (or its methods) with @activity"
        )
    return [getattr(thing, name) for name in names]


def by_code(workflows: Sequence[Workflow[..., Any]]) -> dict[str, Workflow[..., Any]]:
    """By what runs ask for. A run without a version goes to the definition without one, or else to the last given."""
    found: dict[str, Workflow[..., Any]] = {}
    for workflow in workflows:
        if not isinstance(workflow, Workflow):
            raise InvalidInput(f"{workflow!r} is not a workflow: decorate it with @workflow")
        if found.setdefault(workflow.code, workflow) is not workflow:
            of = f" version {workflow.version!r}" if workflow.version else ""
            raise DuplicateDefinition(f"two workflows are named {workflow.name!r}{of}: give one another name=")
    for workflow in reversed(workflows):
        found.setdefault(workflow.name, workflow)
    return found
