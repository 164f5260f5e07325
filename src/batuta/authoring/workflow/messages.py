"""Signals, updates, queries and published values: how a run and the world outside talk to each other.

Each is defined once, with a name and a type, and used on both sides: workflow code receives, clients send. Runs know
them by name, so two definitions of one name are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine
from contextlib import suppress
from types import CodeType, FunctionType
from typing import Any, Generic, NoReturn, ParamSpec, TypeVar, cast, overload

from batuta.authoring.call_options import check_seconds
from batuta.authoring.workflow.context import noticed, runtime_for
from batuta.durations import Duration, in_seconds
from batuta.errors import InvalidInput
from batuta.names import check_name
from batuta.serde import Codec, decoder_for, encode, type_hints

P = ParamSpec("P")
T = TypeVar("T")
A_co = TypeVar("A_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


class _Definition:
    """A name and a type."""

    what = ""

    def __init__(self, name: str, type: Any = None) -> None:
        self.name = check_name(name, f"{self.what} name")
        self.type = type
        self.decoder = decoder_for(None.__class__ if type is None else type, f"{self.what} {name!r}")

    def __repr__(self) -> str:
        return f"<{self.what} {self.name}>"


class Signal(_Definition, Generic[T]):
    """A message to a run, without an answer. Without a type it carries no value.

    Signals wait in the run, in order, until its code receives them. A value that does not fit the type is skipped: it
    is logged, and counted in the published value `batuta.misfits`.
    """

    what = "signal"

    @overload
    def __init__(self: Signal[None], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: type[T]) -> None: ...
    @overload
    def __init__(self: Signal[Any], name: str, type: Any) -> None: ...
    def __init__(self, name: str, type: Any = None) -> None:
        super().__init__(name, type)

    @noticed
    async def wait(self, timeout: Duration | None = None) -> T:
        """The next one. Raises TimeoutError after `timeout` seconds (a durable timer)."""
        seconds = in_seconds(timeout)
        check_seconds("timeout", seconds)
        messages = runtime_for(f"{self.name}.wait()").messages()
        return cast(T, await messages.receive(self.name, self.decoder, seconds))

    def __aiter__(self) -> Signal[T]:
        return self

    async def __anext__(self) -> T:
        return await self.wait()

    @overload
    def handle(self: Signal[None], fn: Callable[[], Any]) -> Callable[[], Any]: ...
    @overload
    def handle(self, fn: Callable[[T], Any]) -> Callable[[T], Any]: ...
    def handle(self, fn: Any) -> Any:
        """Handle each signal with `fn`, sync or async, in its own task, begun in order of arrival; also signals that
        wait already. It gets the value; for a signal without a type it may take no argument. An error in it fails
        the run. Usable as a decorator."""
        _check_callable(fn, self)
        handler = fn if _takes_value(fn, self) else lambda _: fn()
        runtime_for(f"{self.name}.handle()").messages().handle_signal(self.name, self.decoder, handler)
        return fn


class Request(_Definition):
    """Base of updates and queries: arguments, and an answer."""

    def __init__(self, name: Any, type: Any = None) -> None:
        self.function: FunctionType | None = None
        """The function that defines its arguments and its answer, unless they were given by name and type."""
        self._codec: Codec | None = None
        if not inspect.isfunction(name):
            super().__init__(name, type)
            return
        what = f"{self.what} {name.__name__!r}"
        if type is not None:
            raise InvalidInput(f"{what} has the answer's type from its function: give no other")
        super().__init__(name.__name__, type_hints(name, what).get("return", Any))
        self.function, self._codec = name, Codec(name, what)

    def encode_args(self, args: tuple[Any, ...], limit: int) -> bytes:
        """Arguments to JSON. Raises InvalidInput when they do not fit the function that defines it."""
        data = encode(args, f"the input of {self.what} {self.name!r}", limit)
        if self._codec is not None:
            self._codec.decode_args(data)
        return data

    def _refuse_call(self) -> NoReturn:
        raise InvalidInput(f"{self.what} {self.name!r} is not called: give it to `handle.{self.what}`")


class Update(Request, Generic[P, A_co]):
    """A request to a run, and its answer.

    Defined by a name and the answer's type (without a type it is None), or, as a decorator, by a function: its name,
    parameters and return type are those of the update, and its body is not used.
    """

    what = "update"

    @overload
    def __init__(self, function: Callable[P, Coroutine[Any, Any, A_co]], /) -> None: ...
    @overload
    def __init__(self, function: Callable[P, A_co], /) -> None: ...
    @overload
    def __init__(self: Update[..., None], name: str) -> None: ...
    @overload
    def __init__(self: Update[..., A_co], name: str, type: type[A_co]) -> None: ...
    @overload
    def __init__(self: Update[..., Any], name: str, type: Any) -> None: ...
    def __init__(self, name: Any, type: Any = None) -> None:
        super().__init__(name, type)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> A_co:
        """For type checkers, which know the arguments by it. Raises InvalidInput."""
        self._refuse_call()

    @overload
    def handle(self, fn: F, /, *, validator: Callable[..., Any] | None = None) -> F: ...
    @overload
    def handle(self, /, *, validator: Callable[..., Any] | None = None) -> Callable[[F], F]: ...
    def handle(self, fn: Any = None, /, *, validator: Callable[..., Any] | None = None) -> Any:
        """Handle each update with `fn`, sync or async, in its own task.

        Its return value is the answer; its exception reaches the caller, and the run goes on. Arguments are decoded to
        its annotations. `validator` is called first, with the same arguments: its exception rejects the update, which
        then leaves no trace in the run. It only reads: it must not wait, call anything of batuta that acts, or change
        anything. Usable as a decorator.
        """
        if fn is None:
            return lambda fn: self.handle(fn, validator=validator)
        _check_callable(fn, self)
        if validator is not None:
            _check_callable(validator, self)
            _check_sync(validator, f"the validator of {self.what} {self.name!r}")
        runtime_for(f"{self.name}.handle()").messages().handle_update(self.name, self.decoder, fn, validator)
        return fn


class Query(Request, Generic[P, A_co]):
    """A question about a run's state. It is answered from the journal, and the run does not notice.

    Defined by a name and the answer's type (without a type it is None), or, as a decorator, by a function: its name,
    parameters and return type are those of the query, and its body is not used.
    """

    what = "query"

    @overload
    def __init__(self, function: Callable[P, Coroutine[Any, Any, A_co]], /) -> None: ...
    @overload
    def __init__(self, function: Callable[P, A_co], /) -> None: ...
    @overload
    def __init__(self: Query[..., None], name: str) -> None: ...
    @overload
    def __init__(self: Query[..., A_co], name: str, type: type[A_co]) -> None: ...
    @overload
    def __init__(self: Query[..., Any], name: str, type: Any) -> None: ...
    def __init__(self, name: Any, type: Any = None) -> None:
        super().__init__(name, type)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> A_co:
        """For type checkers, which know the arguments by it. Raises InvalidInput."""
        self._refuse_call()

    def handle(self, fn: F) -> F:
        """Have it answered by `fn`, which only looks: it must not wait or change anything. Usable as a decorator."""
        _check_callable(fn, self)
        _check_sync(fn, f"the handler of query {self.name!r}")
        runtime_for(f"{self.name}.handle()").messages().handle_query(self.name, self.decoder, fn)
        return fn


@noticed
async def handlers_done() -> None:
    """Wait until every running handler of a signal or update is done, also those that begin meanwhile.

    For the end of a workflow and before `continue_as_new`, which do not wait for handlers. Do not call it in a handler,
    which would wait for its own end.
    """
    await runtime_for("handlers_done()").messages().handlers_done()


def publish(name: str, value: Any) -> None:
    """Show a value outside, under a name; a later one takes its place. Clients read it with `handle.published`.

    Names that begin with `batuta.` are Batuta's own: InvalidInput.
    """
    if check_name(name, "published name").startswith("batuta."):
        raise InvalidInput(f"published name {name!r} is reserved: choose a name that does not begin with 'batuta.'")
    runtime_for("publish()").publish(name, value)


def _check_callable(fn: object, definition: _Definition) -> None:
    if not callable(fn):
        raise InvalidInput(f"{definition.what} {definition.name!r} cannot be handled by {fn!r}: give a function")


def _takes_value(fn: Any, definition: _Definition) -> bool:
    """Whether a handler of signals takes the value. Raises InvalidInput now, and not when the first one comes.

    Uses the function's code where it has one: handlers are made again in each run, and a signature is slow.
    """
    code: CodeType | None = getattr(fn, "__code__", None)
    if code is None or hasattr(fn, "__wrapped__"):
        return _binds_value(fn, definition)
    taken = code.co_argcount - inspect.ismethod(fn)
    needed = taken - len(fn.__defaults__ or ())
    named = code.co_kwonlyargcount - len(fn.__kwdefaults__ or ())
    takes_one = taken > 0 or bool(code.co_flags & inspect.CO_VARARGS)
    if named or needed > 1 or (not takes_one and definition.type is not None):
        raise _unfit(fn, definition)
    return takes_one


def _binds_value(fn: Any, definition: _Definition) -> bool:
    """The same for a handler without its own code, such as a partial or a wrapper."""
    try:
        signature = inspect.signature(fn)
    except ValueError:  # some builtins have none
        return True
    for values in ((None,), ()):
        with suppress(TypeError):
            signature.bind(*values)
            if values or definition.type is None:
                return bool(values)
    raise _unfit(fn, definition)


def _unfit(fn: Any, definition: _Definition) -> InvalidInput:
    given = "no argument or one, None" if definition.type is None else "one argument, the signal's value"
    name = getattr(fn, "__qualname__", None) or repr(fn)
    return InvalidInput(f"the handler {name!r} of signal {definition.name!r} must take {given}")


def _check_sync(fn: object, what: str) -> None:
    if inspect.iscoroutinefunction(fn):
        raise InvalidInput(f"{what} only reads, and must be a plain function: `def`, not `async def`")
