"""Shared by all methods of the store: the tables, one unit of work a verb, and the hints to listeners."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from batuta.clock import SECOND
from batuta.journal.records import Hint
from batuta.stores.contract.listeners import NOTHING, Listeners
from batuta.stores.memory.tables import MemoryDatabase, NamespaceTables
from batuta.stores.memory.unit_of_work import UnitOfWork

T = TypeVar("T")
P = ParamSpec("P")
S = TypeVar("S", bound="Base")


def verb(
    work: Callable[Concatenate[S, UnitOfWork, P], T],
) -> Callable[Concatenate[S, P], Coroutine[Any, Any, T]]:
    """A method of the store that is one unit of work: all of it happens alone, and at one moment.

    It is written as a plain function, which cannot wait for anything in between.
    """

    @wraps(work)
    async def done(self: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        with self._database.lock:
            unit = self._unit()
            answer = work(self, unit, *args, **kwargs)
            self._tell(unit.hint)
            return answer

    return done


class Base:
    """One namespace of one database."""

    poll_seconds: float | None = None

    def __init__(self, database: MemoryDatabase | None = None, namespace: str = "default") -> None:
        self.namespace = namespace
        self._database = database or MemoryDatabase()
        self._tables = self._database.namespaces.setdefault(namespace, NamespaceTables())
        self._listeners = Listeners()
        self._shift = 0

    async def open(self) -> None:
        self._listeners.bind()
        self._database.listeners.append((self.namespace, self._listeners))

    async def close(self) -> None:
        self._listeners.unbind()
        everyone = self._database.listeners
        everyone[:] = [pair for pair in everyone if pair[1] is not self._listeners]

    async def migrate(self, *, plan: bool = False, repair: bool = False) -> list[str]:
        return []

    def keyed(self, text: str) -> str:
        return text

    async def now(self) -> int:
        return self._now()

    def listen(self, callback: Callable[[Hint], None]) -> Callable[[], None]:
        return self._listeners.add(callback)

    def shift_clock(self, seconds: float) -> None:
        self._shift += round(seconds * SECOND)

    @property
    def timeline(self) -> str:
        return self._database.timeline

    @contextmanager
    def transaction(self) -> Iterator[UnitOfWork]:
        """The same for a block: all of it happens alone, and at one moment."""
        with self._database.lock:
            unit = self._unit()
            yield unit
            self._tell(unit.hint)

    def _unit(self) -> UnitOfWork:
        return UnitOfWork(self._tables, self.namespace, self._now(), self._database.numbers)

    def _now(self) -> int:
        return self._database.clock.now() + self._shift

    def _tell(self, hint: Hint) -> None:
        if hint == NOTHING:
            return
        for namespace, listeners in list(self._database.listeners):
            if namespace == self.namespace:
                listeners.tell(hint)
