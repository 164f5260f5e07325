"""One transaction on the file: its moment, its statements by their names, and its hints to listeners."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from msgspec import Struct, structs

from batuta.errors import BadData, UnknownRun
from batuta.ids import RunId
from batuta.journal import audit
from batuta.journal.audit import Act, Changed
from batuta.journal.entries import Entry
from batuta.journal.records import Hint, Run
from batuta.journal.states import RunState
from batuta.stores.sqlite.database.connection import Q
from batuta.stores.sqlite.database.errors import translate
from batuta.stores.sqlite.database.rows import Row, entry_row, one, run_of, structs_of

T = TypeVar("T")
S = TypeVar("S", bound=Struct)
E = TypeVar("E", bound=Exception)
Executor = sqlite3.Cursor | sqlite3.Connection
Values = Sequence[Any] | Mapping[str, Any]


class UnitOfWork:
    """The transaction of one verb, at one moment."""

    __slots__ = ("executor", "hint", "namespace", "now")

    def __init__(self, executor: Executor, namespace: str, now: int, hint: Hint | None = None) -> None:
        self.executor = executor
        self.namespace = namespace
        self.now = now
        self.hint = hint or Hint()
        """For listeners, once it is durable."""

    @property
    def connection(self) -> sqlite3.Connection:
        return self.executor.connection if isinstance(self.executor, sqlite3.Cursor) else self.executor

    def execute(self, name: str, values: Values = ()) -> sqlite3.Cursor:
        """Its rows are to be read to the end, or it is to be closed: half-read statements hold a snapshot."""
        return self.executor.execute(Q[name], values)

    def rows(self, name: str, values: Values = ()) -> list[Row]:
        return self.executor.execute(Q[name], values).fetchall()

    def row(self, name: str, values: Values = ()) -> Row | None:
        """The first one."""
        return one(self.executor.execute(Q[name], values))

    def structs(self, kind: type[S], name: str, values: Values = ()) -> list[S]:
        return structs_of(kind, self.rows(name, values))

    def struct(self, kind: type[S], name: str, values: Values = ()) -> S | None:
        """The first of them."""
        found = self.structs(kind, name, values)
        return found[0] if found else None

    def value(self, name: str, values: Values = (), otherwise: Any = None) -> Any:
        """The first column of the first row."""
        row = self.row(name, values)
        return otherwise if row is None else row[0]

    def finds(self, name: str, values: Values = ()) -> bool:
        """Whether there is a row."""
        return bool(self.executor.execute(Q[name], values).fetchall())

    def change(self, name: str, values: Values = ()) -> int:
        """How many rows were written."""
        return self.executor.execute(Q[name], values).rowcount

    def wake(self, name: str, values: Values) -> int:
        """The same for a statement that makes runs due."""
        woken = self.change(name, values)
        self.hint.due = self.hint.due or woken > 0
        return woken

    def change_each(self, name: str, rows: Iterable[Values]) -> int:
        """How many rows were written with all of these values."""
        return self.executor.executemany(Q[name], rows).rowcount

    def start_over(self) -> None:
        """Undo what was written, and begin again."""
        self.executor.execute("ROLLBACK")
        self.executor.execute("BEGIN IMMEDIATE")
        self.hint = Hint()

    def attempt(self, work: Callable[[], T], expected: tuple[type[E], ...] = ()) -> T | E | BadData:
        """Do it. After one of the expected errors, or a value that the database refuses, nothing of it is left, and
        the transaction goes on."""
        self.executor.execute("SAVEPOINT attempt")
        outcome: T | E | BadData
        try:
            outcome = work()
        except Exception as error:
            meant = error if isinstance(error, expected) else translate(error)
            if not isinstance(meant, expected) and not isinstance(meant, BadData):
                raise
            self.executor.execute("ROLLBACK TO attempt")
            outcome = meant
        self.executor.execute("RELEASE attempt")
        return outcome

    def run(self, run_id: RunId) -> Run:
        """Raises UnknownRun."""
        row = self.row("run_by_run_id", (self.namespace, run_id.bytes))
        if row is None:
            raise UnknownRun(run_id, self.namespace)
        return run_of(row)

    def close_run(
        self, run_id: RunId, epoch: int, head: int, entry: Entry, state: RunState, reason: str, *, owned: bool
    ) -> bool:
        """Close a run from outside, with its last entry. False when its head has moved or it is closed."""
        if not self.change("close_from_outside", (state.value, self.now, reason, self.namespace, run_id.bytes, head)):
            return False
        self.change("insert_entry", entry_row(self.namespace, run_id.bytes, epoch + 1, entry))
        if self.hint.closed is not None:
            self.hint.closed.append(run_id)
        if owned:
            self.hint.messages.append(run_id)
        return True

    def tell_of_bus(self) -> None:
        """A message was published, or a subscription was made."""
        self.hint.bus = True

    # -- the audit log

    def record(self, act: Act | None, changed: Iterable[Changed]) -> None:
        """Write the changes of an action into the log; nothing without an action."""
        if act is None:
            return
        head = self.audit_head()
        rows = audit.record(self.namespace, head, self.now, act, changed, self._is_taken)
        if not rows:
            return
        if not head[0]:
            self.execute("insert_audit_head", (self.namespace,))
        self.execute("move_audit_head", (rows[-1].number, rows[-1].hash, rows[-1].salt, self.namespace))
        self.change_each("insert_audit", [(self.namespace, *structs.astuple(row)) for row in rows])

    def audit_head(self) -> tuple[int, str, str]:
        """The number, hash and salt of the last row."""
        number, digest, salt = self.row("audit_head", (self.namespace,)) or (0, "", "")
        return number, digest, salt

    def _is_taken(self, number: int) -> bool:
        return self.finds("audit_number_taken", (self.namespace, number))
