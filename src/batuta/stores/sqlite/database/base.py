"""Shared by all methods of the store: one namespace of one file, its connections, its clock and its listeners."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from batuta.clock import SECOND, Clock, SystemClock
from batuta.journal.audit import Act, Changed
from batuta.journal.records import Change, Hint
from batuta.stores.contract.listeners import Listeners
from batuta.stores.sqlite.database.readers import Readers
from batuta.stores.sqlite.database.rows import Row
from batuta.stores.sqlite.database.unit_of_work import Executor, UnitOfWork, Values
from batuta.stores.sqlite.database.writer import Writer

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
Verb = Callable[[UnitOfWork], T]

_NOTHING_NEW = Hint()
"""Of all that only read."""


class Base:
    """One namespace of one file."""

    def __init__(self, path: str | Path, namespace: str = "default", clock: Clock | None = None) -> None:
        self.namespace = namespace
        self.path = Path(path).absolute()
        self._clock = clock or SystemClock()
        self._shift = 0
        self._writer = Writer(self.path)
        self._readers = Readers(self.path)
        self._listeners = Listeners()
        self.borrowed: dict[int, Hint] = {}
        """Hints of transactions on borrowed connections, by the id of the connection."""
        self._limited = False
        """Whether a limit has held something back: a freed slot may let another run in."""

    # -- time and hints

    def clock_now(self) -> int:
        """The machine's clock, which all processes that can open the file share."""
        return self._clock.now() + self._shift

    def shift_clock(self, seconds: float) -> None:
        self._shift += round(seconds * SECOND)

    def tell(self, hint: Hint) -> None:
        """Pass a hint on to this store's listeners, from any thread."""
        told = hint.due or hint.schedules or hint.partners or hint.bus
        if told or hint.messages or hint.closed or hint.answered:
            self._listeners.tell(hint)

    def announce(self, hint: Hint, changes: Sequence[Change]) -> None:
        """Tell listeners of changes that are durable now."""
        hint.due = hint.due or (self._limited and any(change.move is not None for change in changes))
        self.tell(hint)

    def timeline(self) -> str:
        """The file itself: another one under the same path has another history."""
        return "-".join(map(str, self._writer.identity or ()))

    # -- transactions

    def unit(self, executor: Executor, hint: Hint | None = None) -> UnitOfWork:
        """What is done with this cursor or connection at this moment.

        Writers call it when no other process writes: then no transaction is earlier than the one before it.
        """
        return UnitOfWork(executor, self.namespace, self.clock_now(), hint)

    async def _write(self, verb: Verb[T], *, small: bool = False, aside: bool = False) -> T:
        """Do it in a transaction, make that durable (see `Writer.write`), and tell listeners of it."""
        result, hint = await self._writer.write(self._with_hint(verb), small=small, aside=aside)
        self.tell(hint)
        return result

    def write_blocking(self, verb: Verb[T]) -> T:
        """The same for a thread that may wait."""
        result, hint = self._writer.write_blocking(self._with_hint(verb))
        self.tell(hint)
        return result

    def _with_hint(self, verb: Verb[T]) -> Callable[[sqlite3.Cursor], tuple[T, Hint]]:
        def work(cursor: sqlite3.Cursor) -> tuple[T, Hint]:
            unit = self.unit(cursor)
            return verb(unit), unit.hint

        return work

    async def _change(self, statement: str, values: Values, act: Act | None, target: str) -> bool:
        """Execute one statement. If it has an effect, that is an action on the target, for the audit log."""

        def work(unit: UnitOfWork) -> bool:
            if not unit.change(statement, values):
                return False
            unit.record(act, [Changed(target=target)])
            return True

        return await self._write(work, small=True)

    def _read(self, verb: Verb[T]) -> T:
        """Read on this thread: see `Readers.read`."""
        return self._readers.read(self._reading(verb))

    async def _read_apart(self, verb: Verb[T]) -> T:
        """Read in a thread: see `Readers.read_apart`."""
        return await self._readers.read_apart(self._reading(verb))

    async def _read_soon(self, verb: Verb[T]) -> T:
        """Read on this thread, or in another one if that takes long: see `Readers.read_soon`."""
        return await self._readers.read_soon(self._reading(verb))

    def _reading(self, verb: Verb[T]) -> Callable[[sqlite3.Connection], T]:
        return lambda connection: verb(UnitOfWork(connection, self.namespace, self.clock_now(), _NOTHING_NEW))

    def _rows(self, statement: str, values: Values) -> list[Row]:
        return self._read(lambda unit: unit.rows(statement, values))

    def _structs(self, kind: type[S], statement: str, values: Values) -> list[S]:
        return self._read(lambda unit: unit.structs(kind, statement, values))

    def _struct(self, kind: type[S], statement: str, values: Values) -> S | None:
        return self._read(lambda unit: unit.struct(kind, statement, values))
