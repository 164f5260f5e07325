"""Blocking verbs, made from those of async objects."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import wraps
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

A = TypeVar("A")
A_co = TypeVar("A_co", covariant=True)
P = ParamSpec("P")
T = TypeVar("T")


class Face(Protocol[A_co]):
    """Blocking verbs, in place of an async object."""

    def _ask(self, work: Callable[[A_co], Coroutine[Any, Any, T]]) -> T: ...


def blocking(verb: Callable[Concatenate[A, P], Coroutine[Any, Any, T]]) -> Callable[Concatenate[Face[A], P], T]:
    """The same verb, but it returns when it is done. A new verb of the async side is one line with this."""

    @wraps(verb)
    def call(self: Face[A], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._ask(lambda real: verb(real, *args, **kwargs))

    return call
