"""Starting runs inside a transaction of the caller's own, on whatever connection to the same database it has.

One SQL function does the work, with texts as its parameters, which every driver can pass on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from msgspec import Struct, json

from batuta.errors import AlreadyStarted, StoreUnavailable, TransactionFailed, WrongTransaction
from batuta.journal.records import NewRun, StartOutcome
from batuta.journal.store import Borrowed, Guest
from batuta.stores import rules
from batuta.stores.postgres import batch
from batuta.stores.postgres.base import Base
from batuta.stores.postgres.drivers import Link, link_to
from batuta.stores.postgres.hints import FROM_A_GUEST
from batuta.stores.postgres.rows import run_of, run_of_start

_FAILED = "25P02"
_NOT_THERE = frozenset({"3F000", "42883", "42P01"})


class Guests(Base):
    """Transactions of callers."""

    async def enter(self, transaction: object, runs: Sequence[NewRun]) -> Guest:
        link = link_to(transaction)
        if not self._place:
            self._place = (await self._pool.read(self._sql["place"]))[0]["place"]
        texts = (self.namespace, self._place, self._channel, FROM_A_GUEST)
        return PostgresGuest(link, self._sql["enqueue"], self.address.schema, texts)

    def borrow(self, connection: object) -> Borrowed:
        raise WrongTransaction("on PostgreSQL begin the transaction as you always do, and give it as `transaction=`")


class PostgresGuest:
    """A transaction of the caller's own."""

    brief = False

    def __init__(self, link: Link, query: str, schema: str, texts: Sequence[str]) -> None:
        self.blocking = link.blocking
        self._link, self._query, self._schema, self._texts = link, query, schema, texts

    async def start_many(self, runs: Sequence[NewRun], after: NewRun | None = None) -> list[StartOutcome]:
        asked = list(runs) if after is None else [*(rules.member(run, after) for run in runs), after]
        columns = [array_literal(column) for column in batch.together_columns(asked)]
        try:
            answer = await self._link.ask(
                self._query, [*self._texts, None if after is None else after.run_id.hex, *columns]
            )
        except Exception as error:
            if (meant := self._meant(error)) is None:
                raise  # the caller's own: it may know what to do about a deadlock or a lost connection
            raise meant from error
        if answer is None:
            raise WrongTransaction("the transaction is one of another database than the client's: nothing was started")
        return _outcomes(asked, after, json.decode(answer, type=_Answer))

    def _meant(self, error: Exception) -> Exception | None:
        state = _sqlstate(error)
        if state == _FAILED or type(error).__name__ == "PendingRollbackError":
            return TransactionFailed(
                f"the transaction had failed before ({error}): roll it back; nothing was started in it"
            )
        if state in _NOT_THERE:
            return WrongTransaction(
                f"schema {self._schema!r} is not there, or not of this version, where the connection is: it is to "
                f"another database than the client's, or `batuta migrate` was not run. Roll the transaction back "
                f"({error})"
            )
        return None


def array_literal(values: Sequence[Any]) -> str:
    """An array of PostgreSQL, written out: every driver can pass on a text."""
    return "{" + ",".join([_element(value) for value in values]) + "}"


def _element(value: Any) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, str):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return value.hex if isinstance(value, UUID) else str(value)


def _sqlstate(error: Exception) -> str | None:
    """SQLAlchemy wraps the driver's error; psycopg2 has another word for it."""
    for each in (error, getattr(error, "orig", None)):
        for name in ("sqlstate", "pgcode"):
            if isinstance(state := getattr(each, name, None), str):
                return state
    return None


class _Answer(Struct):
    """What batuta.enqueue says."""

    made: list[tuple[UUID, int, int | None, int | None]]
    others: list[_Other]


class _Other(Struct):
    asked: UUID
    run: dict[str, Any]


def _outcomes(asked: Sequence[NewRun], after: NewRun | None, answer: _Answer) -> list[StartOutcome]:
    made = {one[0]: one[1:] for one in answer.made}
    others = {other.asked: other.run for other in answer.others}
    # Those that another run was to await, but does not: their parent is none.
    plain = after is None or after.run_id in made
    return [
        (run_of_start(run, *times), True)
        if run is not after and plain and (times := made.get(run.run_id)) is not None
        else _outcome(run, others.get(run.run_id))
        for run in asked
    ]


def _outcome(run: NewRun, row: dict[str, Any] | None) -> StartOutcome:
    """Of one that is not new, or not as it was asked for: what is there."""
    if row is None:
        return StoreUnavailable(f"the run with id {run.id!r} vanished while another was started: try again")
    for name in ("run_id", "chain_id", "parent_run_id"):
        row[name] = None if row[name] is None else UUID(row[name])
    found = run_of(row)
    if found.run_id == run.run_id:
        return found, True
    if run.debounce or run.if_exists in rules.GIVES:
        return found, False
    return AlreadyStarted(run.id, str(found.state))
