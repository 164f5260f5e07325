"""Doubles: activities and jobs that stand in for others in a test, and remember how they were called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from msgspec import Struct, structs

from batuta.authoring.activity.attempt import current_activity
from batuta.authoring.definitions import Activity, ExecutionMode, activities_of
from batuta.authoring.jobs import Job
from batuta.bus.subscriptions import Subscription
from batuta.errors import InvalidInput

P = ParamSpec("P")
R = TypeVar("R")

_NOTHING: Any = object()
_SHOWN = 10


class UnfitDouble(InvalidInput):
    """A double that cannot stand in for its activity: other parameters, an answer of another type, or none left."""


class DoubleCall(Struct, frozen=True):
    """One call of a double."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    key: str = ""
    """The stable key of the call: the same for each of its attempts. Empty outside a run."""
    attempt: int = 1

    def __str__(self) -> str:
        given = [*map(repr, self.args), *(f"{name}={value!r}" for name, value in self.kwargs.items())]
        return f"({', '.join(given)})" + (f", attempt {self.attempt}" if self.attempt > 1 else "")


class Double(Activity[P, R]):
    """An activity of the same name, types and options as another, with behaviour that a test chooses.

    Made by `double`.
    """

    calls: list[DoubleCall]
    """Every attempt, in order, with the arguments as they came through JSON."""

    def called_with(self, *args: P.args, **kwargs: P.kwargs) -> int:
        """How many calls had these arguments. Attempts of one call count once."""
        wanted = self._bound(args, kwargs)
        same = [call for call in self.calls if self._bound(call.args, call.kwargs) == wanted]
        return len({call.key or number: None for number, call in enumerate(same)})

    def assert_called_with(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """There was a call with these arguments. The AssertionError tells which there were."""
        if not self.called_with(*args, **kwargs):
            self._fail(f"was never called with {DoubleCall(args, kwargs)}")

    def assert_called(self, times: int) -> None:
        """Assert the number of calls; attempts of one call count once."""
        found = len({call.key or number: None for number, call in enumerate(self.calls)})
        if found != times:
            self._fail(f"was called {found} times, not {times}")

    def reset(self) -> None:
        """Forget all calls, and begin with the first answer again."""
        self.calls.clear()
        self._answers.reset()

    _answers: _Answers[Any]

    def _bound(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = self.codec.signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return bound.args, bound.kwargs

    def _fail(self, what: str) -> NoReturn:
        there = "".join(f"\n  {call}" for call in self.calls[:_SHOWN]) or " none"
        more = f"\n  and {len(self.calls) - _SHOWN} more" if len(self.calls) > _SHOWN else ""
        raise AssertionError(f"the double of {self.name!r} {what}. Its calls:{there}{more}")


class JobDouble(Double[P, R], Job[P, R]):
    """The same for a job."""


class _Answers(Generic[R]):
    """The outcomes of a double's attempts. An attempt that a crash repeats has the same outcome."""

    def __init__(self, what: str, stand_in: Callable[..., Any] | None, results: Sequence[Any] | None) -> None:
        self._what, self._stand_in, self._results = what, stand_in, results
        self.failures: Sequence[BaseException] = ()
        self._given: dict[tuple[str, int], int] = {}
        self._used = 0

    def reset(self) -> None:
        self._given.clear()
        self._used = 0

    def give(self, call: DoubleCall) -> Any:
        """The answer, which may have to be awaited. Raises the chosen errors."""
        number = self._number(call)
        if number < len(self.failures):
            raise self.failures[number]
        number -= len(self.failures)
        if self._stand_in is not None:
            return self._stand_in(*call.args, **call.kwargs)
        results = self._results or ()
        if number >= len(results):
            raise UnfitDouble(f"{self._what} has {len(results)} results, and is called once more with {call}")
        if isinstance(results[number], BaseException):
            raise results[number]
        return results[number]

    def _number(self, call: DoubleCall) -> int:
        known = self._given.get((call.key, call.attempt)) if call.key else None
        if known is None:
            known, self._used = self._used, self._used + 1
            self._given[call.key, call.attempt] = known
        return known


@overload
def double(
    activity: Job[P, R],
    stand_in: Callable[..., Any] | None = None,
    *,
    returns: Any = ...,
    results: Iterable[Any] | None = None,
    fails: int = 0,
    error: BaseException | None = None,
) -> JobDouble[P, R]: ...
@overload
def double(
    activity: Activity[P, R],
    stand_in: Callable[..., Any] | None = None,
    *,
    returns: Any = ...,
    results: Iterable[Any] | None = None,
    fails: int = 0,
    error: BaseException | None = None,
) -> Double[P, R]: ...
def double(
    activity: Activity[P, R],
    stand_in: Callable[..., Any] | None = None,
    *,
    returns: Any = _NOTHING,
    results: Iterable[Any] | None = None,
    fails: int = 0,
    error: BaseException | None = None,
) -> Double[P, R]:
    """The same activity or job (name, types, options) with other behaviour. It records its calls.

    One of: `stand_in`, a function, a lambda or a mock that is called instead; `returns`, a value for every call;
    `results`, one for each attempt in order, in which errors are raised. `fails=2` lets the first two attempts fail,
    with `error` (a ConnectionError by default), before any of that. Without an answer it returns None.

    Give it to a worker or an `Environment` in place of the activity, or beside an instance that has the activity. It
    runs on the event loop, async or not; arguments and results pass through JSON as those of the real one. Raises
    UnfitDouble when it does not fit that activity.
    """
    what = f"the double of {activity.name!r}"
    given = [name for name, there in _given(stand_in, returns, results) if there]
    if len(given) > 1:
        raise UnfitDouble(f"{what} has {' and '.join(given)}: one of them must say what it does")
    if stand_in is not None:
        stand_in = _fitted(activity, stand_in, what)
    listed = None if results is None else list(results)
    answers: _Answers[R] = _Answers(what, stand_in, listed)
    answers.failures = [error or ConnectionError(f"{what} fails {fails} times")] * fails
    if not given or given == ["returns"]:
        value = None if returns is _NOTHING else returns
        answers = _Constant(what, value, answers.failures)
        listed = [value] if given or not fails else []
    for value in listed or ():
        if not isinstance(value, BaseException):
            _check_result(activity, value, what)
    return _made(activity, answers, what)


class _Constant(_Answers[R]):
    """The same value for every call."""

    def __init__(self, what: str, value: Any, failures: Sequence[BaseException]) -> None:
        super().__init__(what, lambda *_args, **_kwargs: value, None)
        self.failures = failures


def _given(stand_in: Any, returns: Any, results: Any) -> list[tuple[str, bool]]:
    return [
        ("a stand-in", stand_in is not None),
        ("returns", returns is not _NOTHING),
        ("results", results is not None),
    ]


def _made(activity: Activity[P, R], answers: _Answers[R], what: str) -> Double[P, R]:
    codec = activity.codec
    twin: Double[P, R] = object.__new__(JobDouble if isinstance(activity, Job) else Double)
    calls: list[DoubleCall] = []

    @functools.wraps(activity.fn)
    async def perform(*args: Any, **kwargs: Any) -> Any:
        attempt = current_activity.get()
        info = attempt.info() if attempt is not None else None
        call = DoubleCall(args, kwargs) if info is None else DoubleCall(args, kwargs, info.key, info.attempt)
        calls.append(call)
        value = answers.give(call)
        value = await value if inspect.isawaitable(value) else value
        _check_result(activity, value, what)
        return value

    twin.__dict__.update(activity.__dict__)
    twin.__dict__.update(
        fn=perform, codec=codec, is_async=True, execution_mode=ExecutionMode.LOOP, calls=calls, _answers=answers
    )
    return twin


def _fitted(activity: Activity[..., Any], stand_in: Callable[..., Any], what: str) -> Callable[..., Any]:
    """The stand-in, able to take every call of the activity: if it requires arguments that are optional for the
    activity, it gets the activity's defaults."""
    if not callable(stand_in):
        raise UnfitDouble(f"{what} is given {stand_in!r}, which cannot be called: for a value, say returns=")
    try:
        theirs = inspect.signature(stand_in)
    except (TypeError, ValueError):  # some builtins do not tell
        return stand_in
    signature = activity.codec.signature
    parameters = list(signature.parameters.values())
    if error := _misfit(theirs, parameters):
        raise UnfitDouble(f"{what} takes {theirs}, and the activity is called with {signature}: {error}")
    if not _misfit(theirs, [p for p in parameters if p.default is p.empty]):
        return stand_in

    def filled(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return stand_in(*bound.args, **bound.kwargs)

    return filled


def _misfit(theirs: inspect.Signature, parameters: Sequence[inspect.Parameter]) -> str:
    """Why a call with these parameters cannot be taken; empty when it can."""
    named = {p.name: None for p in parameters if p.kind is p.KEYWORD_ONLY}
    try:
        theirs.bind(*(None for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)), **named)
    except TypeError as error:
        return str(error)
    return ""


def _check_result(activity: Activity[..., Any], value: Any, what: str) -> None:
    codec = activity.codec
    try:
        codec.decode_result(codec.encode_result(value))
    except InvalidInput as error:
        raise UnfitDouble(f"{what} returns {value!r}: {error}") from None


def with_doubles(things: Sequence[object]) -> list[Activity[..., Any]]:
    """All activities of these things, where a double takes the place of the activity of its name."""
    every = [activity for thing in things for activity in activities_of(thing)]
    doubled = {one.name for one in every if isinstance(one, Double)}
    return [one for one in every if isinstance(one, Double) or one.name not in doubled]


def with_doubled_handlers(subscriptions: Sequence[Subscription], things: Sequence[object]) -> list[Subscription]:
    """The subscriptions, where doubles among these things take the place of the jobs that get the messages."""
    doubles = {one.name: one for one in things if isinstance(one, JobDouble)}
    return [
        structs.replace(one, handler=doubles[one.handler.name])
        if isinstance(one.handler, Job) and one.handler.name in doubles
        else one
        for one in subscriptions
    ]


def doubles_of(things: Sequence[object]) -> list[Double[..., Any]]:
    """The doubles among these."""
    return [cast("Double[..., Any]", thing) for thing in things if isinstance(thing, Double)]
