"""Signals, updates, queries and published values: how a run and the world outside talk to each other.

Each is defined once, with a name and a type, and used on both sides: workflow code receives, clients send. Runs know
them by name, so two definitions of one name are the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Generic, TypeVar, cast, overload

from batuta.authoring.context import Messages, runtime_for
from batuta.authoring.names import check_name
from batuta.authoring.options import check_seconds
from batuta.errors import InvalidInput
from batuta.serde import decoder_for

T = TypeVar("T")
A_co = TypeVar("A_co", covariant=True)
F = TypeVar("F", bound=Callable[..., Any])


def _messages(asked: str) -> Messages:
    return runtime_for(asked).messages()


class _Definition:
    """A name and a type."""

    what = ""

    def __init__(self, name: str, type: Any = None) -> None:  # noqa: A002 - its own word
        self.name = check_name(name, f"{self.what} name")
        self.type = type
        self.decoder = decoder_for(None.__class__ if type is None else type, f"{self.what} {name!r}")

    def __repr__(self) -> str:
        return f"<{self.what} {self.name}>"


class Signal(_Definition, Generic[T]):
    """A message to a run that nobody answers. Without a type it carries no value.

    Signals wait in the run, in order, until its code receives them. One whose value does not fit the type is passed
    over: it is logged, and counted in the published value `batuta.misfits`.
    """

    what = "signal"

    @overload
    def __init__(self: Signal[None], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: type[T]) -> None: ...
    @overload
    def __init__(self: Signal[Any], name: str, type: Any) -> None: ...
    def __init__(self, name: str, type: Any = None) -> None:  # noqa: A002 - its own word
        super().__init__(name, type)

    async def wait(self, timeout: float | None = None) -> T:
        """The next one. Raises TimeoutError after `timeout` seconds (a durable timer)."""
        check_seconds("timeout", timeout)
        messages = _messages(f"{self.name}.wait()")
        return cast(T, await messages.receive(self.name, self.decoder, timeout))

    def __aiter__(self) -> Signal[T]:
        return self

    async def __anext__(self) -> T:
        return await self.wait()

    def handle(self, fn: Callable[[T], Any]) -> Callable[[T], Any]:
        """Have each one handled by `fn`, sync or async, in a task of its own, begun in order of arrival; also those
        that wait already. An error that it raises fails the run. Usable as a decorator."""
        _check_callable(fn, self)
        _check_takes_value(fn, self)
        _messages(f"{self.name}.handle()").handle_signal(self.name, self.decoder, fn)
        return fn


class Update(_Definition, Generic[A_co]):
    """A request to a run, and its answer, whose type is given. Without a type the answer is None."""

    what = "update"

    @overload
    def __init__(self: Update[None], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: type[A_co]) -> None: ...
    @overload
    def __init__(self: Update[Any], name: str, type: Any) -> None: ...
    def __init__(self, name: str, type: Any = None) -> None:  # noqa: A002 - its own word
        super().__init__(name, type)

    @overload
    def handle(self, fn: F, /, *, validator: Callable[..., Any] | None = None) -> F: ...
    @overload
    def handle(self, /, *, validator: Callable[..., Any] | None = None) -> Callable[[F], F]: ...
    def handle(self, fn: Any = None, /, *, validator: Callable[..., Any] | None = None) -> Any:
        """Have each one handled by `fn`, sync or async, in a task of its own. What it returns is the answer; what it
        raises is the caller's error, and the run goes on. Arguments are decoded to its annotations.

        `validator` is called first, with the same arguments: what it raises rejects the update, which then leaves no
        trace in the run. It only looks: it must not wait, call anything of batuta that acts, or change anything.
        Usable as a decorator.
        """
        if fn is None:
            return lambda fn: self.handle(fn, validator=validator)
        _check_callable(fn, self)
        if validator is not None:
            _check_callable(validator, self)
            _check_sync(validator, f"the validator of {self.what} {self.name!r}")
        _messages(f"{self.name}.handle()").handle_update(self.name, self.decoder, fn, validator)
        return fn


class Query(_Definition, Generic[A_co]):
    """A question about a run's state. It is answered from the journal, and the run does not notice."""

    what = "query"

    @overload
    def __init__(self: Query[None], name: str) -> None: ...
    @overload
    def __init__(self, name: str, type: type[A_co]) -> None: ...
    @overload
    def __init__(self: Query[Any], name: str, type: Any) -> None: ...
    def __init__(self, name: str, type: Any = None) -> None:  # noqa: A002 - its own word
        super().__init__(name, type)

    def handle(self, fn: F) -> F:
        """Have it answered by `fn`, which only looks: it must not wait or change anything. Usable as a decorator."""
        _check_callable(fn, self)
        _check_sync(fn, f"the handler of query {self.name!r}")
        _messages(f"{self.name}.handle()").handle_query(self.name, self.decoder, fn)
        return fn


async def handlers_done() -> None:
    """Wait until every handler of a signal or update that has begun is done: also of those that come meanwhile.

    For the end of a workflow and before `continue_as_new`, which do not wait for handlers. Not for a handler itself: it
    would wait for its own end.
    """
    await _messages("handlers_done()").handlers_done()


def publish(name: str, value: Any) -> None:
    """Show a value outside, under a name; a later one takes its place. Clients read it with `handle.published`.

    Names that begin with `batuta.` are Batuta's own: InvalidInput.
    """
    if check_name(name, "published name").startswith("batuta."):
        raise InvalidInput(f"published name {name!r} is Batuta's own: choose one that does not begin with 'batuta.'")
    runtime_for("publish()").publish(name, value)


def _check_callable(fn: object, definition: _Definition) -> None:
    if not callable(fn):
        raise InvalidInput(f"{definition.what} {definition.name!r} cannot be handled by {fn!r}: give a function")


def _check_takes_value(fn: object, definition: _Definition) -> None:
    """Now, and not when the first one comes."""
    code = getattr(fn, "__code__", None)
    if code is not None and not code.co_argcount and not code.co_flags & inspect.CO_VARARGS:
        raise InvalidInput(
            f"the handler of signal {definition.name!r} must take one argument, the signal's value (None for a signal "
            f"without a type)"
        )


def _check_sync(fn: object, what: str) -> None:
    if inspect.iscoroutinefunction(fn):
        raise InvalidInput(f"{what} only looks, and must be a plain function: `def`, not `async def`")
