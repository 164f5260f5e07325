"""Blocking verbs, made from those of async objects."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, cast

from batuta.authoring.client.caller_transaction import Deferred
from batuta.client import Batuta

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Face(Protocol[A_co]):
    """Blocking verbs, in place of an async object."""

    def _ask(self, work: Callable[[A_co], Coroutine[Any, Any, T]]) -> T: ...

    def _opened(self) -> Any:
        """The home of the client, for handles."""


class Part(Generic[A]):
    """A part of a blocking client: its verbs are those of `real`, the same part of the async one."""

    def __init__(self, client: Face[Batuta], real: Callable[[Batuta], A]) -> None:
        self._client, self._real = client, real

    def _ask(self, work: Callable[[A], Coroutine[Any, Any, T]]) -> T:
        return self._client._ask(lambda client: work(self._real(client)))

    def _opened(self) -> Any:
        return self._client._opened()


def blocking(verb: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Face[A], P], T]:
    """The same verb, but it returns when it is done. A new verb of the async side is one line with this.

    With `transaction=`, a connection or session that blocks, it writes in the thread of the caller.
    """

    @wraps(verb)
    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs.get("transaction") is None:
            return self._ask(lambda real: verb(real, *args, **kwargs))
        given = kwargs["transaction"] = Deferred(kwargs["transaction"])
        made = self._ask(lambda real: verb(real, *args, **kwargs))
        return cast(T, given.finish(otherwise=made))

    return call
